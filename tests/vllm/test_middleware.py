# SPDX-License-Identifier: Apache-2.0
"""The middleware between clients and vLLM's API adds hints to requests; nothing that a client sends is
lost or fails by it."""

import asyncio
import json
import random
import tracemalloc
import unittest

from kvtier.vllm.middleware import CacheHints
from prometheus_client import REGISTRY

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEXT = 'words, "quoted \\"cache_control\\": {\\"type\\": \\"ephemeral\\"}"\n'
# A prompt of 25,000 tokens. The bound leaves room for a busy machine: 0.05 ms on one that is not.
LONG_PROMPT_BYTES = 100_000
PARTS = 7


def counted(field, outcome):
    labels = {"field": field, "outcome": outcome}
    return REGISTRY.get_sample_value("vllm:kvtier_hint_fields_total", labels) or 0


class MiddlewareTest(unittest.TestCase):
    def send(self, body, path=CHAT, headers=(), chunks=1, method="POST"):
        """The body that vLLM gets, and the scope. body: JSON, or bytes. It comes in so many chunks."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        step = max(1, -(-len(body) // chunks))
        parts = [body[first : first + step] for first in range(0, len(body), step)] or [b""]
        messages = [
            {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
            for number, part in enumerate(parts)
        ]
        messages.append({"type": "http.disconnect"})
        length = [(b"content-length", str(len(body)).encode()), (b"accept", b"*/*")]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [*length, *headers],
        }
        seen = {}

        async def app(scope, receive, send):
            received, more = b"", True
            while more:
                message = await receive()
                received += message["body"]
                more = message["more_body"]
            # A server goes on listening, to notice that its client has gone.
            self.assertEqual((await receive())["type"], "http.disconnect")
            seen.update(scope=scope, body=received)

        async def receive():
            return messages.pop(0)

        asyncio.run(CacheHints(app)(scope, receive, None))
        lengths = [value for name, value in seen["scope"]["headers"] if name == b"content-length"]
        self.assertEqual(lengths, [str(len(seen["body"])).encode()])
        return seen["body"]

    def hints(self, body, *arguments, **more):
        """The hints that vLLM gets, and the session. All else arrives as it was sent."""
        got = json.loads(self.send(body, *arguments, **more))
        params = got.pop("kv_transfer_params", None) or {}
        hints, session = params.pop("kvtier", None), got.pop("session_id", None)
        sent = {key: body[key] for key in body if key not in ("kv_transfer_params", "session_id")}
        self.assertEqual(got, sent)
        return hints, session

    def chat(self, **more):
        return {"model": "m", "messages": [{"role": "user", "content": TEXT}], **more}

    def test_retention_is_a_class_and_a_time(self):
        day = {"retention": "extended", "keep_s": 86_400}
        for path in (CHAT, RESPONSES, "/v1/completions", "/prefix" + CHAT):
            body = self.chat(prompt_cache_retention="24h")
            self.assertEqual(self.hints(body, path), (day, None))
        body = self.chat(prompt_cache_retention="in_memory")
        self.assertEqual(self.hints(body), ({"retention": "memory"}, None))

    def test_the_key_of_a_prompt_s_cache_is_its_session_where_nothing_else_is(self):
        self.assertEqual(self.hints(self.chat(prompt_cache_key="user-7")), (None, "user-7"))
        own = self.chat(prompt_cache_key="user-7", session_id="s")
        self.assertEqual(self.hints(own), (None, "s"))
        nothing = self.chat(prompt_cache_key="user-7", session_id=None)
        self.assertEqual(self.hints(nothing), (None, "user-7"))
        header = [(b"x-session-id", b"h")]
        self.assertEqual(self.hints(self.chat(prompt_cache_key="k"), headers=header), (None, None))

    def test_what_shall_not_be_stored_stays_off_the_disk_and_is_not_asked_for_again(self):
        memory = {"retention": "memory"}
        self.assertEqual(self.hints(self.chat(store=False))[0], {**memory, "once": True})
        agent = self.chat(store=False, prompt_cache_key="thread-3")
        self.assertEqual(self.hints(agent), (memory, "thread-3"))
        self.assertEqual(self.hints(self.chat(store=True)), (None, None))
        self.assertEqual(self.hints(self.chat(), CHAT + "/batch")[0], {"once": True})

    def test_breakpoints_are_kept_by_their_share_of_the_prompt_s_text(self):
        hour = {"type": "ephemeral", "ttl": "1h"}
        body = {
            "model": "m",
            "max_tokens": 9,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": TEXT * 100, "cache_control": {"type": "ephemeral"}}
                    ],
                }
            ],
            "system": [{"type": "text", "text": TEXT * 300, "cache_control": hour}],
        }
        (system, message) = self.hints(body, MESSAGES)[0]["keep"]
        self.assertEqual((system[0], message[0]), (3600, 300))
        self.assertAlmostEqual(system[1], 0.75, delta=0.01)
        self.assertAlmostEqual(message[1], 1.0, delta=0.01)

    def test_values_that_are_not_understood_are_counted_and_the_request_is_as_it_was(self):
        text = [{"type": "text", "text": "t", "cache_control": {"type": "ephemeral", "ttl": "9y"}}]
        for path, field, body in (
            (CHAT, "prompt_cache_retention", self.chat(prompt_cache_retention="forever")),
            (CHAT, "prompt_cache_retention", self.chat(prompt_cache_retention={"a": 1})),
            (CHAT, "prompt_cache_key", self.chat(prompt_cache_key=7)),
            (CHAT, "prompt_cache_key", self.chat(prompt_cache_key="")),
            (CHAT, "prompt_cache_key", self.chat(prompt_cache_key="x" * 257)),
            (CHAT, "prompt_cache_key", self.chat(prompt_cache_key="a\nb")),
            (CHAT, "store", self.chat(store="no")),
            (MESSAGES, "cache_control", {"messages": [{"role": "user", "content": text}]}),
        ):
            with self.subTest(field=field, body=body):
                before = counted(field, "ignored")
                sent = json.dumps(body).encode()
                self.assertEqual(self.send(sent, path), sent)
                self.assertEqual(counted(field, "ignored"), before + 1)

    def test_a_client_s_own_hints_come_first(self):
        own = {"kvtier": {"keep_s": 5}, "do_remote_decode": False}
        body = self.chat(prompt_cache_retention="24h", kv_transfer_params=own)
        got = json.loads(self.send(body))["kv_transfer_params"]
        self.assertEqual(got["kvtier"], {"retention": "extended", "keep_s": 5})
        self.assertFalse(got["do_remote_decode"])
        for others in ({"kvtier": 7}, [], 3):
            sent = json.dumps({**body, "kv_transfer_params": others}).encode()
            self.assertEqual(self.send(sent), sent)

    def test_what_is_no_request_of_a_prompt_passes_untouched(self):
        sent = json.dumps(self.chat(prompt_cache_retention="24h")).encode()
        self.assertEqual(self.send(sent, "/v1/models"), sent)
        self.assertEqual(self.send(sent, CHAT, method="PUT"), sent)

    def test_a_body_of_any_kind_passes_in_any_number_of_chunks(self):
        draw = random.Random(1)
        body = json.dumps(self.chat(prompt_cache_retention="24h")).encode()
        for _ in range(300):
            changed = bytearray(body)
            for _ in range(draw.randrange(3)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            sent = bytes(changed[: draw.randrange(len(changed) + 1)])
            got = self.send(sent, chunks=draw.randrange(1, 9))
            self.assertIn(got == sent or b'"kvtier"' in got, (True,))
        self.assertEqual(
            self.send(body, chunks=PARTS), self.send(body), "chunks make no difference"
        )
        for sent in (b"", b"[]", b"null", b"{}", b"\xff\xfe{", b"[" * 100_000):
            self.assertEqual(self.send(sent), sent)

    def test_a_client_that_goes_away_in_the_midst_is_seen_to_go(self):
        messages = [
            {"type": "http.request", "body": b"{", "more_body": True},
            {"type": "http.disconnect"},
        ]
        seen = []

        async def app(scope, receive, send):
            seen.extend([await receive(), await receive()])

        async def receive():
            return messages.pop(0)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        asyncio.run(CacheHints(app)(scope, receive, None))
        self.assertEqual([one["type"] for one in seen], ["http.request", "http.disconnect"])

    def test_a_long_prompt_is_neither_decoded_nor_written_anew(self):
        prompt = TEXT * (LONG_PROMPT_BYTES // len(TEXT))
        body = json.dumps({**self.chat(prompt_cache_retention="24h"), "prompt": prompt}).encode()
        from kvtier.vllm.hint_fields import with_hints

        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertIsNotNone(with_hints(body, CHAT, False, lambda *_: None))
        self.assertLess(tracemalloc.get_traced_memory()[1], 1.5 * len(body))


if __name__ == "__main__":
    unittest.main()
