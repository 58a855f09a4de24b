# SPDX-License-Identifier: Apache-2.0
"""Memory that outlives its process: the next process finds it, and the daemon refuses false claims.
"""

import hashlib
import os
import signal
import subprocess
import sys
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import RECORD, DaemonTestCase

NAME = hashlib.sha256(b"a rank of an engine").digest()
BYTES = 100_000
BLOCKS = 8

# An engine: computes two blocks, publishes them, and waits for its end.
ENGINE = """
import sys, numpy as np, kvtier
socket, name, byte_count, blocks = sys.argv[1], bytes.fromhex(sys.argv[2]), *map(int, sys.argv[3:])
connection = kvtier.connect(socket)
memory = kvtier.KeptMemory(name, byte_count, blocks, connection)
memory.buffer()[:5] = b"block"
memory.set_root(b"r" * 32)
memory.publish(1, np.array([3, 5], np.uint32), [b"a" * 32, b"b" * 32])
memory.publish(0, [2], b"c" * 32)
memory.retract([5])
print(memory.was_kept, flush=True)
sys.stdin.read()
"""

# Uses a view of memory that nothing else refers to.
LONE_VIEW = """
import gc, weakref, kvtier
memory = kvtier.KeptMemory(bytes(32), 4096, 1)
gone = weakref.ref(memory)
view = memory.buffer()[16:]
del memory
gc.collect()
view[0] = 7
print(gone() is None, view[0])
del view
gc.collect()
print(gone() is None)
"""


def named(number: int) -> list[bytes]:
    return [bytes([number]) * 32]


class KeptMemoryTest(DaemonTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.connection = self.connect()

    def engine(self) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, self.daemon.socket, NAME.hex(), str(BYTES), str(BLOCKS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.end, process)
        self.assertEqual(process.stdout.readline(), "False\n")
        return process

    @staticmethod
    def end(process: subprocess.Popen) -> None:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def open(self, connection=None, **others) -> kvtier.KeptMemory:
        memory = kvtier.KeptMemory(NAME, BYTES, BLOCKS, connection, **others)
        self.addCleanup(memory.close)
        return memory

    def test_the_memory_of_an_engine_that_was_killed_is_the_next_ones(self):
        self.end(self.engine())
        memory = self.open(self.connection)
        self.assertTrue(memory.was_kept)
        self.assertEqual(bytes(memory.buffer()[:6]), b"block\0")
        self.assertEqual(len(memory.buffer()), memory.byte_count)
        self.assertEqual(memory.root, b"r" * 32)
        kept = memory.entries()
        self.assertEqual(kept.blocks.tolist(), [3, 2])
        self.assertEqual(kept.groups.tolist(), [1, 0])
        self.assertEqual(kept.hashes, [b"a" * 32, b"c" * 32])
        self.assertEqual(kept.blocks.dtype, np.uint32)

    def test_a_living_engine_keeps_its_memory_to_itself_but_for_the_table(self):
        self.engine()
        with self.assertRaises(kvtier.WrongStateError) as raised:
            self.open(self.connection)
        self.assertEqual(raised.exception.reason, "memory_in_use")
        with self.connection.kept_table(NAME) as table:
            self.assertEqual(table.root, b"r" * 32)
            self.assertEqual(table.entries().blocks.tolist(), [3, 2])
        self.assertEqual(self.connection.release_memory(), (0, 0))
        # It goes on without the daemon's help.
        memory = self.open()
        self.assertFalse(memory.was_kept)
        with self.assertRaises(kvtier.WrongStateError):
            memory.keep(self.connection)

    def test_nothing_is_kept_under_an_unknown_name(self):
        self.assertIsNone(self.connection.kept_table(NAME))
        self.assertEqual(self.connection.release_memory(NAME), (0, 0))

    def test_memory_of_an_ended_engine_can_be_released(self):
        process = self.engine()
        self.end(process)
        # Until the daemon has seen the end of the process, it owns the memory.
        released = (0, 0)
        while released == (0, 0):
            released = self.connection.release_memory(device=0)
        self.assertEqual(released[0], 1)
        self.assertGreaterEqual(released[1], BYTES)
        self.assertFalse(self.open(self.connection).was_kept)

    def test_a_new_daemon_keeps_what_it_is_told_of(self):
        memory = self.open(self.connection)
        memory.publish(0, [1], named(1))
        self.daemon.kill()
        memory.publish(0, [2], named(2))
        self.daemon.start()
        connection = self.connect()
        self.assertIsNone(connection.kept_table(NAME))
        memory.keep(connection)
        with connection.kept_table(NAME) as table:
            self.assertEqual(table.entries().blocks.tolist(), [1, 2])

    def test_memory_is_a_region_as_it_is(self):
        memory = self.open(self.connection)
        block_bytes = RECORD.layout().block_stride
        self.assertLessEqual(2 * block_bytes, memory.byte_count)
        region = self.connection.open_region(
            RECORD, fd=memory.fd, bytes=memory.byte_count, blocks=2
        )
        self.addCleanup(region.close)
        memory.buffer()[:block_bytes] = b"x" * block_bytes
        stored = region.store([kvtier.StoreBlock(0, b"h" * 32)])
        self.assertEqual(region.wait(stored).copied, 1)
        self.assertEqual(region.wait(region.load([(1, b"h" * 32)])).copied, 1)
        self.assertEqual(memory.buffer()[block_bytes], ord("x"))

    def test_a_view_keeps_its_memory(self):
        done = subprocess.run([sys.executable, "-c", LONE_VIEW], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "False 7\nTrue\n"), done.stderr)

    def test_arguments_that_make_no_sense_are_refused(self):
        with self.assertRaises(kvtier.InvalidArgumentError):
            kvtier.KeptMemory(b"short", BYTES, BLOCKS)
        with self.assertRaises(kvtier.InvalidArgumentError):
            kvtier.KeptMemory(NAME, 0, BLOCKS)
        memory = self.open()
        self.assertIsNone(memory.root)
        for blocks, hashes in (([1], b""), ([BLOCKS], named(1)), ([-1], named(1)), ([[1]], named(1))):
            with self.assertRaises(kvtier.InvalidArgumentError):
                memory.publish(0, blocks, hashes)
        with self.assertRaises(kvtier.InvalidArgumentError):
            memory.publish(16, [1], named(1))
        memory.publish(0, [], [])
        self.assertEqual(memory.entries().hashes, [])
        memory.close()
        with self.assertRaises(kvtier.InvalidArgumentError):
            memory.clear()


if __name__ == "__main__":
    unittest.main()
