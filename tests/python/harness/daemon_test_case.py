# SPDX-License-Identifier: Apache-2.0
"""The base of tests that run a real daemon with small tiers in a directory of their own."""

from __future__ import annotations

import tempfile
import unittest

import numpy as np

import kvtier

from .private_daemon import BLOCK_BYTES, PrivateDaemon, settings

BLOCK_TOKENS = 16
# One block of it is BLOCK_BYTES.
RECORD = kvtier.ModelRecord(
    name="small",
    layers=2,
    kv_heads=2,
    k_head_dim=32,
    v_head_dim=32,
    dtype=kvtier.DType.FLOAT32,
    block_tokens=BLOCK_TOKENS,
)


class DaemonTestCase(unittest.TestCase):
    """Sizes of the tiers in blocks; 0 disk blocks: no disk tier."""

    pool_blocks = 64
    host_blocks = 128
    disk_blocks = 0
    device = "host"
    more_settings: tuple[str, ...] = ()

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="kvtier-python-")
        self.addCleanup(directory.cleanup)
        sizes = settings(self.pool_blocks, self.host_blocks, self.disk_blocks, self.device)
        self.daemon = PrivateDaemon(directory.name, [*sizes, *self.more_settings])
        self.addCleanup(self.daemon.kill)
        self.daemon.start()

    def connect(self, request_timeout_ms: int = 30_000) -> kvtier.Connection:
        """A connection that reconnects without pauses, closed after the test."""
        connection = kvtier.connect(
            self.daemon.socket,
            client_name="python test",
            request_timeout_ms=request_timeout_ms,
            reconnect_min_ms=0,
            reconnect_max_ms=0,
        )
        self.addCleanup(connection.close)
        return connection

    def attach(self, record: kvtier.ModelRecord = RECORD, device: int = 0) -> kvtier.Pool:
        """A pool over a connection of its own."""
        connection = self.connect()
        return connection.attach(connection.register_model(record), device)

    def commit_prefix(self, pool: kvtier.Pool, tokens: np.ndarray, fill: int) -> list[bytes]:
        """Commits the full blocks of `tokens`, block i filled with bytes of `fill` + i, and holds
        none of them. Returns their hashes."""
        hashes = pool.hash_blocks(tokens)[: len(tokens) // BLOCK_TOKENS]
        with pool.acquire(new_blocks=len(hashes)) as got:
            memory = pool.memory().block_bytes()
            for i, block in enumerate(got.new_blocks):
                memory[block.index] = fill + i
            entries = kvtier.chain_entries(hashes, got.new_blocks, BLOCK_TOKENS)
            self.assertEqual(pool.commit_and_wait(entries), [kvtier.Status.OK] * len(hashes))
        return hashes


class LatentTestCase(DaemonTestCase):
    """With the latent cache of a large model, whose blocks are 1.1 MiB."""

    more_settings = ("pool.bytes=4MiB", "host.bytes=32MiB", "cache.slab_bytes=8MiB")
    record = kvtier.ModelRecord("latent", 61, 1, 576, 0)


def prompt(blocks: int, seed: int = 0, extra_tokens: int = 0) -> np.ndarray:
    """Random token ids; equal seeds give equal prefixes."""
    count = blocks * BLOCK_TOKENS + extra_tokens
    return np.random.default_rng(seed).integers(0, 1 << 17, count, dtype=np.uint32)


__all__ = [
    "BLOCK_BYTES",
    "BLOCK_TOKENS",
    "RECORD",
    "DaemonTestCase",
    "LatentTestCase",
    "prompt",
]
