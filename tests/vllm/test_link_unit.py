# SPDX-License-Identifier: Apache-2.0
"""The link to the daemon, without vLLM and without a daemon."""

import threading
import unittest
from unittest import mock

from kvtier import Presence
from kvtier.errors import Status, TimedOutError
from kvtier._link import LinkState
from kvtier.vllm.rows import hash_of
from link_case import PATIENCE_S, LinkCase, key


class LinkTest(LinkCase):
    def test_lookups_are_answered_from_another_thread(self):
        self.daemon.blocks[hash_of(key(2))] = b""
        link = self.open_link()
        self.ask_until(link, [Presence(0)])
        self.assertEqual(self.ask(link, 1, 2), [Presence(0), Presence.HOST])
        self.assertEqual((link.state, link.connections), (LinkState.READY, 1))

    def test_a_daemon_that_comes_later_is_found(self):
        self.daemon.reachable = False
        link = self.open_link()
        self.ask_until(link, None)
        self.assertIsNone(link.borrow())
        with self.assertLogs("vllm.kvtier", "INFO"):
            self.daemon.reachable = True
            self.ask_until(link, [Presence(0)])

    def test_a_daemon_that_comes_back_is_found_and_the_old_region_closed_after_its_last_use(self):
        link = self.open_link()
        self.ask_until(link, [Presence(0)])
        borrowed = link.borrow()
        old = self.daemon.region
        self.daemon.die()
        link.lost(borrowed)
        self.assertIsNone(link.borrow())
        self.daemon.reachable = True
        self.ask_until(link, [Presence(0)])
        self.assertEqual(link.connections, 2)
        self.assertFalse(old.closed)
        borrowed.give_back()
        link.close()
        self.assertTrue(old.closed and self.daemon.region.closed)

    def test_a_lookup_finds_out_that_the_daemon_is_gone(self):
        link = self.open_link()
        self.ask_until(link, [Presence(0)])
        self.daemon.die()
        self.ask_until(link, None)
        self.assertIs(link.state, LinkState.DOWN)

    def test_a_question_that_finds_the_daemon_gone_is_asked_of_the_next_one(self):
        link = self.open_link()
        self.ask_until(link, [Presence(0)])
        self.daemon.blocks[hash_of(key(2))] = b""
        self.daemon.restart()
        self.assertEqual(self.ask(link, 1, 2), [Presence(0), Presence.HOST])

    def test_a_question_that_each_daemon_dies_of_is_answered(self):
        def attach():
            attachment = self.daemon.attach(self.rows)
            self.daemon.region.lose()
            return attachment

        self.assertIsNone(self.ask(self.open_link(attach), 1))

    def test_questions_behind_one_that_timed_out_are_not_asked(self):
        link = self.open_link()
        self.ask_until(link, [Presence(0)])
        asked, going_on = threading.Event(), threading.Event()

        def lookup(hashes):
            asked.set()
            going_on.wait()
            raise TimedOutError(Status.TIMEOUT, "request_timeout")

        with mock.patch.object(self.daemon.region, "lookup", lookup):
            self.answers.clear()
            link.ask([key(1)])
            asked.wait()
            for number in range(2, 5):
                link.ask([key(number)])
            asked.clear()
            going_on.set()
            with self.answered:
                self.answered.wait_for(lambda: len(self.answers) == 4, PATIENCE_S)
        self.assertEqual(self.answers, [([key(number)], None) for number in range(1, 5)])
        self.assertFalse(asked.is_set())

    def test_when_it_opens_anew_nothing_goes_to_the_region_of_before(self):
        link = self.open_link()
        self.ask_until(link, [Presence(0)])
        old = self.daemon.region
        link.reopen()
        self.assertIsNone(link.borrow())
        self.ask_until(link, [Presence(0)])
        self.assertIsNot(self.daemon.region, old)
        attachment = link.borrow()
        self.assertEqual(attachment.regions, [self.daemon.region])
        attachment.give_back()
        link.close()
        self.assertTrue(old.closed)

    def test_a_region_that_is_opened_while_another_is_asked_for_is_not_used(self):
        opening, opened = threading.Event(), threading.Event()
        made = []

        def attach():
            made.append(self.daemon.attach(self.rows))
            if len(made) == 1:
                opening.set()
                opened.wait(PATIENCE_S)
            return made[-1]

        link = self.open_link(attach)
        opening.wait(PATIENCE_S)
        link.reopen()
        opened.set()
        self.ask_until(link, [Presence(0)])
        attachment = link.borrow()
        self.assertIs(attachment, made[1])
        attachment.give_back()
        self.assertTrue(made[0].regions[0].closed)

    def test_it_waits_for_what_is_not_known_yet(self):
        ready = []
        link = self.open_link(lambda: self.daemon.attach(self.rows) if ready else None)
        self.assertIsNone(self.ask(link, 1))
        self.assertIs(link.state, LinkState.CONNECTING)
        ready.append(True)
        self.ask_until(link, [Presence(0)])

    def test_a_daemon_that_is_lost_while_the_link_is_closed_does_not_open_it_again(self):
        dying = threading.Event()

        def alive():
            if not dying.is_set():
                return True
            dying.clear()
            threading.Thread(target=link.close).start()
            while link.state is not LinkState.CLOSED:
                pass
            return False

        def attach():
            attachment = self.daemon.attach(self.rows)
            attachment.alive = alive
            return attachment

        link = self.open_link(attach)
        self.ask_until(link, [Presence(0)])
        dying.set()
        link.ask([key(1)])
        link._thread.join(PATIENCE_S)
        self.assertFalse(link._thread.is_alive())
        self.assertIs(link.state, LinkState.CLOSED)

    def test_what_can_never_work_turns_the_tier_off(self):
        def attach():
            raise ValueError("hashes are too short")

        with self.assertLogs("vllm.kvtier", "ERROR"):
            link = self.open_link(attach)
            link._thread.join(PATIENCE_S)
        self.assertIs(link.state, LinkState.CLOSED)
        self.assertIsNone(link.borrow())


if __name__ == "__main__":
    unittest.main()
