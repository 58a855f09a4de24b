# SPDX-License-Identifier: Apache-2.0
"""KvtierTier as vLLM's tiering manager calls it, with vLLM's classes and a region in memory."""

import mmap
import tempfile
import unittest
from unittest import mock

import numpy as np

from fake_region import FakeDaemon
from test_tier_unit import PATIENCE_S, ROW_BYTES, ROWS, engine, key, spec

try:
    from kvtier.vllm import tier
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext
    from vllm.v1.kv_offload.tiering.base import TransferJob
except ImportError as error:
    raise unittest.SkipTest(f"no vLLM: {error}") from error


class TierAdapterTest(unittest.TestCase):
    def setUp(self):
        self.daemon = FakeDaemon()
        file = tempfile.NamedTemporaryFile(dir="/dev/shm")
        self.addCleanup(file.close)
        file.truncate(ROWS * ROW_BYTES)
        memory = mmap.mmap(file.fileno(), ROWS * ROW_BYTES)
        self.rows = np.frombuffer(memory, np.uint8).reshape(ROWS, ROW_BYTES)
        for target, name, value in (
            (tier, "attach_regions", lambda *arguments: self.daemon.attach(self.rows)),
            (tier.model_identity, "find_engine_config", engine),
            (tier.model_identity, "hash_root", lambda: bytes(32)),
        ):
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.request = ReqContext("request")
        self.jobs = 0

    def make_tier(self, **options):
        options = {"lookup_timeout_ms": 1e3 * PATIENCE_S, **options}
        made = tier.KvtierTier(spec(), memoryview(self.rows), "KvtierTier", **options)
        self.addCleanup(made.shutdown)
        made.on_new_request(self.request)
        return made

    def look_up(self, the_tier, *numbers):
        """The verdicts, after as many steps as they take."""
        while True:
            results = [the_tier.lookup(key(number), self.request) for number in numbers]
            the_tier.on_schedule_end(ScheduleEndContext((), ()))
            if LookupResult.RETRY not in results:
                return results

    def transfer(self, submit, numbers, rows, is_load):
        self.jobs += 1
        keys = [key(number) for number in numbers]
        submit(TransferJob(self.jobs, keys, np.array(rows, np.int32), is_load, self.request))

    def store(self, the_tier, *numbers):
        self.look_up(the_tier, *numbers)  # as vLLM does; until then there may be no daemon yet
        self.transfer(the_tier.submit_store, numbers, numbers, False)
        (result,) = the_tier.get_finished_jobs()
        return result

    def load(self, the_tier, *numbers):
        self.transfer(the_tier.submit_load, numbers, numbers, True)
        (result,) = the_tier.get_finished_jobs()
        return result

    def counts(self, the_tier):
        stats = the_tier.get_stats()
        return {} if stats is None else stats.reduce()

    def test_blocks_are_found_and_loaded_by_another_engine(self):
        self.rows[1], self.rows[2] = 11, 22
        result = self.store(self.make_tier(), 1, 2)
        self.assertTrue(result.success)
        self.assertEqual(result.transfer_bytes, 2 * ROW_BYTES)
        self.rows[:] = 0
        other = self.make_tier()
        verdicts = self.look_up(other, 1, 2, 3)
        self.assertEqual(verdicts, [LookupResult.HIT, LookupResult.HIT, LookupResult.MISS])
        self.assertTrue(self.load(other, 1, 2).success)
        self.assertEqual((self.rows[1, 0], self.rows[2, -1]), (11, 22))

    def test_a_block_that_does_not_load_is_a_miss_for_the_requests_that_wait(self):
        the_tier = self.make_tier()
        self.store(the_tier, 1, 2)
        the_tier.on_request_finished(self.request)
        self.look_up(the_tier, 1, 2)
        self.daemon.blocks.pop(key(2)[:32])
        result = self.load(the_tier, 1, 2)
        self.assertFalse(result.success)
        self.assertEqual(list(result.successful_keys), [key(1)])
        self.assertEqual(self.look_up(the_tier, 1, 2), [LookupResult.HIT, LookupResult.MISS])

    def test_nothing_is_raised_when_the_daemon_is_lost(self):
        the_tier = self.make_tier()
        self.store(the_tier, 1)
        self.daemon.die()
        self.assertFalse(self.load(the_tier, 1).success)
        the_tier.on_request_finished(self.request)
        self.assertEqual(self.look_up(the_tier, 1), [LookupResult.MISS])
        self.transfer(the_tier.submit_store, [1], [1], False)
        (result,) = the_tier.get_finished_jobs()
        self.assertFalse(result.success)
        the_tier.drain_jobs()

    def test_draining_leaves_the_results_to_the_next_poll(self):
        the_tier = self.make_tier()
        self.look_up(the_tier, 1)
        self.transfer(the_tier.submit_store, [1], [1], False)
        the_tier.drain_jobs()
        self.assertEqual([result.job_id for result in the_tier.get_finished_jobs()], [1])

    def test_figures_are_told_once(self):
        the_tier = self.make_tier()
        self.store(the_tier, 1, 2)
        counts = self.counts(the_tier)
        self.assertEqual(counts["vllm:kvtier_tier_chunks:('store', 'copied')"], 2)
        self.assertEqual(counts["vllm:kvtier_tier_connected"], 1)
        self.assertEqual(self.counts(the_tier), {})
        names = set(tier.KvtierTier.build_metric_definitions({}))
        self.assertTrue({name.partition(":(")[0] for name in counts} <= names)

    def test_memory_that_cannot_be_shared_turns_the_tier_off(self):
        self.rows = np.zeros((ROWS, ROW_BYTES), np.uint8)
        with self.assertLogs("vllm.kvtier", "ERROR"):
            the_tier = self.make_tier()
            self.assertEqual(self.look_up(the_tier, 1), [LookupResult.MISS])

    def test_an_option_that_is_none_is_refused(self):
        for options, message in (
            ({"retention": "forever"}, '"extended" or "memory"'),
            ({"sockets": "x"}, "socket is meant"),
            ({"retry_min_ms": 0}, "retry_min_ms is 0"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.make_tier(**options)


if __name__ == "__main__":
    unittest.main()
