# SPDX-License-Identifier: Apache-2.0
"""Which tokens the connector tells the daemon that blocks hold, without vLLM and without a daemon."""

import threading
import types

import numpy as np
from fake_region import unavailable

from kvtier import HitRule
from kvtier._link import Attachment
from kvtier.vllm.cache_groups import CacheGroup
from kvtier.vllm.connector_scheduler import SchedulerSide
from kvtier.vllm.link import LookupLink
from kvtier.vllm.token_ids import ToldBlocks, TokenTeller
from test_connector_unit import BLOCK_TOKENS, FULL, SchedulerCase, hash_of, request
from link_case import PATIENCE_S, LinkCase

#: Blocks of twice the tokens, of which only the last of a prefix are there.
WIDE = CacheGroup(1, 2 * BLOCK_TOKENS, hashes_per_block=2, rule=HitRule.TRAILING, window_tokens=32)


def tokens_of(first, count=BLOCK_TOKENS):
    return list(range(first, first + count))


def prompt(tokens, **facts):
    one = request(tokens)
    one.all_token_ids = tokens_of(0, tokens)
    for name, value in facts.items():
        setattr(one, name, value)
    return one


class SchedulerTellsTest(SchedulerCase):
    groups = [FULL, WIDE]
    wanted = frozenset({0, 1})

    def setUp(self):
        super().setUp()
        self.told = []
        teller = TokenTeller(lambda group: group in self.wanted, self.told.append)
        self.side = SchedulerSide(
            self.lookups, self.groups, clock=lambda: self.now, tokens=teller
        )
        self.side.bind(self.manager)

    def compute(self, one, *tables):
        self.manager.table(one.request_id, *tables)
        self.match(one)
        self.step(one, one.num_tokens)
        self.step()

    def told_blocks(self):
        """By group and hash, the tokens."""
        found = {}
        for group, hashes, tokens in self.told:
            size = len(tokens) // len(hashes)
            self.assertEqual(tokens.dtype, np.uint32)
            for i, one in enumerate(hashes):
                found[group, one] = tokens[i * size : (i + 1) * size].tolist()
        return found

    def test_the_blocks_that_are_stored_are_told_with_their_own_tokens(self):
        self.compute(prompt(70), [1, 2, 3, 4, 5], [11, 12, 13])
        self.assertEqual(
            self.told_blocks(),
            {
                (0, hash_of(0)): tokens_of(0),
                (0, hash_of(1)): tokens_of(16),
                (0, hash_of(2)): tokens_of(32),
                (0, hash_of(3)): tokens_of(48),
                (1, hash_of(1)): tokens_of(0, 32),
                (1, hash_of(3)): tokens_of(32, 32),
            },
        )

    def test_blocks_that_a_window_has_left_are_not_told(self):
        self.compute(prompt(70), [1, 2, 3, 4, 5], [0, 12, 13])
        self.assertNotIn((1, hash_of(1)), self.told_blocks())

    def test_a_daemon_that_wants_none_is_told_none(self):
        self.wanted = frozenset()
        self.compute(prompt(40), [1, 2, 3], [11, 12])
        self.assertEqual(self.told, [])

    def test_groups_of_which_the_daemon_wants_none_are_not_told(self):
        self.wanted = frozenset({0})
        self.compute(prompt(40), [1, 2, 3], [11, 12])
        self.assertEqual({group for group, _ in self.told_blocks()}, {0})

    def test_requests_that_more_than_tokens_tells_apart_are_told_without_them(self):
        for facts in (
            {"lora_request": types.SimpleNamespace(lora_int_id=1, lora_name="a", lora_path="/a")},
            {"mm_features": [types.SimpleNamespace(identifier="an image")]},
            {"cache_salt": "salt"},
            {"prompt_embeds": object()},
        ):
            self.compute(prompt(40, **facts), [1, 2, 3], [11, 12])
            self.assertEqual(self.told, [], facts)
            self.side.finished(types.SimpleNamespace(request_id="r"))
        self.compute(prompt(40, mm_features=[], cache_salt=None), [1, 2, 3], [11, 12])
        self.assertEqual(len(self.told_blocks()), 3)

    def test_what_is_loaded_is_told_again(self):
        """A daemon that was started again may have lost the tokens of what its memory kept."""
        self.have(0, 1, 2, 3)
        self.have(1, 3, group=1)
        one = prompt(70)
        found = self.match(one)
        self.side.allocated(one, self.manager.table("r", [1, 2, 3, 4, 5], [0, 12, 13]), found)
        told = self.told_blocks()
        self.assertEqual(told[0, hash_of(3)], tokens_of(48))
        self.assertEqual(told[1, hash_of(3)], tokens_of(32, 32))


class TellingRegion:
    """A region that is only told which tokens blocks hold."""

    def __init__(self, wants):
        self.wants = wants
        self.lost = False
        self.told = []
        self.asked = 0

    def wants_tokens(self):
        self.asked += 1
        if self.wants is None:
            raise unavailable()
        return self.wants

    def give_tokens(self, hashes, tokens):
        self.told.append((list(hashes), tokens.tolist()))

    def lookup(self, hashes):
        return np.zeros(len(hashes), np.uint8)

    def close(self):
        pass


class LinkTellsTest(LinkCase):
    ranks, groups = 2, 2

    def open_link(self, wants, tells=True):
        self.regions = [TellingRegion(wants) for _ in range(self.ranks * self.groups)]
        attachment = Attachment(self.regions, lambda: None, lambda: True, self.ranks)
        self.opened = threading.Event()

        def attach():
            self.opened.set()
            return attachment

        link = LookupLink(attach, self.on_answer, tells_tokens=tells)
        self.addCleanup(link.close)
        link.wait_for_first_try()
        return link

    def settle(self, link):
        """Returns when the link has done all its earlier work: it answers, asks, and then tells."""
        for _ in range(2):
            count = len(self.answers)
            link.ask([bytes(36)])
            with self.answered:
                self.assertTrue(
                    self.answered.wait_for(lambda: len(self.answers) > count, PATIENCE_S)
                )

    def test_it_tells_the_group_s_region_of_each_rank(self):
        link = self.open_link(True)
        self.settle(link)
        self.assertTrue(link.wants_tokens(1))
        link.tell(ToldBlocks(1, [hash_of(1)], np.array([4, 5], np.uint32)))
        self.settle(link)
        told = [([hash_of(1)], [4, 5])]
        self.assertEqual([region.told for region in self.regions], [[], told, [], told])
        self.assertEqual([region.asked for region in self.regions], [1, 1, 0, 0])

    def test_lookups_are_answered_before_it_asks(self):
        """A step waits for them for some milliseconds, also when the daemon is a new one."""
        answers_when_asked = []

        class Region(TellingRegion):
            def wants_tokens(region):
                answers_when_asked.append(len(self.answers))
                return super().wants_tokens()

        attachment = Attachment([Region(True)], lambda: None, lambda: True, 1)
        looked_up = threading.Event()

        def attach():
            self.assertTrue(looked_up.wait(PATIENCE_S))
            return attachment

        link = LookupLink(attach, self.on_answer, tells_tokens=True)
        self.addCleanup(link.close)
        link.ask([bytes(36)])
        looked_up.set()
        self.settle(link)
        self.assertGreater(answers_when_asked[0], 0)

    def test_a_daemon_that_wants_none_or_does_not_say_is_told_none(self):
        for wants in (False, None):
            link = self.open_link(wants)
            link.tell(ToldBlocks(0, [hash_of(1)], np.array([4, 5], np.uint32)))
            self.settle(link)
            self.assertFalse(link.wants_tokens(0))
            self.assertEqual([region.told for region in self.regions], [[]] * 4)

    def test_a_link_that_tells_none_does_not_ask(self):
        link = self.open_link(True, tells=False)
        self.settle(link)
        self.assertFalse(link.wants_tokens(0))
        self.assertEqual(sum(region.asked for region in self.regions), 0)
