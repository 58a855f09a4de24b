# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that outlives its process; skipped where there is none. Needs the driver alone."""

import ctypes
import hashlib
import subprocess
import sys
import time
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import RECORD, DaemonTestCase

NAME = hashlib.sha256(b"a rank of an engine on a GPU").digest()
OTHER_NAME = hashlib.sha256(b"another engine").digest()
BYTES = 64 << 20
BLOCKS = 16
MIB = 1 << 20

# An engine: fills the first part of its memory from a seed, publishes two blocks, waits to be killed.
ENGINE = """
import sys
sys.path.insert(0, sys.argv[1])
import test_kept_memory_on_gpu as test, kvtier, numpy as np
socket, name, byte_count = sys.argv[2], bytes.fromhex(sys.argv[3]), int(sys.argv[4])
with kvtier.connect(socket) as connection:
    memory = kvtier.KeptMemory(name, byte_count, test.BLOCKS, connection, cuda_device=0)
    gpu = test.Gpu()
    assert not gpu.read(memory.pointer, test.MIB).any()
    gpu.write(memory.pointer, test.seeded_bytes())
    memory.set_root(b"r" * 32)
    memory.publish(0, np.array([7, 3], np.uint32), [b"a" * 32, b"b" * 32])
    print(memory.was_kept, flush=True)
    sys.stdin.read()
"""


class Gpu:
    """Copies to and from the first GPU, through its primary context. Raises OSError without one."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self._driver.cuCtxSetCurrent(context))

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise OSError(f"CUDA error {code}")

    def write(self, pointer: int, data: np.ndarray) -> None:
        address, count = ctypes.c_uint64(pointer), ctypes.c_size_t(data.nbytes)
        self._check(self._driver.cuMemcpyHtoD_v2(address, ctypes.c_void_p(data.ctypes.data), count))
        self._check(self._driver.cuCtxSynchronize())

    def read(self, pointer: int, byte_count: int) -> np.ndarray:
        data = np.empty(byte_count, np.uint8)
        address, count = ctypes.c_uint64(pointer), ctypes.c_size_t(byte_count)
        self._check(self._driver.cuMemcpyDtoH_v2(ctypes.c_void_p(data.ctypes.data), address, count))
        return data

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value


def seeded_bytes() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, MIB, dtype=np.uint8)


try:
    GPU = Gpu()
except OSError:
    GPU = None


@unittest.skipUnless(GPU, "no GPU")
class KeptMemoryOnGpuTest(DaemonTestCase):
    device = "cuda:0"
    pool_blocks = 128  # the smallest pool of a GPU, 2 MiB

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.connect()

    def run_engine(self, name: bytes = NAME, byte_count: int = BYTES) -> None:
        """Until it is killed."""
        directory = __file__.rpartition("/")[0]
        arguments = [directory, self.daemon.socket, name.hex(), str(byte_count)]
        process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertEqual(process.stdout.readline(), "False\n")
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def open(self, name: bytes = NAME, byte_count: int = BYTES) -> kvtier.KeptMemory:
        """Once the daemon, and the driver, know that the owner has gone."""
        deadline = time.monotonic() + 30
        while True:
            try:
                memory = kvtier.KeptMemory(name, byte_count, BLOCKS, self.connection, cuda_device=0)
                break
            except kvtier.WrongStateError:
                self.assertLess(time.monotonic(), deadline)
        self.addCleanup(memory.close)
        return memory

    def test_the_next_process_finds_the_bytes_of_one_that_was_killed(self):
        self.run_engine()
        memory = self.open()
        self.assertTrue(memory.was_kept)
        self.assertTrue((GPU.read(memory.pointer, MIB) == seeded_bytes()).all())
        self.assertFalse(GPU.read(memory.pointer + MIB, MIB).any())
        self.assertEqual(memory.entries().blocks.tolist(), [7, 3])
        self.assertEqual(memory.root, b"r" * 32)
        with self.assertRaises(kvtier.UnsupportedError):
            memory.buffer()

    def test_the_memory_is_given_back_when_it_is_released(self):
        self.run_engine()
        before = GPU.free_bytes()
        deadline = time.monotonic() + 30
        while self.connection.release_memory(device=0) == (0, 0):
            self.assertLess(time.monotonic(), deadline)
        while GPU.free_bytes() < before + BYTES:
            self.assertLess(time.monotonic(), deadline)
        self.assertFalse(self.open().was_kept)

    def test_a_full_gpu_is_freed_of_what_waits(self):
        byte_count = GPU.free_bytes() * 6 // 10
        self.run_engine(OTHER_NAME, byte_count)
        # Until it has no owner it cannot be released.
        while self.status()["kept_memory"]["list"][0]["waiting"] is not True:
            pass
        memory = self.open(NAME, byte_count)
        self.assertFalse(memory.was_kept)
        self.assertIsNone(self.connection.kept_table(OTHER_NAME))

    def test_it_is_a_region_as_it_is(self):
        memory = self.open()
        with self.connection.open_region(
            RECORD,
            fd=memory.fd,
            bytes=memory.byte_count,
            blocks=BLOCKS,
            memory=kvtier.RegionMemory.VMM,
            device=0,
        ) as region:
            data = seeded_bytes()[: region.block_bytes]
            GPU.write(memory.pointer, data)
            stored = region.wait(region.store([kvtier.StoreBlock(0, b"h" * 32)]), timeout_ms=10_000)
            self.assertEqual(stored.copied, 1)
            loaded = region.wait(region.load([(9, b"h" * 32)]), timeout_ms=10_000)
            self.assertEqual(loaded.copied, 1)
            at = memory.pointer + 9 * region.block_bytes
            self.assertTrue((GPU.read(at, region.block_bytes) == data).all())

    def test_a_new_daemon_is_handed_the_memory(self):
        memory = self.open()
        GPU.write(memory.pointer, seeded_bytes())
        memory.publish(0, [1], b"a" * 32)
        self.daemon.kill()
        self.daemon.start()
        connection = self.connect()
        memory.keep(connection)
        with connection.kept_table(NAME) as table:
            self.assertEqual(table.entries().blocks.tolist(), [1])

    def status(self) -> dict:
        return kvtier.admin({"op": "status"}, self.daemon.admin_socket)


if __name__ == "__main__":
    unittest.main()
