# SPDX-License-Identifier: Apache-2.0
"""Sequences go on over the daemon's death where its pools outlive it."""

import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, RECORD, DaemonTestCase, prompt
from kvtier import Status


class ResumeTest(DaemonTestCase):
    more_settings = ("restart.keep_for=1min",)

    def restart(self):
        self.daemon.kill()
        self.daemon.start()

    def patient_pool(self):
        connection = kvtier.connect(self.daemon.socket, resume_wait_ms=60_000)
        self.addCleanup(connection.close)
        return connection.attach(connection.register_model(RECORD))

    def test_a_sequence_in_its_middle_goes_on_and_computes_nothing_again(self):
        pool = self.patient_pool()
        tokens = prompt(3, extra_tokens=5)
        with pool.open_sequence(tokens) as sequence:
            memory = sequence.memory().block_bytes()
            table = list(sequence.block_table())
            for place, block in enumerate(table):
                memory[block] = 20 + place
            sequence.mark_computed(len(tokens))
            self.restart()
            self.assertTrue(sequence.check())
            self.assertEqual(list(sequence.block_table()), table)
            self.assertEqual(sequence.info().computed_tokens, len(tokens))
            for place, block in enumerate(table):
                self.assertTrue(np.all(memory[block] == 20 + place))
            sequence.append(prompt(1, seed=5))
            sequence.mark_computed(len(tokens) + BLOCK_TOKENS)
            pool.connection.ping()
            with pool.open_sequence(tokens) as other:
                self.assertEqual(other.cached_tokens, 3 * BLOCK_TOKENS)
        self.assertEqual(pool.connection.take_errors().errors, [])

    def test_blocks_that_are_held_stay_the_same(self):
        pool = self.patient_pool()
        got = pool.acquire(new_blocks=2)
        self.restart()
        self.assertTrue(pool.check(got.new_blocks))
        hashes = [bytes([i]) * 32 for i in range(2)]
        entries = kvtier.chain_entries(hashes, got.new_blocks, BLOCK_TOKENS)
        self.assertEqual(pool.commit_and_wait(entries), [Status.OK] * 2)
        blocks = got.blocks
        got.release()
        self.assertFalse(pool.check(blocks))
        self.assertEqual(pool.connection.take_errors().errors, [])

    def test_blocks_of_all_attachments_stay_whichever_is_asked_first(self):
        first = self.patient_pool()
        second = first.connection.attach(first.connection.register_model(RECORD))
        of_first = first.acquire(new_blocks=1)
        of_second = second.acquire(new_blocks=1)
        self.restart()
        self.assertTrue(first.check(of_first.blocks))
        rest = first.acquire(new_blocks=first.info().blocks - 2)
        held = set(of_second.new_blocks.indices.tolist())
        self.assertFalse(held & set(rest.new_blocks.indices.tolist()))
        self.assertTrue(second.check(of_second.blocks))
        for got in (rest, of_first, of_second):
            got.release()
        self.assertEqual(first.connection.take_errors().errors, [])

    def test_without_patience_what_is_held_is_lost(self):
        connection = kvtier.connect(self.daemon.socket, resume_wait_ms=0, reconnect_min_ms=0)
        self.addCleanup(connection.close)
        pool = connection.attach(connection.register_model(RECORD))
        got = pool.acquire(new_blocks=1)
        with pool.open_sequence(prompt(1)) as sequence:
            self.restart()
            self.assertFalse(sequence.check())
            self.assertFalse(pool.check(got.blocks))

    def test_what_came_with_a_load_that_was_lost_is_given_back(self):
        class LosesLoads:
            """A pool whose session was resumed, without its loads."""

            closed = False

            def __init__(self):
                self.released = []

            def wait(self, load, up_to=None, timeout_ms=None):
                return kvtier.LoadProgress(0, True, kvtier.Miss.UNAVAILABLE)

            def release(self, blocks):
                self.released += list(blocks)

        found = self.patient_pool().acquire(new_blocks=2)
        pool = LosesLoads()
        got = kvtier.AcquireResult(
            pool, b"", kvtier.Miss.NONE, new_blocks=found.new_blocks, load=kvtier.Load(1, 1)
        )
        got.wait()
        self.assertFalse(got.available)
        self.assertEqual(len(got.blocks), 0)
        self.assertEqual(pool.released, list(found.new_blocks))
        found.release()


if __name__ == "__main__":
    unittest.main()
