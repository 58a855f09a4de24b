# SPDX-License-Identifier: Apache-2.0
"""vLLM's jobs as transfers of a region, without vLLM and without a daemon."""

import os
import time
import unittest
from unittest import mock

import numpy as np

from kvtier import Presence, Retention
from kvtier._link import LinkState
from kvtier.vllm import transfers
from kvtier.vllm.rows import StoreRows, hash_of
from kvtier.vllm.transfers import Job, Transfers
from link_case import PATIENCE_S, LinkCase, key


def copied_keys(ended):
    return [key for i, key in enumerate(ended.job.keys) if i not in ended.failed]


class TransfersTest(LinkCase):
    def setUp(self):
        super().setUp()
        self.link = self.open_link()
        self.ask_until(self.link, [Presence(0)])
        self.transfers = Transfers(self.link, settle_s=0.01)

    def store(self, job, *numbers):
        keys = [key(number) for number in numbers]
        what = StoreRows(
            [hash_of(one) for one in keys],
            [None] * len(keys),
            np.full(len(keys), 32, np.uint16),
            np.zeros(len(keys), np.uint32),
            Retention.EXTENDED,
        )
        self.transfers.store(Job(job, False, keys), np.array(numbers, dtype=np.uint32), what)

    def load(self, job, *numbers, into):
        keys = [key(number) for number in numbers]
        hashes = [hash_of(one) for one in keys]
        self.transfers.load(Job(job, True, keys), np.array(into, dtype=np.uint32), hashes)

    def drain(self):
        """The jobs that have ended when no job is under way."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if ended := self.transfers.take_ended():
                return ended
            os.sched_yield()  # to the link's thread
        self.fail("the jobs do not end")

    def test_rows_come_back_as_they_were_stored(self):
        self.rows[1], self.rows[2] = 11, 22
        self.store(7, 1, 2)
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.failed, ended.skipped), (7, {}, 0))
        self.load(8, 2, 1, into=(4, 5))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(copied_keys(ended), [key(2), key(1)])
        self.assertEqual((self.rows[4, 0], self.rows[5, 0]), (22, 11))
        self.store(9, 1)
        self.assertEqual([ended.skipped for ended in self.transfers.take_ended()], [1])

    def test_loads_of_the_first_step_wait_until_the_region_is_open(self):
        """Otherwise the first request of an engine would compute blocks that the daemon has."""
        self.store(1, 1)
        too_early = [None, None, None]

        def attach():
            return too_early.pop() if too_early else self.daemon.attach(self.rows)

        self.transfers = Transfers(self.open_link(attach), settle_s=0)
        self.load(2, 1, into=(3,))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(copied_keys(ended), [key(1)])

    def test_loads_of_the_first_step_fail_if_there_is_no_daemon(self):
        self.daemon.reachable = False
        self.transfers = Transfers(self.open_link(), settle_s=0)
        self.load(2, 1, into=(3,))
        (ended,) = self.drain()
        self.assertEqual(ended.failed, {0: "unavailable"})

    def test_a_load_that_finds_the_daemon_gone_is_begun_by_the_next_one(self):
        """Or a worker that has not looked since the restart would compute what its scheduler was
        promised."""
        self.store(1, 1)
        self.transfers.take_ended()
        self.daemon.restart()
        self.load(2, 1, into=(3,))
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, copied_keys(ended)), (2, [key(1)]))

    def test_a_store_that_finds_the_daemon_gone_is_begun_by_the_next_one(self):
        self.daemon.restart()
        self.store(1, 1)
        (ended,) = self.drain()
        self.assertEqual((ended.job.number, copied_keys(ended)), (1, [key(1)]))
        self.assertEqual(set(self.daemon.blocks), {hash_of(key(1))})

    def test_stores_of_the_first_step_begin_when_the_region_is_open(self):
        too_early = [None, None, None]

        def attach():
            return too_early.pop() if too_early else self.daemon.attach(self.rows)

        self.transfers = Transfers(self.open_link(attach), settle_s=0)
        self.store(1, 1)
        (ended,) = self.drain()
        self.assertEqual(copied_keys(ended), [key(1)])

    def test_a_store_does_not_wait_for_ever_for_a_daemon_that_does_not_answer(self):
        self.transfers = Transfers(self.open_link(lambda: None), settle_s=0)
        self.store(1, 1)
        self.assertEqual(self.transfers.take_ended(), [])
        with mock.patch.object(transfers, "FIRST_CONNECT_S", 0.0):
            (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unavailable"})

    def test_a_job_is_reported_only_when_its_transfer_has_ended(self):
        self.daemon.region.hold = True
        self.store(1, 1)
        self.store(2, 2)
        self.assertEqual(self.transfers.take_ended(), [])
        self.daemon.region.release()
        self.assertEqual({ended.job.number for ended in self.transfers.take_ended()}, {1, 2})
        self.assertEqual(self.transfers.take_ended(), [])

    def test_jobs_beyond_what_a_daemon_takes_in_begin_when_others_have_ended(self):
        """Otherwise the call that sends one would wait for the daemon."""
        self.daemon.region.hold = True
        with mock.patch.object(transfers, "_MOST_UNDER_WAY", 150):
            for number in (1, 2, 3):
                self.store(number, number)
            self.load(4, 1, into=(5,))
            self.assertEqual(self.transfers.take_ended(), [])
            self.assertEqual(set(self.daemon.blocks), set())
            self.daemon.region.release()
            numbers = [ended.job.number for ended in self.drain() + self.drain()]
        self.assertEqual(numbers, [1, 2, 3, 4])

    def test_jobs_that_wait_for_others_in_vain_fail(self):
        self.daemon.region.hold = True
        with (
            mock.patch.object(transfers, "_MOST_UNDER_WAY", 1),
            mock.patch.object(transfers, "_PATIENCE_S", 0.0),
        ):
            self.store(1, 1)
            self.store(2, 2)
            self.load(3, 1, into=(5,))
            ended = self.transfers.take_ended()
        self.assertEqual([one.job.number for one in ended], [2, 3])
        self.assertEqual([one.failed for one in ended], [{0: "busy"}] * 2)

    def turn(self):
        """The engine gets other weights."""
        self.transfers.turn()
        self.link.reopen()

    def test_a_load_that_other_weights_overtake_fails_when_it_has_ended(self):
        self.store(1, 1)
        self.transfers.take_ended()
        old = self.daemon.region
        old.hold = True
        self.load(2, 1, into=(4,))
        self.turn()
        self.assertEqual(self.transfers.take_ended(), [])
        old.release()
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.failed), (2, {0: "old_epoch"}))

    def test_a_load_that_had_ended_before_the_weights_changed_fails_too(self):
        self.store(1, 1)
        self.load(2, 1, into=(4,))
        self.turn()
        ended = {one.job.number: one.failed for one in self.transfers.take_ended()}
        self.assertEqual(ended, {1: {}, 2: {0: "old_epoch"}})

    def test_a_store_that_was_begun_goes_on_where_it_was_begun(self):
        old = self.daemon.region
        old.hold = True
        self.store(1, 1)
        self.turn()
        self.load(2, 9, into=(4,))  # waits for the region of the new weights
        self.assertIsNot(self.daemon.region, old)
        old.release()
        ended = {one.job.number: one.failed for one in self.transfers.take_ended()}
        self.assertEqual(ended, {1: {}, 2: {0: "unknown"}})

    def test_a_store_that_has_not_begun_when_the_weights_change_never_does(self):
        self.transfers = Transfers(self.open_link(lambda: None), settle_s=0)
        self.store(1, 1)
        self.turn()
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "old_epoch"})
        self.assertEqual(self.daemon.blocks, {})

    def test_of_a_load_what_could_be_copied_is_kept(self):
        self.store(1, 1)
        self.transfers.take_ended()
        self.load(2, 9, 1, into=(3, 4))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unknown"})
        self.assertEqual(copied_keys(ended), [key(1)])

    def test_jobs_under_way_when_the_daemon_dies_fail_once(self):
        self.daemon.region.hold = True
        self.store(1, 1, 2)
        self.daemon.die()
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unavailable", 1: "unavailable"})
        self.store(2, 1)
        (ended,) = self.drain()
        self.assertEqual((ended.job.number, ended.failed), (2, {0: "unavailable"}))
        self.assertIs(self.link.state, LinkState.DOWN)

    def test_a_load_that_was_cut_off_is_reported_when_the_daemon_has_ended(self):
        self.transfers = Transfers(self.link, settle_s=600)
        self.daemon.region.hold = True
        self.load(1, 1, into=(3,))
        self.daemon.die()
        self.assertEqual(self.transfers.take_ended(), [])
        self.daemon.region.ended = True
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unavailable"})
        self.assertFalse(self.daemon.region.closed)

    def test_a_load_that_was_cut_off_is_not_reported_at_once(self):
        """Or its row would be used while the daemon may still write it."""
        self.store(1, 1)
        self.transfers.take_ended()
        self.daemon.region.hold = True
        self.load(2, 1, into=(4,))
        self.daemon.die()
        self.assertEqual(self.transfers.take_ended(), [])
        (ended,) = self.drain()
        self.assertEqual((ended.job.number, ended.failed), (2, {0: "unavailable"}))

    def test_a_refused_transfer_is_a_failed_job(self):
        def refuse(*_):
            raise ValueError("bad rows")

        self.daemon.region.load_many = refuse
        with self.assertLogs("vllm.kvtier", "WARNING"):
            self.load(1, 1, into=(0,))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "refused"})


if __name__ == "__main__":
    unittest.main()
