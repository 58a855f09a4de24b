# SPDX-License-Identifier: Apache-2.0
"""Wishes of requests for their blocks, from vLLM's scheduler to the daemon, without vLLM."""

import collections
import types
import unittest

from kvtier import Hint, Retention
from kvtier._link import Attachment
from kvtier.errors import LimitExceededError, Status
from kvtier.vllm.connector_scheduler import SchedulerSide
from kvtier.vllm.wishes import Wishes, WishTeller, wishes_of
from test_connector_unit import BLOCK_TOKENS, SchedulerCase, hash_of, request

DAY_S = 86_400


def wishing(hints, session=None, **more):
    return types.SimpleNamespace(
        kv_transfer_params={"kvtier": hints}, session_id=session, kv_hints=None, **more
    )


class WishesOfTest(unittest.TestCase):
    def setUp(self):
        self.counts = collections.Counter()

    def read(self, hints, session=None, keep_most_s=DAY_S):
        return wishes_of(wishing(hints, session), keep_most_s, self.count)

    def count(self, outcome, number):
        self.counts[outcome] += number

    def test_all_of_them_are_read(self):
        self.assertEqual(
            self.read({"retention": "memory", "keep": [[60, 0.5]], "keep_s": 9, "once": True}, "s"),
            Wishes(Retention.MEMORY, ((60, 0.5), (9, 1.0)), Hint.ONCE, 0, "s"),
        )
        self.assertEqual(
            self.read({"returns_in_ms": 30_000.0}), Wishes(hint=Hint.RETURNS, returns_in_ms=30_000)
        )
        self.assertEqual(self.read({"closed": True}).hint, Hint.CLOSED)
        self.assertEqual(self.counts, {})

    def test_a_value_that_is_not_understood_is_no_wish_and_is_counted(self):
        for hints in (
            "memory",
            {"retention": "disk"},
            {"retention": ["memory"]},
            {"once": "yes"},
            {"closed": 1},
            {"returns_in_ms": -1},
            {"returns_in_ms": float("nan")},
            {"returns_in_ms": True},
            {"keep_s": "3600"},
            {"keep_s": -5},
            {"keep_s": 10**400},
            {"keep": 5},
            {"keep": [[60]]},
            {"keep": [[60, 1.5]]},
            {"keep": [[1, 1]] * 17},
        ):
            with self.subTest(hints=hints):
                self.counts.clear()
                self.assertEqual(self.read(hints), Wishes())
                self.assertEqual(self.counts, {"ignored": 1})

    def test_nothing_is_kept_longer_than_the_engine_allows(self):
        self.assertEqual(self.read({"keep_s": 100}, keep_most_s=60).keep, ((60, 1.0),))
        self.assertEqual(self.counts, {"keep_clipped": 1})
        self.assertEqual(self.read({"keep_s": 100}, keep_most_s=0).keep, ())

    def test_requests_without_wishes_have_none(self):
        for one in (
            types.SimpleNamespace(),
            types.SimpleNamespace(kv_transfer_params=None, session_id=None, kv_hints=None),
            types.SimpleNamespace(kv_transfer_params={"do_remote_decode": True}),
        ):
            self.assertFalse(wishes_of(one, DAY_S, self.count))
        self.assertEqual(self.counts, {})

    def test_vllm_s_own_hints_are_wishes_too(self):
        def action(kind, **payload):
            return types.SimpleNamespace(action_type=kind, payload=payload)

        def read(*actions):
            hints = types.SimpleNamespace(actions=list(actions))
            return wishes_of(types.SimpleNamespace(kv_hints=hints), DAY_S, self.count)

        self.assertEqual(read(action("retain", ttl_s=60)).keep, ((60, 1.0),))
        self.assertEqual(read(action("demote"), action("prefetch")).hint, Hint.CLOSED)
        self.assertFalse(read(action("teleport")))
        self.assertEqual(self.counts, {"unknown_action:teleport": 1})


class FakeRegion:
    """Keeps the calls that it gets."""

    def __init__(self):
        self.calls = []
        self.pins_left = 1_000_000

    def pin(self, hashes, ttl_ms):
        if len(hashes) > self.pins_left:
            raise LimitExceededError(Status.LIMIT_EXCEEDED, "pin_limit")
        self.calls.append(("pin", list(hashes), ttl_ms))
        return len(hashes)

    def hint(self, hashes, hint, returns_in_ms):
        self.calls.append((hint.name, list(hashes), returns_in_ms))
        return len(hashes)


class WishTellerTest(SchedulerCase):
    """A scheduler whose requests compute all of their blocks."""

    def setUp(self):
        super().setUp()
        self.region, self.counts = FakeRegion(), collections.Counter()
        self.attachment = Attachment([self.region], lambda: None, lambda: True)
        self.teller = WishTeller(DAY_S, lambda call: call(self.attachment), self.count)
        self.side = SchedulerSide(self.lookups, self.groups, wishes=self.teller)
        self.side.bind(self.manager)

    def count(self, outcome, number):
        self.counts[outcome] += number

    def test_unknown_actions_are_counted_by_name_as_long_as_there_are_few(self):
        names = [*(f"action_{i}" for i in range(40)), "action_0", 'a"b\n', "x" * 1000]
        for name in names:
            action = types.SimpleNamespace(action_type=name, payload={})
            hints = types.SimpleNamespace(actions=[action])
            self.assertFalse(self.teller.of(types.SimpleNamespace(kv_hints=hints)))
        self.assertEqual(self.counts["unknown_action:action_0"], 2)
        self.assertEqual(self.counts["unknown_action:(others)"], 26)
        self.assertEqual(len(self.counts), 17)

    def run_request(self, hints, name="r", blocks=4, first=1, session=None, generated=0):
        """A request of so many blocks, the last of which are generated, up to its end. Returns the
        stores of its blocks."""
        one = request(blocks * BLOCK_TOKENS, name, first)
        one.num_prompt_tokens = (blocks - generated) * BLOCK_TOKENS
        one.kv_transfer_params, one.session_id = {"kvtier": hints}, session
        self.match(one)
        tables = self.manager.table(name, range(first, first + blocks))
        self.side.allocated(one, tables, 0)
        self.step(one, one.num_tokens)
        self.side.finished(one)
        return self.step().stores

    def finish(self, stores):
        self.side.stored({store.number: 1 for store in stores})

    def hashes(self, *numbers):
        return [hash_of(number) for number in numbers]

    def test_blocks_are_kept_when_they_are_stored_and_not_before(self):
        stores = self.run_request({"keep_s": 60})
        self.assertEqual(self.region.calls, [])
        self.finish(stores)
        self.assertEqual(self.region.calls, [("pin", self.hashes(1, 2, 3, 4), 60_000)])
        self.assertEqual(self.counts, {"kept": 4})

    def test_a_part_of_the_prompt_is_kept_to_the_end_of_its_block(self):
        self.finish(self.run_request({"keep": [[60, 0.4]]}, generated=1))
        self.assertEqual(self.region.calls, [("pin", self.hashes(1, 2), 60_000)])

    def test_more_than_may_be_pinned_is_refused_and_counted(self):
        self.region.pins_left = 3
        self.finish(self.run_request({"keep_s": 60}))
        self.assertEqual(self.counts, {"keep_refused": 4})

    def test_the_blocks_of_a_request_have_the_retention_that_it_wishes(self):
        (store,) = self.run_request({"retention": "memory"})
        self.assertEqual(store.retentions, dict.fromkeys(range(4), Retention.MEMORY))
        (store,) = self.run_request({}, "other", first=11)
        self.assertEqual(store.retentions, {})

    def test_a_request_that_nobody_repeats_is_hinted_with_its_answer(self):
        self.finish(self.run_request({"once": True}, generated=1))
        self.assertEqual(self.region.calls, [("ONCE", self.hashes(1, 2, 3, 4), 0)])

    def test_the_end_of_a_session_is_that_of_all_its_sequences(self):
        self.finish(self.run_request({}, "a", session="s"))
        self.finish(self.run_request({}, "b", blocks=2, first=11, session="s"))
        self.finish(self.run_request({}, "c", first=21, session="another"))
        self.assertEqual(self.region.calls, [])
        self.finish(self.run_request({"closed": True}, "d", blocks=2, first=31, session="s"))
        self.assertEqual(
            self.region.calls,
            [
                ("CLOSED", self.hashes(31, 32), 0),
                ("CLOSED", self.hashes(1, 2, 3, 4), 0),
                ("CLOSED", self.hashes(11, 12), 0),
            ],
        )

    def test_a_sequence_that_went_on_is_remembered_once(self):
        self.finish(self.run_request({}, "a", blocks=2, session="s"))
        self.finish(self.run_request({}, "b", blocks=4, session="s"))
        self.finish(self.run_request({"closed": True}, "c", blocks=1, first=31, session="s"))
        hinted = [hashes for _, hashes, _ in self.region.calls]
        self.assertEqual(hinted, [self.hashes(31), self.hashes(1, 2, 3, 4)])

    def test_with_other_weights_nothing_is_wished_for_blocks_of_those_before(self):
        stores = self.run_request({"keep_s": 60}, session="s")
        self.side.turn()
        self.finish(stores)
        self.finish(self.run_request({"closed": True}, "b", blocks=1, first=31, session="s"))
        self.assertEqual(self.region.calls, [("CLOSED", self.hashes(31), 0)])

    def test_memory_of_sessions_is_bounded_by_their_names_too(self):
        """Clients choose these, and vLLM takes long ones."""
        wishes = [Wishes(session=f"{i}" + "x" * 100_000) for i in range(400)]
        for one in wishes:
            self.teller.ended(one, [[]], [0], set())  # shorter than a block
        self.assertEqual(len(self.teller._sessions), 0)
        for one in wishes:
            self.teller.ended(one, [self.hashes(1)], [1], set())
        self.assertLess(sum(map(len, self.teller._sessions)), 17 << 20)
        self.assertIn(wishes[-1].session, self.teller._sessions)
        for i in range(40_000):
            self.teller.ended(Wishes(session=f"{i}"), [self.hashes(1)], [1], set())
        self.assertLess(len(self.teller._sessions), 30_000)

    def test_a_long_sequence_is_told_in_calls_that_the_daemon_takes(self):
        self.finish(self.run_request({"closed": True}, blocks=10_000))
        self.assertEqual([len(hashes) for _, hashes, _ in self.region.calls], [8192, 1808])
        self.assertEqual(self.region.calls[0][1][-1], hash_of(10_000))


if __name__ == "__main__":
    unittest.main()
