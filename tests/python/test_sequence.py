# SPDX-License-Identifier: Apache-2.0
"""Sequences: hashing, block tables, slots, forks and copy-on-write, on a real daemon."""

import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, RECORD, DaemonTestCase, prompt


def compute(sequence, tokens, first=0):
    """Puts the stand-in for KV into the slots of tokens first.. : each element is the token."""
    slots = sequence.slot_mapping(first)
    memory = sequence.memory()
    values = np.asarray(tokens[first:], np.float32)[:, None, None]
    for layer in range(RECORD.layers):
        kv = memory.layer(layer)
        kv.k[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS] = values + layer
        kv.v[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS] = -values - layer


def holds(sequence, tokens):
    """Whether the KV of all `tokens` is what `compute` would have put there."""
    slots = sequence.slot_mapping(0, len(tokens))
    values = np.asarray(tokens, np.float32)[:, None, None]
    for layer in range(RECORD.layers):
        kv = sequence.memory().layer(layer)
        k = kv.k[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS]
        v = kv.v[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS]
        if not ((k == values + layer).all() and (v == -values - layer).all()):
            return False
    return True


class SequenceTest(DaemonTestCase):
    def run_through(self, pool, tokens, **options):
        """Opens, computes the missing tokens, finishes and closes. Returns the cached tokens."""
        with pool.open_sequence(tokens, **options) as sequence:
            self.assertTrue(sequence.wait())
            cached = sequence.cached_tokens
            compute(sequence, tokens, cached)
            self.assertTrue(holds(sequence, tokens))
            sequence.mark_computed(len(tokens))
            sequence.finish()
        return cached

    def test_what_one_sequence_computed_the_next_finds(self):
        tokens = prompt(blocks=5, extra_tokens=7)
        self.assertEqual(self.run_through(self.attach(), tokens), 0)
        # One token is always left to compute.
        self.assertEqual(self.run_through(self.attach(), tokens), len(tokens) - 1)
        self.assertEqual(self.run_through(self.attach(), tokens, leave_tokens=0), len(tokens))

    def test_a_shared_prefix_is_found_up_to_where_prompts_part(self):
        pool = self.attach()
        tokens = prompt(blocks=6)
        self.run_through(pool, tokens)
        other = np.concatenate([tokens[: 3 * BLOCK_TOKENS], prompt(blocks=2, seed=1)])
        self.assertEqual(self.run_through(pool, other), 3 * BLOCK_TOKENS)

    def test_the_slot_mapping_is_the_block_table_token_by_token(self):
        tokens = prompt(blocks=3, extra_tokens=2)
        with self.attach().open_sequence(tokens) as sequence:
            sequence.wait()
            table = sequence.block_table()
            self.assertEqual((table.dtype, len(table)), (np.int32, 4))
            position = np.arange(len(tokens))
            expected = table[position // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS
            np.testing.assert_array_equal(sequence.slot_mapping(), expected + position % 16)
            np.testing.assert_array_equal(
                sequence.slot_mapping(20, 5), sequence.slot_mapping()[20:25]
            )
            for beyond in ((0, len(tokens) + 1), (-1, 1), (len(tokens) + 1, 0)):
                with self.assertRaises(kvtier.InvalidArgumentError):
                    sequence.slot_mapping(*beyond)

    def test_tokens_are_appended_one_by_one(self):
        pool = self.attach()
        tokens = list(prompt(blocks=3))
        with pool.open_sequence(tokens[:10], reserve_tokens=20) as sequence:
            sequence.wait()
            compute(sequence, tokens[:10])
            sequence.mark_computed(10)
            for count in range(11, len(tokens) + 1):
                sequence.append(tokens[count - 1 : count])
                compute(sequence, tokens[:count], count - 1)
                sequence.mark_computed(count)
            self.assertEqual(len(sequence), len(tokens))
            self.assertEqual(sequence.info().computed_tokens, len(tokens))
            self.assertTrue(holds(sequence, tokens))
        self.assertEqual(self.run_through(pool, tokens, leave_tokens=0), len(tokens))

    def test_appending_to_a_committed_partial_block_copies_it_first(self):
        pool = self.attach()
        tokens = list(prompt(blocks=1, extra_tokens=4))
        with pool.open_sequence(tokens) as sequence:
            sequence.wait()
            compute(sequence, tokens)
            sequence.mark_computed(len(tokens))
            sequence.finish()
            before = sequence.block_table()
            sequence.append([5])
            compute(sequence, [*tokens, 5], len(tokens))
            after = sequence.block_table()
            self.assertEqual(before[0], after[0])
            self.assertNotEqual(before[1], after[1])
            self.assertTrue(holds(sequence, [*tokens, 5]))
        self.assertEqual(self.run_through(pool, tokens, leave_tokens=0), len(tokens))

    def test_a_fork_shares_full_blocks_and_copies_the_last(self):
        pool = self.attach()
        tokens = list(prompt(blocks=2, extra_tokens=3))
        with pool.open_sequence(tokens) as sequence:
            sequence.wait()
            compute(sequence, tokens)
            sequence.mark_computed(len(tokens))
            with sequence.fork() as fork:
                mine, others = sequence.block_table(), fork.block_table()
                np.testing.assert_array_equal(mine[:2], others[:2])
                self.assertNotEqual(mine[2], others[2])
                fork.append([1])
                compute(fork, [*tokens, 1], len(tokens))
                sequence.append([2])
                compute(sequence, [*tokens, 2], len(tokens))
                self.assertTrue(holds(fork, [*tokens, 1]))
                self.assertTrue(holds(sequence, [*tokens, 2]))

    def test_a_sequence_larger_than_the_pool_is_refused_and_holds_nothing(self):
        pool = self.attach()
        with self.assertRaises(kvtier.ResourceExhaustedError):
            pool.open_sequence(prompt(blocks=self.pool_blocks + 1))
        self.assertEqual(pool.connection.stats().session_references, 0)

    def test_a_partial_block_with_tokens_to_come_is_not_committed(self):
        with self.attach().open_sequence([1, 2, 3]) as sequence:
            sequence.wait()
            sequence.mark_computed(2)
            with self.assertRaises(kvtier.WrongStateError) as raised:
                sequence.finish()
            self.assertEqual(raised.exception.reason, "tokens_not_computed")

    def test_more_tokens_than_there_are_cannot_be_computed(self):
        with self.attach().open_sequence([1, 2, 3]) as sequence:
            sequence.wait()
            for tokens in (4, -1, 1 << 64):
                with self.assertRaises(kvtier.InvalidArgumentError):
                    sequence.mark_computed(tokens)

    def test_info_says_what_was_found_where(self):
        pool = self.attach()
        tokens = prompt(blocks=3)
        self.run_through(pool, tokens)
        with pool.open_sequence([*tokens, 1]) as sequence:
            sequence.wait()
            info = sequence.info()
            self.assertEqual((info.tokens, info.cached_tokens, info.blocks), (49, 48, 4))
            self.assertEqual((info.pool_tokens, info.host_tokens, info.disk_tokens), (48, 0, 0))
            self.assertTrue(info.ready)
            self.assertEqual(info.attachment, pool.info().attachment)


if __name__ == "__main__":
    unittest.main()
