# SPDX-License-Identifier: Apache-2.0
"""Blocks whose bytes follow from their hashes, and a client that checks every byte it is given."""

from __future__ import annotations

import collections
import functools
import hashlib
import random
from collections.abc import Callable, Sequence

import numpy as np

import kvtier

BLOCK_TOKENS = 16
#: A block is 4 KiB, and 8 KiB with its header.
RECORD = kvtier.ModelRecord(
    name="campaign",
    layers=2,
    kv_heads=1,
    k_head_dim=32,
    v_head_dim=32,
    dtype=kvtier.DType.FLOAT16,
    block_tokens=BLOCK_TOKENS,
)
BLOCK_BYTES = 4096
SLOT_BYTES = 8192
_REQUEST_TIMEOUT_MS = 120_000
#: Blocks held at once; every pool of a campaign has more.
_HELD_AT_ONCE = 32


def block_hash(*key: object) -> bytes:
    return hashlib.sha256(" ".join(map(str, key)).encode()).digest()


@functools.lru_cache(maxsize=None)
def _places(byte_count: int) -> np.ndarray:
    return np.arange(byte_count // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def bytes_of(block: bytes, byte_count: int = BLOCK_BYTES) -> np.ndarray:
    """The bytes that a block of this hash must have: every eight bytes depend on hash and position.
    """
    start = int.from_bytes(block[:8], "little")
    words = _places(byte_count) + np.uint64(start)
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    return words.view(np.uint8)


def conversations(seed: int, count: int = 48, longest: int = 24) -> list[list[bytes]]:
    """Hashes of prompts of 1 to `longest` blocks."""
    return [
        [block_hash(seed, number, place) for place in range(1 + number * 7 % longest)]
        for number in range(count)
    ]


class Player:
    """A client: acquires, checks, fills the blocks that it misses, releases. Counts its findings in
    `counts`; `wrong` says where bytes were not as they must be. One thread."""

    def __init__(self, socket: str, name: str) -> None:
        """Raises KvtierError."""
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.errors: list[str] = []
        self.miss = kvtier.Miss.NONE
        #: Called when blocks have been loaded and, again, when their memory has been looked up: a
        #: client that takes its time there sees more of what happens between.
        self.before_reading: Callable[[], None] = lambda: None
        self.connection = kvtier.connect(
            socket,
            client_name=name,
            connect_timeout_ms=_REQUEST_TIMEOUT_MS,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            reconnect_min_ms=0,
            reconnect_max_ms=2,
            wait_for_daemon=True,  # it may be dead at this moment, too
        )
        self.pool = self.connection.attach(self.connection.register_model(RECORD))

    def close(self) -> None:
        self.connection.close()

    def play(self, hashes: Sequence[bytes]) -> int:
        """One request for a prompt, whose missing blocks it fills. Returns how many leading
        blocks were hits with the right bytes, after which `miss` says why there were no more; -1
        if the daemon was lost meanwhile."""
        self.counts["requests"] += 1
        try:
            with self.pool.acquire(hashes) as got:
                hits = self._check(hashes, got)
                self.miss = got.miss
                if 0 <= hits < len(hashes):
                    self._fill(hashes, hits)
        except (kvtier.UnavailableError, kvtier.StaleHandleError):
            hits = -1
        except kvtier.TimedOutError:
            # Counted, and judged by those who read it: a busy machine is slow, too.
            self.counts["requests timed out"] += 1
            hits = -1
        except kvtier.ResourceExhaustedError:
            self.counts["requests without room"] += 1
            hits = -1
        except kvtier.KvtierError as error:
            self._note(self.errors, f"acquire: {error}")
            hits = -1
        self.counts["requests without a daemon"] += hits < 0
        self._take_errors()
        return hits

    def read(self, hashes: Sequence[bytes]) -> list[bool]:
        """Acquires each block by itself, fills nothing, and says which were hits. Bytes that are
        wrong go to `wrong`. Raises UnavailableError (the daemon was lost)."""
        found = []
        for first in range(0, len(hashes), _HELD_AT_ONCE):
            some = hashes[first : first + _HELD_AT_ONCE]
            results = [self.pool.acquire([block]) for block in some]
            for block, got in zip(some, results):
                hits = self._check([block], got)
                if hits < 0:
                    raise kvtier.UnavailableError(kvtier.Status.UNAVAILABLE, "connection_lost")
                found.append(hits == 1)
                got.release()
        return found

    def fill(self, hashes: Sequence[bytes]) -> None:
        """Makes blocks of which no tier has a copy, each a prompt of its own. Raises KvtierError."""
        presence = self.pool.lookup(hashes)
        missing = [block for block, where in zip(hashes, presence) if not where]
        for first in range(0, len(missing), _HELD_AT_ONCE):
            some = missing[first : first + _HELD_AT_ONCE]
            with self.pool.acquire(new_blocks=len(some)) as got:
                memory = self.pool.memory().block_bytes()
                for block, index in zip(some, got.new_blocks.indices):
                    memory[index] = bytes_of(block)
                self.pool.commit(
                    kvtier.CommitEntry(place, block, None, 0, BLOCK_TOKENS)
                    for place, block in zip(got.new_blocks, some)
                )
        self.finish()

    def finish(self) -> None:
        """Waits until all requests so far have been done."""
        try:
            self.connection.flush()
        except kvtier.KvtierError as error:
            self._note(self.errors, f"flush: {error}")
        self._take_errors()

    def report(self) -> dict:
        return {"counts": dict(self.counts), "wrong": self.wrong, "errors": self.errors}

    def _check(self, hashes: Sequence[bytes], got: kvtier.AcquireResult) -> int:
        if not got.available:
            return -1
        got.wait()
        if not got.available:
            return -1
        if not got.hits:
            return 0
        blocks, tiers = got.hits.blocks, got.hits.sources
        self.before_reading()
        wrong = {}
        memory = self.pool.memory().block_bytes()
        self.before_reading()
        for place, index in enumerate(blocks.indices):
            differs = memory[index] != bytes_of(hashes[place])
            if differs.any():
                wrong[place] = (
                    f"block {hashes[place].hex()[:16]} from {kvtier.Tier(tiers[place]).name}: "
                    f"{int(differs.sum())} bytes, the first at {int(differs.argmax())}"
                )
        # Bytes read from a block count only if the block was held all the while.
        whole = self.pool.check(blocks)
        if not whole:
            lost = [place for place in wrong if not self.pool.check(blocks[place : place + 1])]
            # Where all was lost, the memory that was read may be another pool's.
            if self.pool.info().attachment == blocks[0].attachment:
                self.counts["lost blocks with other bytes"] += len(lost)
            for place in lost:
                del wrong[place]
        for text in wrong.values():
            self._note(self.wrong, text)
        self.counts["wrong blocks"] += len(wrong)
        if not whole:
            return -1
        self.counts["bytes checked"] += BLOCK_BYTES * len(blocks)
        for tier in tiers:
            self.counts[f"hits in {kvtier.Tier(tier).name.lower()}"] += 1
        return len(blocks) - len(wrong)

    def _fill(self, hashes: Sequence[bytes], first: int) -> None:
        with self.pool.acquire(new_blocks=len(hashes) - first) as got:
            if not got.available:
                return
            memory = self.pool.memory().block_bytes()
            if not self.pool.check(got.new_blocks):
                return
            for block, index in zip(hashes[first:], got.new_blocks.indices):
                memory[index] = bytes_of(block)
            entries = [
                kvtier.CommitEntry(
                    block, hashes[place], hashes[place - 1] if place else None, place, BLOCK_TOKENS
                )
                for place, block in enumerate(got.new_blocks, first)
            ]
            self.pool.commit(entries)

    def _take_errors(self) -> None:
        for error in self.connection.take_errors().errors:
            # A load ends with its daemon, and its blocks are not held by the next one.
            expected = error.reason == "lost_at_restart"
            self.counts["blocks lost at a restart"] += expected
            if error.status != kvtier.Status.ALREADY_EXISTS and not expected:
                self._note(self.errors, f"{error.status.name}: {error.reason}")

    def _note(self, notes: list[str], text: str) -> None:
        if len(notes) < 20:
            notes.append(text)


def random_prefix(prompts: Sequence[Sequence[bytes]], random_numbers: random.Random) -> list[bytes]:
    prompt = random_numbers.choice(prompts)
    return list(prompt[: random_numbers.randint(1, len(prompt))])
