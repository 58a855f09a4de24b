# SPDX-License-Identifier: Apache-2.0
"""Memory that is not the CPU's: array interfaces, how long it stays mapped, and copies in it."""

import gc
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_BYTES, DaemonTestCase
from kvtier._native import Handle
from kvtier.cuda import CudaArray
from kvtier.memory import _interface_type
from kvtier.model import ViewPlan

ADDRESS = 0x7000_0000_0000


class CudaArrayTest(unittest.TestCase):
    def setUp(self):
        self.freed = []
        self.connection = Handle("connection", 1, self.freed.append)
        self.pool = Handle("pool", 2, self.freed.append, self.connection)
        record = kvtier.ModelRecord("llama", 32, 8, 128, 128)
        self.spec = ViewPlan(record, record.layout(), blocks=1000).v(3)

    def array(self):
        array = CudaArray(self.pool, self.spec, "<i2")
        array.place(ADDRESS)
        return array

    def test_the_interface_describes_the_strided_layer(self):
        interface = self.array().__cuda_array_interface__
        self.assertEqual(interface["shape"], (1000, 16, 8, 128))
        self.assertEqual(interface["strides"], (2 << 20, 2048, 256, 2))
        self.assertEqual(interface["data"], (ADDRESS + 3 * 65536 + 32768, False))
        self.assertEqual((interface["typestr"], interface["version"]), ("<i2", 3))

    def test_the_memory_stays_mapped_until_the_last_array_of_a_closed_pool_goes(self):
        first, second = self.array(), self.array()
        self.connection.close()
        self.assertTrue(self.pool.closed)
        del first
        gc.collect()
        self.assertEqual(self.freed, [])
        del second
        gc.collect()
        self.assertEqual(self.freed, [2, 1])

    def test_arrays_that_have_gone_do_not_close_an_open_pool(self):
        self.array()
        gc.collect()
        self.assertEqual(self.freed, [])
        self.pool.close()
        self.assertEqual(self.freed, [2])

    def test_a_closed_pool_gives_no_more_arrays(self):
        self.pool.close()
        with self.assertRaises(kvtier.InvalidArgumentError):
            self.array()

    def test_the_memory_is_not_given_back_under_an_array(self):
        given_back = []
        array = self.array()
        with self.assertRaises(kvtier.WrongStateError) as raised:
            self.pool.call_unpinned(given_back.append)
        self.assertEqual(raised.exception.reason, "in_use")
        del array
        gc.collect()
        self.pool.call_unpinned(given_back.append)
        self.assertEqual(given_back, [2])

    def test_every_dtype_has_a_type_of_its_size_that_interfaces_know(self):
        for dtype in kvtier.DType:
            typestr = _interface_type(dtype)
            self.assertEqual(np.dtype(typestr).itemsize, dtype.itemsize)
            self.assertNotEqual(typestr, "<u2")


class ReadAndWriteTest(DaemonTestCase):
    def test_blocks_are_read_and_written_by_parts(self):
        pool = self.attach()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0]
            pool.memory().block_bytes()[block.index] = 1
            pool.write(block, b"abc", offset=BLOCK_BYTES - 3)
            self.assertEqual(pool.read(block, BLOCK_BYTES - 4), b"\1abc")
            self.assertEqual(pool.read(block, byte_count=2), b"\1\1")
            self.assertEqual(len(pool.read(block)), BLOCK_BYTES)
            for call in (
                lambda: pool.read(block, BLOCK_BYTES, 1),
                lambda: pool.read(block, -1, 1),
                lambda: pool.write(block, b"abc", BLOCK_BYTES - 2),
            ):
                with self.assertRaises(kvtier.InvalidArgumentError):
                    call()

    def test_giving_device_memory_back_leaves_host_memory_as_it_is(self):
        pool = self.attach()
        before = pool.layer(0).k
        pool.unmap_device()
        with pool.acquire(new_blocks=1) as got:
            pool.layer(0).k[got.new_blocks[0].index] = 5
            self.assertTrue((before[got.new_blocks[0].index] == 5).all())


if __name__ == "__main__":
    unittest.main()
