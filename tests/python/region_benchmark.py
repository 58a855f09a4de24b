# SPDX-License-Identifier: Apache-2.0
"""How fast blocks move between an engine's memory on a GPU and host memory, as regions.

    KVTIER_LIBRARY=.. KVTIERD=.. PYTHONPATH=client/python python3 tests/python/region_benchmark.py

Stores 4 GiB and loads it three times, in blocks of 64 KiB, 256 KiB and 2 MiB, whole and in 32 parts that lie
apart as the tensors of layers do, and compares the bytes. Needs torch and a GPU. Not a test: the
figures are printed, and depend on the build and the machine.
"""

import ctypes
import hashlib
import tempfile
import time

import kvtier
import torch
from harness.private_daemon import PrivateDaemon

SET_BYTES = 4 << 30
PARTS = 32
TIMEOUT_MS = 60_000


def ipc_handle_of(tensor):
    handle = (ctypes.c_char * 64)()
    code = ctypes.CDLL("libcuda.so.1").cuIpcGetMemHandle(
        handle, ctypes.c_uint64(tensor.data_ptr())
    )
    assert code == 0, f"cuIpcGetMemHandle: {code}"
    return bytes(handle)


def seconds_of(region, transfer, blocks):
    """From the moment at which the transfer was asked for."""
    began = time.perf_counter()
    end = region.wait(transfer(), timeout_ms=TIMEOUT_MS)
    assert end.copied == blocks, end
    return time.perf_counter() - began


def measure(connection, block_bytes, parts):
    blocks = SET_BYTES // block_bytes
    part_bytes = block_bytes // parts
    name = f"{block_bytes >> 10} KiB in {parts}"
    record = kvtier.ModelRecord(
        name=name, groups=[kvtier.KvGroup(layers=1, layer_bytes=block_bytes, block_tokens=16)]
    )
    tensor = torch.randint(0, 1 << 62, (SET_BYTES // 8,), dtype=torch.int64, device="cuda")
    stored = tensor.clone()
    torch.cuda.synchronize()
    hashes = b"".join(hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(blocks))
    with connection.open_region(
        record,
        memory=kvtier.RegionMemory.CUDA_IPC,
        ipc_handle=ipc_handle_of(tensor),
        bytes=SET_BYTES,
        blocks=blocks,
        pieces=[(i * blocks * part_bytes, part_bytes, part_bytes) for i in range(parts)],
        device=0,
    ) as region:
        rows = range(blocks)
        store_s = seconds_of(region, lambda: region.store_many(rows, hashes), blocks)
        tensor.zero_()
        torch.cuda.synchronize()
        loads_s = [
            seconds_of(region, lambda: region.load_many(rows, hashes), blocks) for _ in range(3)
        ]
    loads = " ".join(f"{SET_BYTES / 1e9 / load_s:.1f}" for load_s in loads_s)
    same = bool((tensor == stored).all())
    store = SET_BYTES / 1e9 / store_s
    print(f"{name:14} store {store:.1f} GB/s, loads {loads} GB/s, same bytes: {same}", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="kvtier-bench-") as directory:
        daemon = PrivateDaemon(
            directory,
            [
                "pool.device=cuda:0",
                "pool.bytes=256MiB",
                "host.bytes=20GiB",
                "disk.bytes=0B",
                "cache.max_wait_ms=60000",
            ],
        )
        daemon.start()
        try:
            for block_bytes in (64 << 10, 256 << 10, 2 << 20):
                for parts in (1, PARTS):
                    with kvtier.connect(daemon.socket) as connection:
                        measure(connection, block_bytes, parts)
        finally:
            daemon.kill()


if __name__ == "__main__":
    main()
