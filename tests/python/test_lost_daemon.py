# SPDX-License-Identifier: Apache-2.0
"""A lost daemon means misses, not exceptions; the client comes back by itself."""

import dataclasses
import os
import tempfile
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, RECORD, DaemonTestCase, prompt
from kvtier import Hint, Miss, Presence, Status


class NoDaemonTest(unittest.TestCase):
    def test_connecting_without_a_daemon_says_so(self):
        with tempfile.TemporaryDirectory() as directory:
            socket = os.path.join(directory, "absent.sock")
            with self.assertRaises(kvtier.UnavailableError) as raised:
                kvtier.connect(socket)
            self.assertIsInstance(raised.exception, ConnectionError)
            with kvtier.connect(socket, wait_for_daemon=True) as connection:
                self.assertFalse(connection.is_connected())
                with self.assertRaises(kvtier.UnavailableError):
                    connection.ping()


class EarlyEngineTest(DaemonTestCase):
    """An engine that starts before its daemon."""

    def open_pool(self):
        self.daemon.kill()
        connection = kvtier.connect(
            self.daemon.socket, wait_for_daemon=True, reconnect_min_ms=1, reconnect_max_ms=5
        )
        self.addCleanup(connection.close)
        return connection.attach(connection.register_model(RECORD))

    def test_its_pool_misses_until_the_daemon_is_there_and_then_is_one(self):
        pool = self.open_pool()
        with pool.open_sequence(prompt(3)) as sequence:
            self.assertFalse(sequence.available)
        self.assertEqual(pool.acquire([bytes(32)], new_blocks=1).miss, Miss.UNAVAILABLE)
        self.assertEqual(pool.lookup([bytes(32)]), [Presence(0)])
        self.assertEqual(pool.prefetch([bytes(32)]), 0)
        with self.assertRaises(kvtier.UnavailableError):
            pool.layer(0)
        self.daemon.start()
        while not pool.connection.is_connected():
            pool.lookup([bytes(32)])
        with pool.open_sequence(prompt(3)) as sequence:
            self.assertTrue(sequence.available)
            self.assertEqual(len(pool.layer(0).k), pool.info().blocks)

    def test_blocks_that_it_never_had_are_released_and_committed_nowhere(self):
        pool = self.open_pool()
        block = kvtier.Block(0, 0, 1)
        self.assertEqual(pool.release_and_wait([block]), [Status.STALE_HANDLE])
        entries = kvtier.chain_entries([bytes(32)], [block], BLOCK_TOKENS)
        self.assertFalse(pool.commit(entries))
        self.assertEqual(pool.commit_and_wait(entries), [Status.UNAVAILABLE])
        with self.assertRaises(kvtier.UnavailableError):
            pool.info()

    def test_mistakes_are_told_at_once(self):
        self.daemon.kill()
        with kvtier.connect(self.daemon.socket, wait_for_daemon=True) as connection:
            model = connection.register_model(RECORD)
            with self.assertRaises(kvtier.NotFoundError):
                connection.attach(model, group=1)
            with self.assertRaises(kvtier.InvalidArgumentError):
                connection.register_model(dataclasses.replace(RECORD, layers=0))


class LostDaemonTest(DaemonTestCase):
    def test_without_a_daemon_every_call_about_blocks_is_a_miss(self):
        pool = self.attach()
        got = pool.acquire(new_blocks=2)
        hashes = [bytes([i]) * 32 for i in range(2)]
        entries = kvtier.chain_entries(hashes, got.new_blocks, BLOCK_TOKENS)
        self.daemon.kill()
        self.assertFalse(pool.connection.is_connected())

        missed = pool.acquire(hashes, new_blocks=5)
        self.assertFalse(missed.available)
        self.assertEqual((missed.hits, missed.new_blocks, missed.load), ([], [], None))
        self.assertEqual(missed.miss, Miss.UNAVAILABLE)
        missed.release()
        self.assertEqual(pool.lookup(hashes), [Presence(0)] * 2)
        self.assertEqual(pool.prefetch(hashes), 0)
        self.assertEqual(pool.pin(hashes, ttl_ms=1000), 0)
        self.assertEqual(pool.hint(hashes, Hint.CLOSED), 0)
        self.assertFalse(pool.wants_tokens())
        pool.give_tokens(hashes[:1], range(BLOCK_TOKENS))
        self.assertFalse(pool.commit(entries))
        self.assertEqual(pool.commit_and_wait(entries), [Status.UNAVAILABLE] * 2)
        self.assertEqual(pool.release_and_wait(got.new_blocks), [Status.UNAVAILABLE] * 2)
        self.assertFalse(pool.connection.flush())
        got.release()

    def test_a_sequence_opened_without_a_daemon_is_a_miss_to_its_end(self):
        pool = self.attach()
        with pool.open_sequence([1, 2, 3]) as sequence:
            self.assertTrue(sequence.available)
        self.daemon.kill()
        with pool.open_sequence([1, 2, 3]) as sequence:
            self.assertFalse(sequence.available)
            self.assertTrue(sequence.wait(timeout_ms=0))
            self.assertEqual((sequence.cached_tokens, len(sequence)), (0, 3))
            self.assertEqual(sequence.info().miss, Miss.UNAVAILABLE)
            self.assertEqual(sequence.info().blocks, 0)
            self.assertEqual(sequence.block_table().size, 0)
            self.assertEqual((sequence.slot_mapping().size, sequence.slot_mapping(1).size), (0, 0))
            self.assertEqual(sequence.block_handles(), [])
            with self.assertRaises(kvtier.UnavailableError):
                sequence.memory()
            sequence.append([4])
            with self.assertRaises(kvtier.InvalidArgumentError):
                sequence.mark_computed(5)
            sequence.mark_computed(4)
            sequence.finish()
            with sequence.fork() as fork:
                self.assertEqual((fork.available, len(fork)), (False, 4))
            self.assertTrue(sequence.check())
            # It does not turn into another one when the daemon comes back.
            self.daemon.start()
            self.assertFalse(sequence.available)
            self.assertTrue(pool.open_sequence([1, 2, 3]).available)
        self.assertTrue(sequence.closed)
        with self.assertRaises(kvtier.InvalidArgumentError):
            sequence.append([5])

    def test_after_a_restart_the_pool_works_on_and_old_handles_are_stale(self):
        pool = self.attach()
        before = pool.info()
        got = pool.acquire(new_blocks=1)
        entries = kvtier.chain_entries([bytes(32)], got.new_blocks, BLOCK_TOKENS)
        self.daemon.kill()
        self.daemon.start()
        hashes = self.commit_prefix(pool, prompt(blocks=2), fill=1)
        after = pool.info()
        self.assertNotEqual(before.generation, after.generation)
        self.assertGreater(after.attachment, before.attachment)
        with pool.acquire(hashes) as found:
            self.assertEqual(len(found.hits), 2)
        self.assertFalse(pool.commit(entries))
        self.assertEqual(pool.release_and_wait(got.new_blocks), [Status.STALE_HANDLE])
        lost = pool.wait(kvtier.Load(1, before.attachment))
        self.assertEqual(lost, kvtier.LoadProgress(0, True, Miss.UNAVAILABLE))

    def test_arrays_of_the_lost_pool_stay_readable_and_new_ones_show_the_new(self):
        pool = self.attach()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            old = pool.memory()
            old.block_bytes()[block] = 99
            self.daemon.kill()
            self.daemon.start()
            self.assertTrue(pool.acquire([bytes(32)]).available)
        new = pool.memory()
        self.assertIsNot(old, new)
        self.assertTrue((old.block_bytes()[block] == 99).all())
        self.assertTrue((new.block_bytes()[block] == 0).all())

    def test_a_lost_sequence_says_so_and_another_can_be_opened(self):
        pool = self.attach()
        tokens = prompt(blocks=2, extra_tokens=3)
        sequence = pool.open_sequence(tokens)
        sequence.wait()
        self.assertTrue(sequence.check())
        self.daemon.kill()
        self.assertFalse(sequence.check())
        self.assertFalse(sequence.mark_computed(16))
        self.assertFalse(sequence.finish())
        self.assertEqual(sequence.hint(Hint.CLOSED), 0)
        for call in (lambda: sequence.append([1]), lambda: sequence.fork()):
            with self.assertRaises(kvtier.StaleHandleError) as raised:
                call()
            self.assertEqual(raised.exception.reason, "connection_lost")
        sequence.close()
        self.daemon.start()
        with pool.open_sequence(tokens) as again:
            self.assertTrue(again.wait())
            self.assertEqual(again.cached_tokens, 0)

    def test_a_sequence_that_is_lost_before_its_wait_has_ended_is_a_miss(self):
        pool = self.attach()
        tokens = prompt(blocks=2, extra_tokens=3)
        self.commit_prefix(pool, tokens, fill=1)
        with pool.open_sequence(tokens) as sequence:
            self.assertEqual(sequence.cached_tokens, 2 * BLOCK_TOKENS)
            self.daemon.kill()
            self.assertTrue(sequence.wait())
            self.assertFalse(sequence.available)
            self.assertEqual((sequence.cached_tokens, len(sequence)), (0, len(tokens)))
            self.assertEqual((sequence.info().blocks, sequence.block_table().size), (0, 0))
            self.assertEqual((sequence.slot_mapping().size, sequence.block_handles()), (0, []))
            self.assertFalse(sequence.mark_computed(len(tokens)))

    def test_slots_that_were_given_before_the_loss_are_private_until_the_end(self):
        pool = self.attach()
        with pool.open_sequence(prompt(blocks=2)) as sequence:
            sequence.wait()
            self.daemon.kill()
            self.assertEqual(sequence.slot_mapping().size, 2 * BLOCK_TOKENS)
            self.assertFalse(sequence.check())
            self.assertEqual(sequence.slot_mapping().size, 0)

    def test_a_sequences_memory_is_never_that_of_a_later_pool(self):
        pool = self.attach()
        with pool.open_sequence([1, 2, 3]) as early, pool.open_sequence([4, 5, 6]) as late:
            memory = early.memory()
            early_block = early.block_table()[0]
            memory.block_bytes()[early_block] = 55
            self.daemon.kill()
            self.daemon.start()
            self.assertTrue(pool.acquire([bytes(32)]).available)
            self.assertIs(early.memory(), memory)
            self.assertTrue(np.all(early.memory().block_bytes()[early_block] == 55))
            with self.assertRaises(kvtier.StaleHandleError):
                late.memory()

    def test_a_forked_child_is_refused_and_takes_nothing_from_its_parent(self):
        pool = self.attach()
        sequence = pool.open_sequence([1, 2, 3])
        child = os.fork()
        if child == 0:
            refused = False
            try:
                pool.info()
            except kvtier.WrongStateError as error:
                refused = error.reason == "forked"
            pool.connection.close()
            os._exit(0 if refused else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertTrue(sequence.check())
        self.assertTrue(sequence.wait())
        self.assertGreater(pool.connection.ping(), 0)


if __name__ == "__main__":
    unittest.main()
