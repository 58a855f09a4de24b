# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector in a worker, without vLLM."""

import itertools
import unittest

import numpy as np

from kvtier import Retention
from kvtier.vllm.connector_scheduler import BlockList, StepPlan
from kvtier.vllm.connector_worker import WorkerSide
from kvtier.vllm.rows import key_of
from kvtier.vllm.transfers import Transfers
from test_connector_unit import BLOCK_TOKENS, hash_of
from link_case import PATIENCE_S, LinkCase


def block_list(*numbers, name="r", number=0):
    """A store of the engine's blocks, with hashes of the same numbers."""
    hashes = [hash_of(one) for one in numbers]
    parents, depths = [None] * len(numbers), [0] * len(numbers)
    return BlockList(name, 0, list(numbers), hashes, parents, depths, number)


class WorkerSideTest(LinkCase):
    def setUp(self):
        super().setUp()
        self.link = self.open_link()
        self.ask_until(self.link, [0])
        self.region = self.daemon.region
        transfers = Transfers(self.link, settle_s=0)
        self.side = WorkerSide(transfers, [BLOCK_TOKENS], Retention.EXTENDED)

    blocks = staticmethod(block_list)

    def loads(self, *lists):
        return StepPlan(loads={lists[0].request: list(lists)})

    def loaded(self):
        self.side.poll()
        return self.side.take_loaded()

    def test_stores_are_reported_by_their_numbers(self):
        self.region.hold = True
        self.side.begin(StepPlan(stores=[self.blocks(1, number=5), self.blocks(2, 3, number=6)]))
        self.side.poll()
        self.assertEqual(self.side.take_stored(), {})
        self.region.release()
        self.side.poll()
        self.assertEqual(self.side.take_stored(), {5: 1, 6: 1})
        self.assertEqual(self.side.take_stored(), {})
        self.assertEqual(self.side.counts["store", "copied"], 3)

    def test_blocks_have_the_engine_s_retention_unless_their_request_wishes_another(self):
        self.side.begin(StepPlan(stores=[self.blocks(1, 2)]))
        self.assertEqual(self.region.retention, Retention.EXTENDED)
        store = self.blocks(3, 4)
        store.retentions[1] = Retention.MEMORY
        self.side.begin(StepPlan(stores=[store]))
        expected = [Retention.EXTENDED, Retention.MEMORY]
        self.assertEqual(self.region.retention.tolist(), expected)

    def wait(self, pause, timeout_s=PATIENCE_S, begin_ready=lambda: None):
        """Waits for a load; pause: instead of a pause."""
        now = itertools.count()
        transfers = Transfers(self.link, settle_s=0)
        self.side = WorkerSide(
            transfers, [BLOCK_TOKENS], Retention.EXTENDED, None, lambda: next(now), pause
        )
        self.region.hold = True
        self.side.begin(self.loads(self.blocks(1)))
        self.side.wait_for_load(timeout_s, begin_ready)
        return self.side.take_loaded()[0]

    def test_it_waits_for_a_load_that_is_about_to_end(self):
        self.assertEqual(self.wait(self.region.release), {"r"})

    def test_it_waits_for_a_load_only_so_long(self):
        pauses = []
        self.assertEqual(self.wait(lambda: pauses.append(None), timeout_s=5), set())
        self.assertEqual(len(pauses), 4)
        self.assertTrue(self.side.is_loading())

    def test_what_may_not_begin_yet_is_begun_while_it_waits(self):
        begun = []
        self.wait(lambda: None, timeout_s=5, begin_ready=lambda: begun.append(None))
        self.assertEqual(len(begun), 4)

    def test_a_load_brings_the_bytes_that_were_stored(self):
        self.rows[1], self.rows[2] = 11, 22
        self.side.begin(StepPlan(stores=[self.blocks(1, 2)]))
        self.rows[:] = 0
        self.side.begin(self.loads(self.blocks(2, 1)))
        self.assertEqual(self.loaded(), ({"r"}, set()))
        self.assertEqual(self.side.take_failed_blocks(), set())
        np.testing.assert_array_equal(self.rows[:3, 0], [0, 11, 22])

    def test_a_request_is_loaded_when_all_its_groups_are(self):
        self.side.begin(StepPlan(stores=[self.blocks(1, 2)]))
        self.region.hold = True
        self.side.begin(self.loads(self.blocks(1), self.blocks(2)))
        self.assertEqual(self.loaded(), (set(), set()))
        self.region.release()
        self.assertEqual(self.loaded(), ({"r"}, set()))
        self.side.begin(StepPlan(loads={"needs nothing": []}))
        self.assertEqual(self.loaded(), ({"needs nothing"}, set()))

    def test_blocks_that_did_not_load_are_told_with_their_request(self):
        self.side.begin(StepPlan(stores=[self.blocks(1)]))
        self.side.begin(self.loads(self.blocks(1, 5)))
        self.assertEqual(self.loaded(), ({"r"}, {"r"}))
        self.assertEqual(self.side.take_failed_blocks(), {5})
        self.assertEqual(self.side.take_failed_keys(), {key_of(hash_of(5), 0)})
        self.assertEqual(self.side.take_failed_blocks(), set())
        self.assertEqual(self.side.take_failed_keys(), set())

    def test_a_failure_in_one_group_is_told_with_the_last(self):
        self.side.begin(StepPlan(stores=[self.blocks(1)]))
        self.region.hold = True
        self.side.begin(self.loads(self.blocks(5), self.blocks(1)))
        self.region.hold = False
        self.side.begin(self.loads(self.blocks(1, name="other")))
        self.assertEqual(self.loaded(), ({"other"}, set()))
        self.region.release()
        self.assertEqual(self.loaded(), ({"r"}, {"r"}))

    def test_without_a_daemon_loads_fail_and_stores_end(self):
        self.daemon.die()
        plan = StepPlan(loads={"l": [self.blocks(1, name="l")]}, stores=[self.blocks(2, number=7)])
        self.side.begin(plan)
        self.assertEqual(self.loaded(), ({"l"}, {"l"}))
        self.assertEqual(self.side.take_failed_blocks(), {1})
        self.assertEqual(self.side.take_stored(), {7: 1})


if __name__ == "__main__":
    unittest.main()
