# SPDX-License-Identifier: Apache-2.0
"""kvtierd's events for routers about a real vLLM's blocks, beside vLLM's own events."""

import tempfile
import unittest

import msgspec
import zmq
from cache_tests import BLOCK_TOKENS, CACHED_TOKENS, PROMPTS, EngineCase
from vllm.distributed.kv_events import BlockStored, KVEventBatch

TIMEOUT_MS = 300_000
BLOCKS = PROMPTS * CACHED_TOKENS // BLOCK_TOKENS


class Blocks:
    """The blocks that were told of at an endpoint: by hash, their tokens and the block before."""

    def __init__(self, context, endpoint):
        self.told = {}
        self._decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self._socket.connect(endpoint)

    def close(self):
        self._socket.close(linger=0)

    def hears(self, timeout_ms):
        return self._socket.poll(timeout_ms) != 0

    def receive_until(self, done):
        while not done(self.told):
            _, _, payload = self._socket.recv_multipart()
            for event in self._decoder.decode(payload).events:
                if isinstance(event, BlockStored):
                    self._take(event)

    def _take(self, event):
        size, parent = event.block_size, event.parent_block_hash
        for i, one in enumerate(event.block_hashes):
            ids = tuple(event.token_ids[i * size : (i + 1) * size])
            if ids or one not in self.told:
                self.told[one] = (ids, parent)
            parent = one


class EventsCase(EngineCase):
    token_ids = "[]"

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-events-")
        cls.addClassCleanup(directory.cleanup)
        cls.ours, cls.vllms = (f"ipc://{directory.name}/{one}" for one in ("kvtierd", "vllm"))
        cls.options = {
            **cls.options,
            "engine": {
                "kv_events_config": {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": cls.vllms,
                }
            },
        }
        super().setUpClass()

    @classmethod
    def settings(cls):
        return [
            *super().settings(),
            f"events.endpoint={cls.ours}",
            f"events.token_ids={cls.token_ids}",
        ]

    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.term)
        super().setUp()

    def listen(self, endpoint):
        blocks = Blocks(self.context, endpoint)
        self.addCleanup(blocks.close)
        return blocks

    def prompts_blocks(self):
        """The tokens of each block of the prompts."""
        return {
            tuple(prompt[first : first + BLOCK_TOKENS])
            for prompt in self.prompts
            for first in range(0, CACHED_TOKENS, BLOCK_TOKENS)
        }

    def has_prompts(self, told):
        return self.prompts_blocks() <= {ids for ids, _ in told.values()}


class TokenIdsTest(EventsCase, unittest.TestCase):
    token_ids = '["default"]'

    def test_the_daemon_tells_the_blocks_of_the_engine_with_its_hashes_and_tokens(self):
        ours, vllms = self.listen(self.ours), self.listen(self.vllms)
        # A subscription takes a moment to arrive at vLLM's publisher, which repeats nothing.
        for attempt in range(1000):
            self.engine.generate([[attempt + 3] * 40], tokens=1)
            if vllms.hears(timeout_ms=10):
                break
        self.generate()
        vllms.receive_until(self.has_prompts)
        self.engine.forget()
        ours.receive_until(self.has_prompts)
        told = {one: block for one, block in ours.told.items() if block[0]}
        self.assertGreaterEqual(len(told), BLOCKS)
        known = {one: block for one, block in told.items() if one in vllms.told}
        self.assertGreaterEqual(len(known), BLOCKS)
        self.assertEqual(known, {one: vllms.told[one] for one in known})

    def test_a_router_that_starts_over_a_warm_daemon_learns_what_is_here(self):
        self.store()
        late = self.listen(self.ours)
        late.receive_until(self.has_prompts)
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)

    def test_a_prompt_with_a_salt_is_told_without_its_tokens(self):
        ours = self.listen(self.ours)
        reply = self.engine.ask(
            {"op": "generate", "prompts": self.prompts, "tokens": 16, "cache_salt": "salt"}
        )
        self.check(reply)
        before = len(ours.told)
        self.engine.forget()
        ours.receive_until(lambda told: len(told) >= before + BLOCKS)
        self.assertFalse(self.prompts_blocks() & {ids for ids, _ in ours.told.values()})


class WithoutTokenIdsTest(EventsCase, unittest.TestCase):
    def test_a_daemon_that_does_not_ask_for_them_is_told_none(self):
        ours = self.listen(self.ours)
        self.store()
        ours.receive_until(lambda told: len(told) >= BLOCKS)
        self.assertEqual({ids for ids, _ in ours.told.values()}, {()})


if __name__ == "__main__":
    unittest.main()
