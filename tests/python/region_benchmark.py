# SPDX-License-Identifier: Apache-2.0
r"""How fast blocks move between engines' memory and host memory, as regions.

    KVTIER_LIBRARY=.. KVTIERD=.. PYTHONPATH=client/python \
        python3 tests/python/region_benchmark.py [DEVICE...]

DEVICE: cuda:0 (the default), cuda:1 and so on, or host: memory that an engine shares by its
descriptor. For each of them a process stores 2 GiB and loads it, alone and then three times
together with the others, in blocks of 64 KiB, 1 MiB and 2 MiB, whole and in 32 parts that lie apart
as the tensors of layers do, and compares the bytes. The first line has the rates of plain copies.
Needs torch. Not a test: the figures are printed, and depend on the build and the machine.
"""

import ctypes
import hashlib
import mmap
import multiprocessing
import os
import sys
import tempfile
import time

import kvtier
import torch
from harness.private_daemon import PrivateDaemon

SET_BYTES = 2 << 30
SHAPES = [(64 << 10, 1), (1 << 20, 1), (2 << 20, 1), (2 << 20, 32)]  # bytes of a block, parts
ROUNDS = 3
TIMEOUT_MS = 60_000


class GpuMemory:
    """SET_BYTES of a GPU. `bytes`: as a tensor."""

    def __init__(self, device):
        torch.cuda.set_device(device)
        self.bytes = torch.randint(-128, 128, (SET_BYTES,), dtype=torch.int8, device="cuda")
        self.arguments = {
            "memory": kvtier.RegionMemory.CUDA_IPC,
            "ipc_handle": self._ipc_handle(),
            "device": int(device.partition(":")[2]),
        }
        self._plain = torch.empty(SET_BYTES // 2, dtype=torch.int8, pin_memory=True)

    def settle(self):
        torch.cuda.synchronize()

    def copy_plainly(self):
        for half in self.bytes.chunk(2):
            half.copy_(self._plain, non_blocking=True)

    def _ipc_handle(self):
        handle = (ctypes.c_char * 64)()
        code = ctypes.CDLL("libcuda.so.1").cuIpcGetMemHandle(
            handle, ctypes.c_uint64(self.bytes.data_ptr())
        )
        assert code == 0, f"cuIpcGetMemHandle: {code}"
        return bytes(handle)


class HostMemory:
    """The same in host memory that can be shared."""

    def __init__(self, device):
        fd = os.memfd_create("region-benchmark")
        os.ftruncate(fd, SET_BYTES)
        self.bytes = torch.frombuffer(mmap.mmap(fd, SET_BYTES), dtype=torch.int8)
        self.bytes.random_(-128, 128)
        self.arguments = {"fd": fd}
        self._plain = torch.zeros(SET_BYTES, dtype=torch.int8)

    def settle(self):
        pass

    def copy_plainly(self):
        self.bytes.copy_(self._plain)


class Rank:
    """One device's process. Each step waits for the others'."""

    def __init__(self, number, count, barrier, results):
        self.number, self.count = number, count
        self._barrier, self._results = barrier, results

    def step(self, work):
        """Alone in its turn, then ROUNDS times together with the others."""
        for turn in [*range(self.count), *["together"] * ROUNDS]:
            self._barrier.wait()
            rate = self.rate_of(work) if turn in (self.number, "together") else None
            self._results.put((self.number, turn, rate))
            self._barrier.wait()

    def together(self, work):
        self._barrier.wait()
        self._results.put((self.number, "together", self.rate_of(work)))
        self._barrier.wait()

    @staticmethod
    def rate_of(work):
        began = time.perf_counter()
        work()
        return SET_BYTES / 1e9 / (time.perf_counter() - began)


def run_rank(rank, device, socket):
    memory = (HostMemory if device == "host" else GpuMemory)(device)

    def plain():
        memory.copy_plainly()
        memory.settle()

    plain()
    rank.step(plain)
    with kvtier.connect(socket) as connection:
        for block_bytes, parts in SHAPES:
            run_shape(rank, memory, connection, block_bytes, parts)


def run_shape(rank, memory, connection, block_bytes, parts):
    blocks, part_bytes = SET_BYTES // block_bytes, block_bytes // parts
    name = f"{rank.number} {block_bytes} {parts}"
    group = kvtier.KvGroup(layers=1, layer_bytes=block_bytes, block_tokens=16)
    hashes = b"".join(hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(blocks))
    stored = memory.bytes.clone()
    with connection.open_region(
        kvtier.ModelRecord(name=name, groups=[group]),
        bytes=SET_BYTES,
        blocks=blocks,
        pieces=[(i * blocks * part_bytes, part_bytes, part_bytes) for i in range(parts)],
        **memory.arguments,
    ) as region:

        def move(begin):
            end = region.wait(begin(range(blocks), hashes), timeout_ms=TIMEOUT_MS)
            assert end.copied == blocks, end

        memory.settle()
        rank.together(lambda: move(region.store_many))
        memory.bytes.zero_()
        memory.settle()
        rank.step(lambda: move(region.load_many))
        assert bool((memory.bytes == stored).all()), f"{name}: other bytes"


class Report:
    """Belongs to the parent's process. loop: a file with the time of the daemon's event loop."""

    def __init__(self, count, barrier, results, loop):
        self._count, self._barrier, self._results, self._loop = count, barrier, results, loop

    def step(self, turns):
        """Returns the rates in each turn, and the loop's milliseconds in the last."""
        rates, loop_ms = [], 0.0
        for _ in range(turns):
            began = self._loop_ms()
            self._barrier.wait(TIMEOUT_MS / 1000)
            self._barrier.wait(TIMEOUT_MS / 1000)
            loop_ms = self._loop_ms() - began
            said = sorted(self._results.get() for _ in range(self._count))
            rates.append([rate for _, _, rate in said if rate is not None])
        return [" + ".join(f"{rate:.1f}" for rate in each) for each in rates], loop_ms

    def _loop_ms(self):
        with open(self._loop, encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e6


def main():
    devices = sys.argv[1:] or ["cuda:0"]
    gpus = [device for device in devices if device != "host"] or ["host"]
    settings = [
        f"pool.device={gpus[0] if len(gpus) == 1 else str(gpus).replace(chr(39), chr(34))}",
        "pool.bytes=256MiB",
        f"host.bytes={6 * len(devices)}GiB",
        "disk.bytes=0B",
        "cache.max_wait_ms=60000",
    ]
    with tempfile.TemporaryDirectory(prefix="kvtier-bench-") as directory:
        daemon = PrivateDaemon(directory, settings)
        daemon.start()
        try:
            measure(devices, daemon)
        finally:
            daemon.kill()


def measure(devices, daemon):
    spawn, count = multiprocessing.get_context("spawn"), len(devices)
    barrier, results = spawn.Barrier(count + 1), spawn.Queue()
    ranks = [
        spawn.Process(
            target=run_rank, args=(Rank(i, count, barrier, results), device, daemon.socket)
        )
        for i, device in enumerate(devices)
    ]
    for rank in ranks:
        rank.start()
    report = Report(count, barrier, results, f"/proc/{daemon.process_id}/schedstat")
    plain, _ = report.step(count + ROUNDS)
    alone, together = ", ".join(plain[:count]), ", ".join(plain[count:])
    print(f"plain copies alone {alone}, together {together} GB/s", flush=True)
    for block_bytes, parts in SHAPES:
        stores, _ = report.step(1)
        loads, loop_ms = report.step(count + ROUNDS)
        blocks = count * SET_BYTES // block_bytes
        print(
            f"{block_bytes >> 10} KiB in {parts}: stores {stores[0]} GB/s, loads alone "
            f"{', '.join(loads[:count])}, together {', '.join(loads[count:])} GB/s, "
            f"loop {loop_ms * 1e3 / blocks:.1f} us a block",
            flush=True,
        )
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0, "see above"


if __name__ == "__main__":
    main()
