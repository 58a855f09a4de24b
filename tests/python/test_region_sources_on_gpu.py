# SPDX-License-Identifier: Apache-2.0
"""One engine's KV cache on a GPU as the source of another engine's loads, which overwrites it as it
likes. Skipped where there is no GPU; the second engine is on the second GPU if there is one. Needs
the driver alone. KVTIER_SOURCE_BLOCKS: how many blocks are loaded while they are overwritten."""

import ctypes
import hashlib
import os
import threading
import time
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import RECORD, DaemonTestCase

BLOCKS = 1024
BLOCK_BYTES = RECORD.layout().block_stride
#: Blocks of one load.
BATCH = 256


class Gpu:
    """The first GPUs, through their primary contexts. Raises OSError without one."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGetCount(ctypes.byref(count)))
        self._contexts = []
        for ordinal in range(min(count.value, 2)):
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self._check(self._driver.cuDeviceGet(ctypes.byref(device), ordinal))
            self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
            self._contexts.append(context)

    @property
    def last(self) -> int:
        return len(self._contexts) - 1

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise OSError(f"CUDA error {code}")

    def fill(self, ordinal: int, pointer: int, word: int, byte_count: int) -> None:
        """Launches it, and does not wait."""
        self._check(self._driver.cuCtxSetCurrent(self._contexts[ordinal]))
        words = ctypes.c_size_t(byte_count // 4)
        self._check(
            self._driver.cuMemsetD32Async(ctypes.c_uint64(pointer), ctypes.c_uint(word), words, None)
        )

    def wait(self, ordinal: int) -> None:
        self._check(self._driver.cuCtxSetCurrent(self._contexts[ordinal]))
        self._check(self._driver.cuCtxSynchronize())

    def read(self, ordinal: int, pointer: int, byte_count: int) -> np.ndarray:
        self._check(self._driver.cuCtxSetCurrent(self._contexts[ordinal]))
        data = np.empty(byte_count // 4, np.uint32)
        address, count = ctypes.c_uint64(pointer), ctypes.c_size_t(byte_count)
        self._check(self._driver.cuMemcpyDtoH_v2(ctypes.c_void_p(data.ctypes.data), address, count))
        return data


try:
    GPU = Gpu()
except OSError:
    GPU = None


def hash_of(word: int) -> bytes:
    return hashlib.sha256(b"block %d" % word).digest()


class Engine:
    """Memory of a GPU, a region over it, and what an engine does with its blocks: block i is filled
    with the word that its hash was made from."""

    def __init__(self, test: "RegionSourcesOnGpuTest", name: bytes, ordinal: int) -> None:
        self.ordinal = ordinal
        self.connection = test.connect()
        self.memory = kvtier.KeptMemory(
            hashlib.sha256(name).digest(),
            BLOCKS * BLOCK_BYTES,
            BLOCKS,
            self.connection,
            cuda_device=ordinal,
        )
        test.addCleanup(self.memory.close)
        self.region = self.connection.open_region(
            RECORD,
            fd=self.memory.fd,
            bytes=self.memory.byte_count,
            blocks=BLOCKS,
            memory=kvtier.RegionMemory.VMM,
            device=ordinal,
            kept=self.memory.name,
        )
        test.addCleanup(self.region.close)

    def compute(self, first: int, words: range) -> None:
        """Blocks from `first` on, in the order that the rules ask for: retracted before they are
        written, published when they are, then stored."""
        rows = np.arange(first, first + len(words), dtype=np.uint32)
        self.memory.retract(rows)
        for row, word in zip(rows, words):
            place = self.memory.pointer + int(row) * BLOCK_BYTES
            GPU.fill(self.ordinal, place, word, BLOCK_BYTES)
        GPU.wait(self.ordinal)
        hashes = [hash_of(word) for word in words]
        self.memory.publish(0, rows, hashes)
        end = self.region.wait(self.region.store_many(rows, b"".join(hashes)))
        assert end.error is None and not end.failed, end

    def load(self, first: int, words: range) -> tuple[int, int]:
        """How many of the blocks arrived with wrong bytes, and how many arrived."""
        rows = np.arange(first, first + len(words), dtype=np.uint32)
        self.memory.retract(rows)
        hashes = b"".join(map(hash_of, words))
        end = self.region.wait(self.region.load_many(rows, hashes))
        assert end.error is None, end
        place = self.memory.pointer + first * BLOCK_BYTES
        data = GPU.read(self.ordinal, place, len(words) * BLOCK_BYTES).reshape(len(words), -1)
        arrived = [i for i in range(len(words)) if i not in end.failed]
        expected = np.array(words, dtype=np.uint32)[arrived]
        wrong = (data[arrived] != expected[:, None]).any(axis=1)
        return int(wrong.sum()), len(arrived)


@unittest.skipUnless(GPU, "no GPU")
class RegionSourcesOnGpuTest(DaemonTestCase):
    device = "all"
    pool_blocks = 128  # the smallest pool of a GPU, 2 MiB
    host_blocks = 4 * BLOCKS

    def setUp(self) -> None:
        super().setUp()
        self.first = Engine(self, b"first", 0)
        self.second = Engine(self, b"second", GPU.last)

    def count(self, name: str) -> int:
        return self.daemon.status()["stats"][f"neighbour_{name}"]

    def test_what_the_first_holds_comes_from_its_memory(self):
        words = range(1, 1 + BATCH)
        self.first.compute(0, words)
        self.assertEqual(self.second.load(0, words), (0, BATCH))
        self.assertEqual(self.count("blocks"), BATCH)

    def test_an_engine_that_overwrites_at_full_speed_gives_no_wrong_block(self):
        most = int(os.environ.get("KVTIER_SOURCE_BLOCKS", "20000"))
        stop = threading.Event()
        newest = [0]  # the first word of the last batch that was computed

        def overwrite() -> None:
            batch = 0
            while not stop.is_set():
                word = 1 + batch * BATCH
                self.first.compute(batch * BATCH % BLOCKS, range(word, word + BATCH))
                newest[0] = word
                batch += 1

        engine = threading.Thread(target=overwrite)
        engine.start()
        try:
            wrong = arrived = 0
            began = time.monotonic()
            for turn in range(most // BATCH + 1):
                # They are about to be overwritten.
                word = max(1, newest[0] - (turn % 4) * BATCH)
                of_these = self.second.load(turn * BATCH % BLOCKS, range(word, word + BATCH))
                wrong, arrived = wrong + of_these[0], arrived + of_these[1]
        finally:
            stop.set()
            engine.join()
        seconds = time.monotonic() - began
        came = self.count("blocks")
        print(
            f"{arrived} blocks in {seconds:.1f} s, {came} copied from the engine, "
            f"{self.count('fallbacks')} were overwritten meanwhile, {wrong} wrong"
        )
        self.assertEqual(wrong, 0)
        self.assertGreater(came, 0)


if __name__ == "__main__":
    unittest.main()
