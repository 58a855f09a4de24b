# SPDX-License-Identifier: Apache-2.0
"""Acquire, commit, release and asking about blocks, on a real daemon."""

import dataclasses
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_BYTES, BLOCK_TOKENS, RECORD, DaemonTestCase, prompt
from kvtier import Hint, Miss, Presence, Status, Tier


class BlocksTest(DaemonTestCase):
    def test_an_unknown_prefix_is_a_miss_and_the_private_blocks_are_there(self):
        pool = self.attach()
        tokens = prompt(blocks=3)
        with pool.acquire(tokens=tokens, new_blocks=3) as got:
            self.assertTrue(got.available)
            self.assertEqual(got.hits, [])
            self.assertEqual(len(got.new_blocks), 3)
            self.assertEqual(got.miss, Miss.UNKNOWN)
            self.assertIsNone(got.load)
            for progress in (pool.wait(got.load), pool.wait_layers(got.load, 1)):
                self.assertTrue(progress.finished)
                self.assertEqual(progress.miss, Miss.NONE)
            self.assertEqual(got.hashes, kvtier.hash_blocks(tokens))

    def test_what_one_connection_commits_another_finds_with_its_bytes(self):
        hashes = self.commit_prefix(self.attach(), prompt(blocks=4), fill=10)
        pool = self.attach()
        with pool.acquire(hashes) as got:
            self.assertEqual([hit.tokens for hit in got.hits], [BLOCK_TOKENS] * 4)
            self.assertEqual({hit.tier for hit in got.hits}, {Tier.POOL})
            self.assertEqual(got.miss, Miss.NONE)
            self.assertEqual(got.cached_tokens, 4 * BLOCK_TOKENS)
            held = pool.memory().block_bytes()[got.block_table()]
            np.testing.assert_array_equal(held, np.repeat([[10], [11], [12], [13]], BLOCK_BYTES, 1))

    def test_hits_and_blocks_are_arrays_that_read_like_lists(self):
        hashes = self.commit_prefix(self.attach(), prompt(blocks=4), fill=1)
        pool = self.attach()
        with pool.acquire(hashes, new_blocks=2) as got:
            hits, blocks = got.hits, got.blocks
            self.assertEqual((len(hits), len(got.new_blocks), len(blocks)), (4, 2, 6))
            for array, kind in (
                (hits.indices, np.int32),
                (hits.tokens, np.uint16),
                (hits.sources, np.uint8),
                (got.new_blocks.indices, np.int32),
            ):
                self.assertEqual(array.dtype, kind)
            self.assertEqual(hits.indices.tolist(), [hit.block.index for hit in hits])
            self.assertEqual(hits.sources.tolist(), [Tier.POOL] * 4)
            self.assertIsInstance(hits[0], kvtier.Hit)
            self.assertIsInstance(hits[0].block, kvtier.Block)
            self.assertIs(hits[-1].tier, Tier.POOL)
            self.assertEqual(hits[1:3], list(hits)[1:3])
            self.assertEqual([*hits.blocks, *got.new_blocks], blocks)
            self.assertEqual(got.block_table().tolist(), blocks.indices.tolist())
            with self.assertRaises(IndexError):
                hits[4]
            # Handles that were kept one by one are as good as the arrays.
            kept = list(got.new_blocks)
            got.new_blocks = kvtier.Blocks()
            self.assertEqual(pool.release_and_wait(kept), [Status.OK] * 2)
        self.assertEqual(pool.release_and_wait(hits), [Status.NOT_OWNER] * 4)

    def test_a_pool_that_is_closed_gives_back_what_the_connection_holds_there(self):
        connection = self.connect()
        first = connection.attach(connection.register_model(RECORD), pool_bytes=32 * BLOCK_BYTES)
        other = dataclasses.replace(RECORD, name="other")
        second = connection.attach(connection.register_model(other), pool_bytes=16 * BLOCK_BYTES)
        hashes = self.commit_prefix(first, prompt(blocks=4), fill=1)
        got = first.acquire(hashes, new_blocks=3)
        kept = second.acquire(new_blocks=2)
        self.assertEqual(connection.stats().session_references, 4 + 3 + 2)
        first.close()
        self.assertEqual(connection.stats().session_references, 2)
        with self.assertRaises(kvtier.InvalidArgumentError):
            first.release(list(got.new_blocks))
        self.assertEqual(second.release_and_wait(kept.blocks), [Status.OK] * 2)
        again = connection.attach(first.model)
        self.assertEqual(connection.stats().pool_blocks_private, 0)
        with again.acquire(hashes, new_blocks=28) as found:
            self.assertEqual(len(found.hits), 4)
            self.assertEqual(len(found.new_blocks), 28)

    def test_values_that_do_not_fit_their_field_are_refused_by_name(self):
        pool, block = self.attach(), kvtier.Block(0, 0, 0)
        for reason, call in (
            ("bad_index", lambda: pool.release([kvtier.Block(1 << 32, 0, 0)])),
            ("bad_attachment", lambda: pool.release([block, kvtier.Block(0, 0, -1)])),
            (
                "bad_tokens",
                lambda: pool.commit([kvtier.CommitEntry(block, bytes(32), None, 0, -1)]),
            ),
            ("bad_hash", lambda: pool.commit([kvtier.CommitEntry(block, b"", None, 0, 1)])),
            ("bad_hash", lambda: pool.commit([kvtier.CommitEntry(block, bytes(32), b"", 1, 1)])),
            (
                "bad_checksum",
                lambda: pool.commit(
                    [kvtier.CommitEntry(block, bytes(32), None, 0, 1, checksum=b"short")]
                ),
            ),
        ):
            with self.subTest(reason), self.assertRaises(kvtier.InvalidArgumentError) as raised:
                call()
            self.assertEqual(raised.exception.reason, reason)

    def test_tokens_hash_as_the_caller_would_hash_them_and_their_partial_block_is_found(self):
        pool = self.attach()
        tokens = prompt(blocks=2, extra_tokens=5)
        full_and_partial = pool.hash_blocks(tokens)
        with pool.acquire(new_blocks=3) as got:
            entries = kvtier.chain_entries(full_and_partial[:2], got.new_blocks[:2], BLOCK_TOKENS)
            last_hash, parent = full_and_partial[2], full_and_partial[1]
            partial = kvtier.CommitEntry(got.new_blocks[2], last_hash, parent, 2, 5)
            self.assertTrue(pool.commit([*entries, partial]))
            self.assertTrue(pool.connection.flush())
        with pool.acquire(tokens=tokens) as got:
            self.assertEqual([hit.tokens for hit in got.hits], [16, 16, 5])
            self.assertEqual(got.partial_block, 0)

    def test_a_lora_and_a_salt_separate_equal_tokens(self):
        pool = self.attach()
        tokens = prompt(blocks=2)
        self.commit_prefix(pool, tokens, fill=1)
        for identity in (
            kvtier.PromptIdentity(lora="sql"),
            kvtier.PromptIdentity(cache_salt="42"),
            kvtier.PromptIdentity(seed="other"),
            kvtier.PromptIdentity(items=[kvtier.MultimodalItem("ab" * 32, 3, 4)]),
        ):
            with self.subTest(identity), pool.acquire(tokens=tokens, identity=identity) as got:
                self.assertEqual(got.hits, [])

    def test_models_that_differ_in_their_recipe_alone_share_nothing(self):
        connection = self.connect()
        pool, other = (
            connection.attach(connection.register_model(record), pool_bytes=1 << 18)
            for record in (RECORD, dataclasses.replace(RECORD, hash_recipe="vllm-sha256-cbor/1"))
        )
        hashes = self.commit_prefix(pool, prompt(blocks=2), fill=1)
        self.assertEqual(pool.lookup(hashes), [Presence.POOL] * 2)
        self.assertEqual(other.lookup(hashes), [Presence(0)] * 2)
        with other.acquire(hashes) as got:
            self.assertEqual(got.hits, [])

    def test_tokens_are_hashed_by_the_models_recipe(self):
        pool = self.attach(dataclasses.replace(RECORD, hash_recipe="sglang/1"))
        tokens = prompt(blocks=2)
        hashes = self.commit_prefix(pool, tokens, fill=1)
        self.assertEqual(hashes, kvtier.hash_blocks(tokens, recipe="sglang/1"))
        with pool.acquire(tokens=tokens) as got:
            self.assertEqual(len(got.hits), 2)
        with pool.open_sequence(tokens, leave_tokens=0) as sequence:
            self.assertEqual(sequence.cached_tokens, 32)

    def test_a_block_committed_twice_is_kept_once(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=1), fill=1)
        with pool.acquire(new_blocks=1) as got:
            entries = kvtier.chain_entries(hashes, got.new_blocks, BLOCK_TOKENS)
            self.assertEqual(pool.commit_and_wait(entries), [Status.ALREADY_EXISTS])

    def test_a_commit_that_was_not_waited_for_reports_its_error_later(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=1), fill=1)
        with pool.acquire(hashes) as got:
            entry = kvtier.CommitEntry(got.hits[0].block, bytes(32), None, 0, BLOCK_TOKENS)
            self.assertTrue(pool.commit([entry]))
            self.assertTrue(pool.connection.flush())
            errors, dropped = pool.connection.take_errors()
            self.assertEqual(dropped, 0)
            self.assertEqual([error.block for error in errors], [got.hits[0].block])
            self.assertEqual([error.status for error in errors], [Status.WRONG_STATE])
            self.assertEqual(errors[0].reason, "not_private")

    def test_more_blocks_than_the_pool_has_is_an_error_that_holds_nothing(self):
        pool = self.attach()
        with self.assertRaises(kvtier.ResourceExhaustedError) as raised:
            pool.acquire(new_blocks=self.pool_blocks + 1)
        self.assertEqual(raised.exception.reason, "pool_full")
        self.assertEqual(pool.connection.stats().session_references, 0)

    def test_a_block_released_twice_is_refused_the_second_time(self):
        pool = self.attach()
        got = pool.acquire(new_blocks=2)
        self.assertEqual(pool.release_and_wait(got.new_blocks), [Status.OK, Status.OK])
        self.assertEqual(pool.release_and_wait(got.new_blocks), [Status.STALE_HANDLE] * 2)

    def test_lookup_says_which_tiers_hold_a_block(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=2), fill=1)
        presence = pool.lookup([*hashes, bytes(32)])
        self.assertTrue(all(one & Presence.POOL for one in presence[:2]))
        self.assertEqual(presence[2], Presence(0))

    def test_prefetch_and_pin_count_the_blocks_that_are_cached(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=3), fill=1)
        self.assertEqual(pool.prefetch(b"".join(hashes)), 3)
        self.assertEqual(pool.pin([*hashes, bytes(32)], ttl_ms=60_000), 3)
        self.assertEqual(pool.pin(hashes, ttl_ms=0), 3)

    def test_hint_counts_the_blocks_of_which_it_was_taken(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=3), fill=1)
        self.assertEqual(pool.hint(hashes, Hint.RETURNS, 60_000), 3)
        self.assertEqual(pool.hint([*hashes, bytes(32)], Hint.CLOSED), 3)
        self.assertEqual(pool.hint(hashes, Hint.ONCE), 3)

    def test_a_daemon_that_keeps_no_token_ids_says_so_and_passes_over_them(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=2), fill=1)
        self.assertFalse(pool.wants_tokens())
        pool.give_tokens(hashes, prompt(blocks=2))
        pool.give_tokens(hashes, [1, 2, 3], counts=[1, 2])
        for arguments in (([1, 2, 3],), ([1, 2, 3], [1, 1]), ([1, 2, 3], [3]), ([1, 70_000], [1, 70_000])):
            with self.assertRaisesRegex(kvtier.InvalidArgumentError, "bad_token_count"):
                pool.give_tokens(hashes, *arguments)
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "bad_tokens"):
            pool.give_tokens(hashes, [-1, 2], [1, 1])
        self.assertEqual(pool.connection.take_errors().errors, [])

    def test_stats_count_what_was_asked_and_what_is_held(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=2), fill=1)
        with pool.acquire([*hashes, bytes(32)], new_blocks=4):
            stats = pool.connection.stats()
            self.assertEqual((stats.blocks_asked, stats.blocks_pool, stats.blocks_miss), (3, 2, 1))
            self.assertEqual(stats.pool_blocks_total, self.pool_blocks)
            self.assertEqual(stats.pool_blocks_private, 4)
            self.assertEqual(stats.session_references, 6)

    def test_asking_for_nothing_gives_nothing(self):
        pool = self.attach()
        with pool.acquire([]) as got:
            self.assertEqual((got.hits, got.new_blocks, got.hashes), ([], [], []))
        self.assertEqual(pool.lookup([]), [])
        self.assertTrue(pool.commit([]))
        pool.release([])

    def test_arguments_that_cannot_be_meant_are_refused(self):
        pool = self.attach()
        for call in (
            lambda: pool.acquire([bytes(32)], tokens=[1]),
            lambda: pool.acquire([b"short"]),
            lambda: pool.acquire(b"short"),
            lambda: pool.acquire([], new_blocks=-1),
            lambda: pool.acquire(tokens=[1.5]),
            lambda: pool.acquire(tokens=[-1]),
            lambda: pool.acquire(tokens=[1 << 32]),
            lambda: pool.acquire(tokens=np.zeros((2, 2), np.uint32)),
            lambda: pool.pin([bytes(32)], ttl_ms=-1),
            lambda: pool.hint([bytes(32)], Hint.CLOSED, 1),
            lambda: pool.hint([bytes(32)], 9),
            lambda: pool.wait(kvtier.Load(1, 1), timeout_ms=-1),
            lambda: pool.wait(kvtier.Load(1, 1), up_to=-1),
            lambda: pool.release([kvtier.Block(-1, 0, 0)]),
            lambda: pool.connection.attach(pool.model, device=-1),
            lambda: pool.connection.attach(pool.model, pool_bytes=1 << 64),
            lambda: pool.acquire(tokens=[1], identity=kvtier.PromptIdentity(lora="a\0b")),
        ):
            with self.assertRaises(kvtier.InvalidArgumentError):
                call()


if __name__ == "__main__":
    unittest.main()
