# SPDX-License-Identifier: Apache-2.0
"""An engine's first minute with a daemon of another commit: `tools/test-previous.sh` runs this with one
commit's library beside another's daemon.

    PYTHONPATH=... KVTIER_LIBRARY=... python3 other_commit.py SOCKET

Exits with 0 if all works, or if the connection is refused with both versions in one line, because an
engine then has misses and goes on. Anything else is an error: an answer that the library reads wrongly,
other bytes than were stored, a request without an answer.
"""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np

import kvtier

BLOCKS, BLOCK_TOKENS, BLOCK_BYTES = 4, 16, 16 * 1024
RECORD = kvtier.ModelRecord(
    name="small",
    layers=2,
    kv_heads=2,
    k_head_dim=32,
    v_head_dim=32,
    dtype=kvtier.DType.FLOAT32,
    block_tokens=BLOCK_TOKENS,
)


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"other_commit: {what}")


def tokens_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 17, BLOCKS * BLOCK_TOKENS, dtype=np.uint32)


def use_pool(connection: kvtier.Connection) -> bytes:
    """Commits a prefix and finds it again. Returns the hashes."""
    pool = connection.attach(connection.register_model(RECORD))
    tokens = tokens_of(1)
    hashes = pool.hash_blocks(tokens)[:BLOCKS]
    memory = pool.memory().block_bytes()
    with pool.acquire(new_blocks=BLOCKS) as got:
        for i, block in enumerate(got.new_blocks):
            memory[block.index] = 1 + i
        entries = kvtier.chain_entries(hashes, got.new_blocks, BLOCK_TOKENS)
        ends = pool.commit_and_wait(entries)
        check(ends == [kvtier.Status.OK] * BLOCKS, f"commits ended with {ends}")
    # One token more: the last block of a prompt is not taken whole, because its end must be computed.
    with pool.open_sequence(np.append(tokens, np.uint32(7))) as sequence:
        check(sequence.cached_tokens == len(tokens), f"{sequence.cached_tokens} tokens were found")
        for i, block in enumerate(sequence.block_table()[:BLOCKS]):
            check(bool(np.all(memory[block] == 1 + i)), f"block {i} has other bytes")
    return b"".join(hashes)


def use_region(connection: kvtier.Connection, stored: bytes) -> None:
    """Loads the pool's blocks, and stores and loads some of its own."""
    fd = os.memfd_create("region")
    os.ftruncate(fd, 2 * BLOCKS * BLOCK_BYTES)
    rows = np.frombuffer(mmap.mmap(fd, 2 * BLOCKS * BLOCK_BYTES), np.uint8).reshape(2 * BLOCKS, -1)
    region = connection.open_region(RECORD, fd=fd, bytes=rows.size, blocks=len(rows))
    hashes = [stored[i : i + 32] for i in range(0, len(stored), 32)]
    end = region.wait(region.load(list(enumerate(hashes))))
    check(end.copied == BLOCKS, f"a region loaded {end.copied} of the pool's blocks: {end}")
    for i in range(BLOCKS):
        check(bool(np.all(rows[i] == 1 + i)), f"row {i} has other bytes")
    own = [bytes([50 + i]) * 32 for i in range(BLOCKS)]
    before = np.random.default_rng(2).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
    rows[:BLOCKS] = before
    end = region.wait(
        region.store_many(
            np.arange(BLOCKS), b"".join(own), [None, *own[:-1]], depths=np.arange(BLOCKS)
        )
    )
    check(end.copied == BLOCKS, f"a region stored {end.copied} blocks: {end}")
    end = region.wait(region.load([(BLOCKS + i, each) for i, each in enumerate(own)]))
    check(end.copied == BLOCKS, f"a region loaded {end.copied} of its blocks: {end}")
    check(bool(np.array_equal(rows[BLOCKS:], before)), "rows that a region stored have other bytes")
    region.close()
    os.close(fd)


def main() -> None:
    try:
        connection = kvtier.connect(sys.argv[1], request_timeout_ms=60_000)
    except kvtier.KvtierError as error:
        check("version_mismatch" in str(error), f"the connection ended with: {error}")
        print(f"refused: {error}")
        return
    with connection:
        use_region(connection, use_pool(connection))
        errors = connection.take_errors().errors
        check(errors == [], f"the daemon refused requests: {errors}")
    print("works")


if __name__ == "__main__":
    main()
