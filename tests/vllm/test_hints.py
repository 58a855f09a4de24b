# SPDX-License-Identifier: Apache-2.0
"""Requests of OpenAI's and Anthropic's clients to `vllm serve` with the middleware: their hints reach
the daemon, and their answers are those of a server without it."""

import contextlib
import re
import unittest

import openai

from server_case import REPLY_TIMEOUT_S, ServerCase
from tiny_model import VOCABULARY

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
MIDDLEWARE = "--middleware kvtier.vllm.middleware.CacheHints"
WORDS = 400


def prompt(number):
    """Words of the tiny model's, another text for each number."""
    return " ".join(f"t{3 + (i * i * 7 + i * number) % (VOCABULARY - 4)}" for i in range(WORDS))


class HintsTest(ServerCase):
    def setUp(self):
        super().setUp()
        template = self.directory / "template.jinja"
        template.write_text(TEMPLATE)
        self.start_daemon()
        self.server = self.serve(MIDDLEWARE, "--chat-template", str(template))
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="-", timeout=REPLY_TIMEOUT_S
        )
        self.addCleanup(self.client.close)
        self.model = self.environment["TEST_MODEL"]

    def chat(self, number, **more):
        reply = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": prompt(number)}],
            max_tokens=8,
            temperature=0,
            **more,
        )
        if not more.get("stream"):
            return reply.choices[0].message.content
        with contextlib.closing(reply):
            return "".join(chunk.choices[0].delta.content or "" for chunk in reply)

    def fields(self, field, outcome):
        _, text = self.ask("GET", "/metrics")
        pattern = rf'vllm:kvtier_hint_fields_total{{field="{field}",outcome="{outcome}"}} (\S+)'
        found = re.search(pattern, text)
        return 0 if found is None else float(found.group(1))

    def wait_for_hint(self, outcome, more_than=0):
        """Asks for a token now and then, since an engine that idles tells no figures."""

        def is_counted():
            self.ask("POST", "/v1/completions", {"model": self.model, "prompt": [5], "max_tokens": 1})
            return self.blocks("hint", outcome) > more_than

        self.wait_for("vllm", self.server, is_counted)

    def test_what_clients_say_of_their_caches_reaches_the_daemon(self):
        with self.subTest("OpenAI's retention"):
            plain = self.chat(31)
            self.assertEqual(self.chat(31, prompt_cache_retention="24h"), plain)
            self.wait_for_hint("kept")

        with self.subTest("a stream that is not stored"):
            plain = self.chat(37)
            self.assertEqual(self.chat(37, store=False, stream=True), plain)
            self.wait_for_hint("once")

        with self.subTest("a session by the key of its cache, and its end"):
            self.chat(41, prompt_cache_key="session-1")
            ending = {"kv_transfer_params": {"kvtier": {"closed": True}}}
            self.chat(43, prompt_cache_key="session-1", extra_body=ending)
            blocks_of_one = self.blocks("hint", "once")
            self.wait_for_hint("closed", more_than=1.5 * blocks_of_one)

        with self.subTest("OpenAI's Responses"):
            kept = self.blocks("hint", "kept")
            reply = self.client.responses.create(
                model=self.model,
                input=prompt(47),
                max_output_tokens=16,
                prompt_cache_key="session-2",
                extra_body={"prompt_cache_retention": "24h"},
            )
            self.assertGreater(reply.usage.output_tokens, 0)
            self.wait_for_hint("kept", more_than=kept)

        with self.subTest("Anthropic's breakpoints"):
            kept = self.blocks("hint", "kept")
            self.messages({"type": "ephemeral", "ttl": "1h"})
            self.wait_for_hint("kept", more_than=kept)
            self.assertEqual(self.fields("cache_control", "taken"), 1)

        with self.subTest("values that are not known"):
            self.assertTrue(self.chat(53, extra_body={"prompt_cache_retention": "for ever"}))
            self.messages({"type": "ephemeral", "ttl": "for ever"})
            self.assertTrue(self.chat(59, extra_body={"kv_transfer_params": {"kvtier": {"keep": 3}}}))
            self.wait_for_hint("ignored")
            self.assertEqual(self.fields("prompt_cache_retention", "ignored"), 1)
            self.assertEqual(self.fields("cache_control", "ignored"), 1)

    def messages(self, control):
        """A request as Anthropic's client sends it."""
        text = {"type": "text", "text": prompt(61), "cache_control": control}
        body = {
            "model": self.model,
            "max_tokens": 8,
            "system": [text],
            "messages": [{"role": "user", "content": "t5 t6 t7"}],
        }
        status, reply = self.ask("POST", "/v1/messages", body)
        self.assertEqual(status, 200, reply)


if __name__ == "__main__":
    unittest.main()
