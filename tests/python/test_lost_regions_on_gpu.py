# SPDX-License-Identifier: Apache-2.0
"""Regions of a GPU whose daemon is killed while it loads; skipped where there is no GPU, or no torch."""

import ctypes
import hashlib
import os
import random
import signal
import tempfile
import time
import unittest

import numpy as np

import kvtier
from harness.private_daemon import PrivateDaemon

try:
    import torch
except ImportError:
    torch = None

BLOCKS, BLOCK_BYTES = 512, 2 << 20
KILLS = 20
# From the end of the connection to the end of the process, and the driver's part in it.
ENDED_WITHIN_S = 2.0
RECORD = kvtier.ModelRecord(
    name="lost", groups=[kvtier.KvGroup(layers=1, layer_bytes=BLOCK_BYTES, block_tokens=16)]
)
SETTINGS = [
    "pool.device=cuda:0",
    "pool.bytes=256MiB",
    "host.bytes=3GiB",
    "disk.bytes=0B",
    "cache.max_wait_ms=60000",
]


def ipc_handle_of(tensor):
    handle = (ctypes.c_char * 64)()
    code = ctypes.CDLL("libcuda.so.1").cuIpcGetMemHandle(
        handle, ctypes.c_uint64(tensor.data_ptr())
    )
    assert code == 0, f"cuIpcGetMemHandle: {code}"
    return bytes(handle)


@unittest.skipUnless(torch is not None and torch.cuda.is_available(), "takes torch and a GPU")
class LostRegionOnGpuTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-lost-")
        self.addCleanup(directory.cleanup)
        self.daemon = PrivateDaemon(directory.name, SETTINGS)
        self.addCleanup(self.daemon.kill)
        self.rows = torch.zeros(BLOCKS * BLOCK_BYTES // 8, dtype=torch.int64, device="cuda")
        self.hashes = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(BLOCKS))

    def open_region(self, connection):
        return connection.open_region(
            RECORD,
            memory=kvtier.RegionMemory.CUDA_IPC,
            ipc_handle=ipc_handle_of(self.rows),
            bytes=BLOCKS * BLOCK_BYTES,
            blocks=BLOCKS,
            device=0,
        )

    def kill_while_it_loads(self, region, after_s):
        """Seconds from the kill until the region says that the process has ended."""
        self.rows.zero_()
        torch.cuda.synchronize()
        began = time.perf_counter()
        region.load_many(np.arange(BLOCKS), self.hashes)
        while time.perf_counter() - began < after_s:
            pass
        killed = time.perf_counter()
        os.kill(self.daemon.process_id, signal.SIGKILL)
        while not region.daemon_ended():
            self.assertLess(time.perf_counter() - killed, ENDED_WITHIN_S)
        return time.perf_counter() - killed

    def test_no_byte_changes_once_the_daemon_has_ended(self):
        moments = random.Random(1)
        waits_s, cut_off = [], 0
        for _ in range(KILLS):
            self.daemon.start()
            with kvtier.connect(self.daemon.socket) as connection:
                region = self.open_region(connection)
                self.rows.random_(1, 1 << 62)
                torch.cuda.synchronize()
                region.wait(region.store_many(np.arange(BLOCKS), self.hashes), timeout_ms=60_000)
                waits_s.append(self.kill_while_it_loads(region, moments.uniform(0, 0.02)))
                left = self.rows.clone()
                torch.cuda.synchronize()
                cut_off += int((left == 0).any())
                self.daemon.kill()
                self.assertTrue(bool((self.rows == left).all()))
                region.close()
            # Some time has passed, with another context's copies over the same bus.
            self.daemon.start()
            self.assertTrue(bool((self.rows == left).all()))
            self.daemon.kill()
        self.assertGreater(cut_off, 0, "no load was cut off")
        waits_s.sort()
        print(
            f"{cut_off} of {KILLS} loads cut off; from the kill to the end of the process "
            f"{1e3 * waits_s[KILLS // 2]:.0f} ms, at most {1e3 * waits_s[-1]:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    unittest.main()
