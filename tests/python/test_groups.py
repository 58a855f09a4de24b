# SPDX-License-Identifier: Apache-2.0
"""Models whose layers form groups: engines with the groups of real hybrid models, in small, whose
blocks sink through all tiers, are evicted and lose their daemon."""

import hashlib
import random
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import DaemonTestCase
from kvtier import GroupRequest, HitRule, KvGroup, ModelRecord, Status

FULL, WINDOW, STATE = HitRule.ALL, HitRule.TRAILING, HitRule.STATE


def keys_and_values(layers, block_tokens=16, **more):
    return KvGroup(layers, 1, 8, 8, block_tokens=block_tokens, **more)


# How the layers of real models form groups; windows and distances are a sixteenth of theirs.
LAYOUTS = {
    # Five layers with windows of 1,024 for one with full attention.
    "gemma-3": [
        keys_and_values(1),
        keys_and_values(5, hit_rule=WINDOW, window_tokens=64),
    ],
    # Windows of 128 and full attention in turns.
    "gpt-oss": [
        keys_and_values(2),
        keys_and_values(2, hit_rule=WINDOW, window_tokens=8),
    ],
    # Three layers of linear attention for one with full attention.
    "qwen3-next": [
        keys_and_values(1),
        KvGroup(3, block_tokens=32, hit_rule=STATE, layer_bytes=1024),
    ],
    # Latent attention, the same in all ranks, and an indexer whose keys have inline scales.
    "deepseek-v3.2": [
        KvGroup(2, 1, 72, 0, block_tokens=16, replicated=True),
        KvGroup(
            2, 1, 16, 0, kvtier.DType.FLOAT8_E4M3, block_tokens=64, scale_bytes=4, replicated=True
        ),
    ],
}


def needed_blocks(group, tokens):
    """The definition of the hit rules: positions of the blocks that a prefix needs."""
    end = tokens // group.block_tokens
    if group.hit_rule == STATE:
        return range(end - 1, end) if end else range(0)
    if group.hit_rule == WINDOW:
        return range(max(0, tokens - group.window_tokens) // group.block_tokens, end)
    return range(end)


def restorable(groups, presence):
    """The definition of what can be restored, the longest prefix first."""
    reach = min(len(bits) * group.block_tokens for group, bits in zip(groups, presence))
    return [
        tokens
        for tokens in range(reach, 0, -1)
        if all(tokens % group.block_tokens == 0 for group in groups)
        and all(
            bits[i]
            for group, bits in zip(groups, presence)
            for i in needed_blocks(group, tokens)
        )
    ]


class Engine:
    """Computes sequences and keeps its results; every block holds its own hash, repeated."""

    def __init__(self, test, connection, groups, seed):
        self.test, self.random = test, random.Random(seed)
        self.groups = groups
        record = ModelRecord("hybrid", groups=groups)
        model = connection.register_model(record)
        share = test.pool_bytes // len(groups)
        self.pools = [
            connection.attach(model, 0, share, group=i) for i in range(len(groups))
        ]
        self.restored_tokens = 0

    def prompt(self):
        """Sequences share prefixes: each is a walk down a narrow tree."""
        length = self.random.randrange(64, 513, 64)
        words = [self.random.choice((0, 0, 0, 1)) for _ in range(length // 64)]
        return [(i // 64, words[i // 64], i) for i in range(length)]

    def hashes(self, tokens):
        """The hashes of each group's blocks."""
        digest, ends = hashlib.sha256(), {}
        for i, token in enumerate(tokens):
            digest.update(repr(token).encode())
            ends[i + 1] = digest.copy()
        result = []
        for number, group in enumerate(self.groups):
            blocks = range(group.block_tokens, len(tokens) + 1, group.block_tokens)
            result.append(
                [hashlib.sha256(ends[end].digest() + bytes([number])).digest() for end in blocks]
            )
        return result

    def requests(self, hashes):
        return [GroupRequest(pool, one) for pool, one in zip(self.pools, hashes)]

    def run(self, tokens):
        """Restores the cached blocks, checks their bytes, and computes and commits the rest."""
        hashes = self.hashes(tokens)
        presence = [pool.lookup(one) for pool, one in zip(self.pools, hashes)]
        results = kvtier.acquire_groups(self.requests(hashes))
        try:
            cached_tokens = self.check_restored(hashes, presence, results)
        finally:
            for result in results:
                result.release()
        self.restored_tokens += cached_tokens
        for number, group in enumerate(self.groups):
            self.compute(number, hashes[number], cached_tokens // group.block_tokens)

    def check_restored(self, hashes, presence, results):
        """Returns the length of the prefix that was restored."""
        group, result = self.groups[0], results[0]
        tokens = (result.first_hit + len(result.hits)) * group.block_tokens
        if not result.hits:
            self.test.assertFalse(any(one.hits for one in results))
            return 0
        self.test.assertIn(tokens, restorable(self.groups, presence))
        for number, (group, result) in enumerate(zip(self.groups, results)):
            needed = needed_blocks(group, tokens)
            self.test.assertEqual(result.first_hit, needed.start)
            self.test.assertEqual(len(result.hits), len(needed))
        complete = True
        for number, result in enumerate(results):
            wanted = len(result.hits)
            result.wait()
            complete &= len(result.hits) == wanted
            memory = self.pools[number].memory().block_bytes()
            for i, hit in enumerate(result.hits, start=result.first_hit):
                held = memory[hit.block.index]
                expected = np.frombuffer(hashes[number][i], np.uint8)
                np.testing.assert_array_equal(held, np.resize(expected, held.shape))
        return tokens if complete else 0

    def compute(self, number, hashes, first):
        pool, group = self.pools[number], self.groups[number]
        if group.hit_rule == STATE:
            # States are large: engines keep some of them.
            positions = [i for i in range(first, len(hashes)) if self.random.random() < 0.5]
        else:
            positions = list(range(first, len(hashes)))
        if not positions:
            return
        with pool.acquire(new_blocks=len(positions)) as got:
            memory = pool.memory().block_bytes()
            entries = []
            for i, block in zip(positions, got.new_blocks):
                expected = np.frombuffer(hashes[i], np.uint8)
                memory[block.index] = np.resize(expected, memory.shape[1])
                parent = hashes[i - 1] if i > 0 else None
                entries.append(
                    kvtier.CommitEntry(block, hashes[i], parent, i, group.block_tokens)
                )
            for status in pool.commit_and_wait(entries):
                self.test.assertIn(status, (Status.OK, Status.ALREADY_EXISTS))


class GroupsTest(DaemonTestCase):
    pool_bytes = 384 * 1024
    more_settings = (
        f"pool.bytes={pool_bytes}B",
        "host.bytes=1MiB",
        "disk.bytes=4MiB",
    )

    def replay(self, name, rounds):
        connection = self.connect()
        engine = Engine(self, connection, LAYOUTS[name], seed=7)
        for i in range(rounds):
            engine.run(engine.prompt())
            if i % 5 == 4:
                self.evict_some(engine)
            if i % 40 == 39:
                self.daemon.settle()
                self.daemon.kill()
                self.daemon.start()
                connection = self.connect()
                engine = Engine(self, connection, LAYOUTS[name], seed=i)
        return engine

    def evict_some(self, engine):
        """Takes random blocks out of random tiers, as an operator or a full tier would."""
        hashes = engine.hashes(engine.prompt())
        number = engine.random.randrange(len(hashes))
        for block in engine.random.sample(hashes[number], k=min(2, len(hashes[number]))):
            request = {"op": "evict", "hashes": [block.hex()]}
            tier = engine.random.choice(("pool", "host", "disk", None))
            if tier is not None:
                request["tier"] = tier
            kvtier.admin(request, self.daemon.admin_socket)

    def check_layout(self, name):
        engine = self.replay(name, rounds=100)
        self.assertGreater(engine.restored_tokens, 0)

    def test_windows_beside_full_attention(self):
        self.check_layout("gemma-3")

    def test_windows_shorter_than_a_block(self):
        self.check_layout("gpt-oss")

    def test_states_beside_full_attention(self):
        self.check_layout("qwen3-next")

    def test_a_latent_cache_with_an_indexer_of_larger_blocks(self):
        self.check_layout("deepseek-v3.2")

    def test_one_group_must_not_be_asked_alone(self):
        engine = Engine(self, self.connect(), LAYOUTS["gemma-3"], seed=1)
        hashes = engine.hashes(engine.prompt())
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "group_missing"):
            engine.pools[0].acquire(hashes[0])
        with self.assertRaisesRegex(kvtier.UnsupportedError, "sequence_of_groups"):
            engine.pools[0].open_sequence(np.arange(64))

    def test_without_a_daemon_everything_is_a_miss(self):
        engine = Engine(self, self.connect(), LAYOUTS["qwen3-next"], seed=1)
        hashes = engine.hashes(engine.prompt())
        self.daemon.kill()
        for result in kvtier.acquire_groups(engine.requests(hashes)):
            self.assertFalse(result.available)
        self.assertFalse(any(engine.pools[0].lookup(hashes[0])))


if __name__ == "__main__":
    unittest.main()
