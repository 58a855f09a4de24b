# SPDX-License-Identifier: Apache-2.0
"""The answers about blocks for vLLM's scheduler, without a vLLM or a daemon."""

import enum
import unittest

from kvtier import Presence
from kvtier._link import LinkState
from kvtier.vllm.lookups import Lookups
from link_case import key


class Verdict(enum.Enum):
    """The states of one block: the daemon has it, has it not, or has not answered yet."""

    HIT = 0
    MISS = 1
    RETRY = 2


class LookupsCase(unittest.TestCase):
    def setUp(self):
        self.asked, self.counts, self.yields, self.now = [], [], [], 0.0
        self.state = LinkState.READY
        self.lookups = Lookups(
            self.asked.append,
            lambda: self.state,
            lambda outcome, count: self.counts.extend([outcome] * count),
            timeout_s=0.02,
            clock=lambda: self.now,
            yield_interpreter=lambda: self.yields.append(None),
        )

    def look_up(self, *numbers, request="r"):
        return [self._verdict(key(number), request) for number in numbers]

    def _verdict(self, one, request):
        hits, waiting = self.lookups.look_up_run([one], request)
        return Verdict.MISS if hits == 0 else Verdict.RETRY if waiting else Verdict.HIT

    def answer(self, *presence):
        self.lookups.receive((self.asked[-1], presence))


class LookupsTest(LookupsCase):
    def test_a_step_s_questions_are_one_and_answered_in_the_next(self):
        self.assertEqual(self.look_up(1, 2, 3), [Verdict.RETRY] * 3)
        self.assertEqual(self.asked, [])
        self.lookups.flush()
        self.assertEqual(self.asked, [[key(1), key(2), key(3)]])
        self.assertEqual(self.look_up(1), [Verdict.RETRY])
        self.lookups.flush()
        self.assertEqual(len(self.asked), 1)
        self.answer(Presence.HOST, Presence.DISK, Presence(0))
        self.assertEqual(self.look_up(1, 2, 3), [Verdict.HIT, Verdict.HIT, Verdict.MISS])
        self.assertEqual(self.counts, ["host", "disk", "miss"])

    def test_what_a_rebuilt_index_found_is_a_hit_on_disk(self):
        self.look_up(1, 2)
        self.lookups.flush()
        self.answer(Presence.DISK_UNVERIFIED, Presence(0))
        self.assertEqual(self.look_up(1, 2), [Verdict.HIT, Verdict.MISS])
        self.assertEqual(self.counts, ["disk", "miss"])
        self.assertEqual(self.lookups.are_on_disk([key(1)]), [True])

    def test_what_the_shared_store_has_is_a_hit_that_is_as_slow_as_a_disk(self):
        self.look_up(1, 2)
        self.lookups.flush()
        self.answer(Presence.COLD, Presence(0))
        self.assertEqual(self.look_up(1, 2), [Verdict.HIT, Verdict.MISS])
        self.assertEqual(self.lookups.are_on_disk([key(1)]), [True])
        self.assertTrue(self.lookups.is_hit(key(1)))

    def test_steps_make_way_for_the_answer_until_it_is_there(self):
        self.lookups.flush()
        self.assertEqual(len(self.yields), 0)
        self.look_up(1)
        self.lookups.flush()
        self.lookups.flush()
        self.assertEqual(len(self.yields), 2)
        self.answer(Presence.HOST)
        self.look_up(1)
        self.lookups.flush()
        self.assertEqual(len(self.yields), 2)

    def test_a_late_answer_is_a_miss_for_the_requests_that_waited(self):
        self.look_up(1)
        self.lookups.flush()
        self.now = 0.03
        self.assertEqual(self.look_up(1), [Verdict.MISS])
        self.answer(Presence.HOST)
        self.assertEqual(self.look_up(1), [Verdict.MISS])
        self.lookups.forget("r")
        self.assertEqual(self.look_up(1, request="next"), [Verdict.RETRY])
        self.assertEqual(self.counts, ["timeout"])

    def test_without_a_daemon_every_block_is_a_miss_at_once(self):
        self.look_up(1)
        self.lookups.flush()
        self.state = LinkState.DOWN
        self.assertEqual(self.look_up(1, 2), [Verdict.MISS] * 2)
        self.assertEqual(self.counts, ["unavailable"] * 2)
        self.lookups.flush()
        self.assertEqual(len(self.asked), 1)

    def test_an_answer_that_the_daemon_was_lost_is_a_miss(self):
        self.look_up(1)
        self.lookups.flush()
        self.lookups.receive((self.asked[-1], None))
        self.assertEqual(self.look_up(1), [Verdict.MISS])

    def test_a_block_that_could_not_be_loaded_is_a_miss_until_the_request_ends(self):
        self.look_up(1)
        self.lookups.flush()
        self.answer(Presence.HOST)
        self.assertEqual(self.look_up(1), [Verdict.HIT])
        self.lookups.refuse([key(1), key(99)])
        self.assertEqual(self.look_up(1), [Verdict.MISS])

    def test_requests_share_a_probe_and_nothing_is_kept_after_the_last(self):
        self.look_up(1, request="a")
        self.look_up(1, request="b")
        self.lookups.flush()
        self.assertEqual(self.asked, [[key(1)]])
        self.lookups.forget("a")
        self.answer(Presence.HOST)
        self.assertEqual(self.look_up(1, request="b"), [Verdict.HIT])
        self.lookups.forget("b")
        self.lookups.forget("b")
        self.answer(Presence.HOST)
        self.assertEqual(self.look_up(1, request="c"), [Verdict.RETRY])


if __name__ == "__main__":
    unittest.main()
