# SPDX-License-Identifier: Apache-2.0
"""Shared memory that is found by a view of it."""

import mmap
import os
import tempfile
import unittest

import numpy as np

from kvtier._host_view import NotSharedError, find_host_view

ROW_BYTES = 4096
ROWS = 8


class HostViewTest(unittest.TestCase):
    def map_file(self, path, offset=0):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, offset + ROWS * ROW_BYTES)
        memory = mmap.mmap(fd, ROWS * ROW_BYTES, mmap.MAP_SHARED, offset=offset)
        rows = np.frombuffer(memory, dtype=np.int8).reshape(ROWS, ROW_BYTES)
        return fd, memoryview(rows)

    def check(self, view, expected_offset):
        """A byte written into the file at the place found shows in the view."""
        found = find_host_view(view)
        self.addCleanup(found.close)
        sizes = (found.rows, found.row_bytes, found.row_stride)
        self.assertEqual(sizes, (ROWS, ROW_BYTES, ROW_BYTES))
        self.assertEqual(found.offset, expected_offset)
        self.assertEqual(found.file_bytes, expected_offset + ROWS * ROW_BYTES)
        os.pwrite(found.fd, b"\x2a", found.offset + 5 * found.row_stride + 7)
        self.assertEqual(view[5, 7], 42)

    def test_the_file_behind_a_shared_mapping_is_found(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            _, view = self.map_file(file.name)
            self.check(view, 0)

    def test_a_mapping_may_begin_within_the_file_whose_name_is_gone(self):
        path = tempfile.mktemp(dir="/dev/shm")
        _, view = self.map_file(path, offset=mmap.PAGESIZE)
        os.unlink(path)
        self.check(view, mmap.PAGESIZE)

    def test_a_mapping_that_the_kernel_shows_in_parts_is_one(self):
        path = tempfile.mktemp(dir="/dev/shm")
        fd, _ = self.map_file(path)
        os.unlink(path)
        memory = mmap.mmap(fd, ROWS * ROW_BYTES, mmap.MAP_SHARED)
        memory.madvise(mmap.MADV_DONTFORK, 2 * mmap.PAGESIZE, mmap.PAGESIZE)
        self.check(memoryview(np.frombuffer(memory, np.int8).reshape(ROWS, ROW_BYTES)), 0)

    def test_private_memory_is_refused(self):
        for memory in (np.zeros((ROWS, ROW_BYTES), np.int8), np.zeros((1, 1 << 24), np.int8)):
            with self.assertRaises(NotSharedError):
                find_host_view(memoryview(memory))

    def test_a_view_without_rows_is_refused(self):
        for view in (np.zeros(ROW_BYTES), np.zeros((4, 4, 4)), np.zeros((ROWS, ROW_BYTES)).T):
            with self.assertRaises(ValueError):
                find_host_view(memoryview(view))


if __name__ == "__main__":
    unittest.main()
