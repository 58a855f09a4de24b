# SPDX-License-Identifier: Apache-2.0
"""The base of tests of kvtier's linker under SGLang's own radix cache and pools."""

import itertools
import time
import unittest

import torch
from harness.shared_daemon import SharedDaemonCase
from sglang_cache import PAGE_TOKENS, Engine

CONNECT_TIMEOUT_S = 120
PROMPT_PAGES = 12
seeds = itertools.count(1)


def prompt_of(pages=PROMPT_PAGES, after=()):
    """`after`, and tokens that no other prompt begins with."""
    first = next(seeds) << 20
    return [*after, *range(first, first + pages * PAGE_TOKENS)]


def equal(some, others):
    return len(some) == len(others) and all(map(torch.equal, some, others))


def rows(layers, tokens):
    """Some tokens of KV as `Engine.kv_of` returns it."""
    return [layer[tokens] for layer in layers]


class LinkerTestCase(SharedDaemonCase, unittest.TestCase):
    def engine(self, wait=True, pool=None, model="some/model", group=None, **extra):
        engine = Engine({"socket": self.daemon.socket, **extra}, pool, model, group)
        self.addCleanup(engine.close)
        if wait:
            self.wait_until(lambda: engine.linker.connected)
        return engine

    def wait_until(self, condition):
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)

    def take_stored(self, engine):
        """Has SGLang take notice of the stores, all of which have ended then."""
        pending = engine.cache.linker.pending_offloads
        self.wait_until(lambda: engine.linker.num_completed_offloads() == len(pending))
        engine.cache.check_hicache_events()
        self.assertEqual(pending, [])

    def stored(self, engine, prompt):
        """The KV of a prompt that was computed, is stored, and left the device."""
        kv = engine.compute(prompt, next(seeds))
        self.take_stored(engine)
        engine.forget()
        return kv

    def begin(self, engine, prompt):
        """A request whose load was begun."""
        request, offered = engine.match(prompt)
        self.assertGreater(offered, 0)
        self.assertEqual(engine.admit(request), offered)
        engine.start_loading()
        return request

    def loaded(self, engine, prompt):
        """The KV that a request with this prompt gets."""
        request = self.begin(engine, prompt)
        kv = engine.forward(request.slots)
        self.assertFalse(engine.failed(request))
        return kv
