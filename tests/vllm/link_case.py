# SPDX-License-Identifier: Apache-2.0
"""Tests over a link to a fake daemon, without vLLM."""

import threading
import unittest
from unittest import mock

import numpy as np

from fake_region import FakeDaemon
from kvtier.vllm import link, transfers
from kvtier.vllm.link import LookupLink

ROW_BYTES = 4096
ROWS = 8
# For what another thread does; only a failing test waits so long.
PATIENCE_S = 300


def key(number, group=0):
    return number.to_bytes(32, "little") + group.to_bytes(4, "big")


class LinkCase(unittest.TestCase):
    """A link to a fake daemon; `answers` get the daemon's requests."""

    def setUp(self):
        for module in (link, transfers):
            self.enterContext(mock.patch.object(module, "FIRST_CONNECT_S", PATIENCE_S))
        self.daemon = FakeDaemon()
        self.rows = np.zeros((ROWS, ROW_BYTES), np.uint8)
        self.answers, self.answered = [], threading.Condition()

    def open_link(self, attach=None):
        attach = attach or (lambda: self.daemon.attach(self.rows))
        link = LookupLink(attach, self.on_answer, retry_min_s=0.001, retry_max_s=0.002)
        self.addCleanup(link.close)
        return link

    def on_answer(self, answer):
        with self.answered:
            self.answers.append(answer)
            self.answered.notify_all()

    def ask(self, link, *numbers):
        """The answer to one question."""
        count = len(self.answers)
        link.ask([key(number) for number in numbers])
        with self.answered:
            self.assertTrue(self.answered.wait_for(lambda: len(self.answers) > count, PATIENCE_S))
            return self.answers[count][1]

    def ask_until(self, link, expected):
        """Asks again until the answer is as expected."""
        for _ in range(100_000):
            if self.ask(link, 1) == expected:
                return
        self.fail(f"never answered {expected}")
