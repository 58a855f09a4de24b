# SPDX-License-Identifier: Apache-2.0
"""How long an acquire of many blocks in the pool takes, beside the same call made as C makes it.

    KVTIER_LIBRARY=.. KVTIERD=.. PYTHONPATH=client/python python3 tests/python/acquire_benchmark.py

Both calls alternate in one run over one connection; each releases its blocks, which is not timed.
Not a test: the figures are printed, and depend on the build and the machine.
"""

import ctypes
import statistics
import sys
import tempfile
import time

import kvtier
from harness.daemon_test_case import RECORD
from harness.private_daemon import PrivateDaemon, settings
from kvtier import _library
from kvtier._library import abi
from kvtier.blocks import new_hit_array

BLOCKS = 625
ROUNDS = 300


def commit(pool, hashes):
    with pool.acquire(new_blocks=len(hashes)) as got:
        entries = kvtier.chain_entries(hashes, got.new_blocks, RECORD.block_tokens)
        assert pool.commit_and_wait(entries) == [kvtier.Status.OK] * len(hashes)


def time_in_python_us(pool, hashes):
    began = time.perf_counter()
    got = pool.acquire(hashes)
    table = got.block_table()
    took = time.perf_counter() - began
    assert len(table) == len(hashes) and got.load is None
    got.release()
    return took * 1e6


def time_in_c_us(pool, joined, count):
    """The call alone, its structures prepared before, as a C program has them on its stack."""
    hits = new_hit_array(count)
    request, reply = _library.sized(abi.kvt_acquire_request), _library.sized(abi.kvt_acquire_reply)
    request.hashes, request.hash_count = ctypes.cast(joined, ctypes.c_void_p).value, count
    reply.hits, reply.hits_capacity = hits.ctypes.data, count
    call, handle = _library.load().kvt_acquire, pool.handle.get()
    arguments = ctypes.byref(request), ctypes.byref(reply)
    began = time.perf_counter()
    status = call(handle, *arguments)
    took = time.perf_counter() - began
    assert status == 0 and reply.hit_count == count
    pool.release(kvtier.Hits(hits))
    return took * 1e6


def main():
    with tempfile.TemporaryDirectory(prefix="kvtier-bench-") as directory:
        daemon = PrivateDaemon(directory, settings(2 * BLOCKS, 4 * BLOCKS, 0, "host"))
        daemon.start()
        try:
            with kvtier.connect(daemon.socket, client_name="acquire benchmark") as connection:
                pool = connection.attach(connection.register_model(RECORD))
                hashes = kvtier.hash_blocks(range(BLOCKS * 16))
                commit(pool, hashes)
                in_python, in_c, joined = [], [], b"".join(hashes)
                for _ in range(ROUNDS):
                    in_python.append(time_in_python_us(pool, hashes))
                    connection.flush()
                    in_c.append(time_in_c_us(pool, joined, BLOCKS))
                    connection.flush()
        finally:
            daemon.kill()
    python_us, c_us = statistics.median(in_python), statistics.median(in_c)
    print(f"acquire of {BLOCKS} hits, median of {ROUNDS}: C {c_us:.0f} us, ", end="")
    print(f"Python {python_us:.0f} us with its block table, ratio {python_us / c_us:.2f}; ", end="")
    print(f"minima {min(in_c):.0f} and {min(in_python):.0f} us")


if __name__ == "__main__":
    sys.exit(main())
