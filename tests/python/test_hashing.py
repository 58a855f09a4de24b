# SPDX-License-Identifier: Apache-2.0
"""Block hashes against the cases that were computed without any of the project's code."""

import hashlib
import json
import unittest

import numpy as np

import kvtier
from harness.paths import SOURCE


def identity_of(case):
    """The case's identity; None if its keys cannot be derived from one."""
    given = case.get("identity", {})
    if "identity" not in case and any(keys is not None for keys in case["extra_keys"]):
        return None
    items = [kvtier.MultimodalItem(*item) for item in given.get("media", [])]
    return kvtier.PromptIdentity(
        case["seed"], given.get("lora_name"), given.get("cache_salt"), items
    )


def cbor(value):
    """Canonical CBOR (RFC 8949, 4.2.1) of what hashes are made of."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        major, number = (0, value) if value >= 0 else (1, -1 - value)
        payload = b""
    elif isinstance(value, (str, bytes)):
        payload = value.encode() if isinstance(value, str) else value
        major, number = (3 if isinstance(value, str) else 2), len(payload)
    else:
        payload = b"".join(map(cbor, value))
        major, number = 4, len(value)
    if number < 24:
        return bytes([major << 5 | number]) + payload
    size = next(size for size in (1, 2, 4, 8) if number < 1 << 8 * size)
    head = bytes([major << 5 | 23 + size.bit_length()]) + number.to_bytes(size, "big")
    return head + payload


class HashingTest(unittest.TestCase):
    def test_every_known_case_has_its_hashes(self):
        text = (SOURCE / "tests/data/block_hash_more.json").read_text()
        tried = 0
        for case in json.loads(text)["cases"]:
            identity = identity_of(case)
            if identity is None or not case["tokens"] or "\0" in (identity.cache_salt or ""):
                continue
            with self.subTest(case["name"]):
                hashes = kvtier.hash_blocks(
                    case["tokens"],
                    case["block_tokens"],
                    identity,
                    recipe="vllm-sha256-cbor/1",
                )
                self.assertEqual([one.hex() for one in hashes], case["block_hashes"])
                tried += 1
        self.assertGreater(tried, 25)

    def test_every_hash_of_the_engines_own_code_is_made_by_the_recipe_of_its_name(self):
        cases = json.loads((SOURCE / "tests/data/engine_hashes.json").read_text())["cases"]
        self.assertGreaterEqual(len(cases), 200)
        self.assertEqual({case["recipe"] for case in cases}, set(kvtier.RECIPES))
        for case in cases:
            given = dict(case.get("identity", {}))
            given["items"] = [kvtier.MultimodalItem(*item) for item in given.get("items", ())]
            blocks = -(-len(case["tokens"]) // case["block_tokens"])
            digests = [bytes.fromhex(one) for one in given.get("prompt_embeds", ())]
            if digests and "lookahead_tokens" not in case:
                # vLLM hashes full blocks only; a partial one has a digest, too.
                digests += [bytes(32)] * (blocks - len(digests))
            given["prompt_embeds"] = tuple(digests)
            given["items"] = tuple(given["items"])
            with self.subTest(case["recipe"], name=case["name"]):
                hashes = kvtier.hash_blocks(
                    case["tokens"],
                    case["block_tokens"],
                    kvtier.PromptIdentity(**given),
                    recipe=case["recipe"],
                    lookahead_tokens=case.get("lookahead_tokens", 0),
                )
                count = len(case["hashes"])
                self.assertEqual([one.hex() for one in hashes[:count]], case["hashes"])
                if "lookahead_tokens" in case:
                    self.assertEqual(len(hashes), count)
                else:
                    self.assertEqual(len(hashes), blocks)

    def test_a_salt_that_looks_like_a_loras_name_differs_from_version_2_on(self):
        names = [kvtier.PromptIdentity(lora="sql"), kvtier.PromptIdentity(cache_salt="sql")]
        first, second = (
            [kvtier.hash_blocks(range(16), identity=one, recipe=recipe) for one in names]
            for recipe in ("vllm-sha256-cbor/1", "vllm-sha256-cbor/2")
        )
        self.assertEqual(first[0], first[1])
        self.assertNotEqual(second[0], second[1])

    def test_the_library_hashes_what_cbor_in_python_hashes(self):
        tokens = [*range(40), 1 << 31, 255, 256, 65535, 65536, 5, 6, 7, 8, 9]
        items = [kvtier.MultimodalItem("ab" * 32, 3, 40), kvtier.MultimodalItem("ü", 45, 2)]
        given = {"seed": "7", "lora": "sql", "cache_salt": "söl", "items": items}
        first = [("lora", "sql", ""), ("mm", "ab" * 32, 3), ("cache_salt", "söl")]
        for fields, seed, keys in (
            ({}, "vllm-none-hash", [None] * 4),
            ({"seed": "", "lora": "", "cache_salt": ""}, "", [None] * 4),
            (
                given,
                "7",
                [
                    first,
                    [("lora", "sql", ""), ("mm", "ab" * 32, -13)],
                    [("lora", "sql", ""), ("mm", "ab" * 32, -29), ("mm", "ü", 13)],
                    [("lora", "sql", "")],
                ],
            ),
        ):
            expected = [hashlib.sha256(cbor(seed)).digest()]
            for block in range(4):
                content = [expected[-1], tokens[block * 16 : block * 16 + 16], keys[block]]
                expected.append(hashlib.sha256(cbor(content)).digest())
            identity = kvtier.PromptIdentity(**fields)
            self.assertEqual(kvtier.hash_blocks(tokens, 16, identity), expected[1:])

    def test_those_without_an_engine_hash_by_the_recipe_that_tags_its_keys(self):
        self.assertEqual(kvtier.ModelRecord("m", 1, 1, 8, 8).hash_recipe, "vllm-sha256-cbor/2")
        salted = kvtier.PromptIdentity(cache_salt="s")
        tagged = kvtier.hash_blocks([1], identity=salted, recipe="vllm-sha256-cbor/2")
        self.assertEqual(kvtier.hash_blocks([1], identity=salted), tagged)

    def test_what_a_recipe_does_not_hash_is_refused_by_name(self):
        for recipe, name, value in (
            ("vllm-sha256-cbor/1", "extra_key", "a"),
            ("vllm-sha256-cbor/2", "extra_key", ""),
            ("sglang/1", "lora", "sql"),
            ("sglang/1", "seed", "0"),
            ("sglang/1", "items", (kvtier.MultimodalItem("ab", 0, 1),)),
            ("sglang/1", "prompt_embeds", (bytes(32),)),
        ):
            identity = kvtier.PromptIdentity(**{name: value})
            with self.assertRaises(kvtier.InvalidArgumentError) as raised:
                kvtier.hash_blocks([1], identity=identity, recipe=recipe)
            self.assertEqual(raised.exception.reason, f"bad_{name}")
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "sglang/1"):
            kvtier.hash_blocks([1], recipe="sglang/2")
        with self.assertRaises(kvtier.InvalidArgumentError):
            kvtier.hash_blocks([1], recipe="sglang/1", lookahead_tokens=1)
        with self.assertRaises(kvtier.InvalidArgumentError):
            kvtier.hash_blocks(
                range(32), identity=kvtier.PromptIdentity(prompt_embeds=(bytes(32),))
            )

    def test_a_text_that_c_would_cut_short_is_refused(self):
        with self.assertRaises(kvtier.InvalidArgumentError):
            kvtier.hash_blocks([1], identity=kvtier.PromptIdentity(cache_salt="a\0b"))

    def test_any_sequence_of_integers_gives_the_same_hashes(self):
        tokens = list(range(100, 140))
        expected = kvtier.hash_blocks(tokens)
        for same in (
            tuple(tokens),
            range(100, 140),
            np.array(tokens, np.uint32),
            np.array(tokens, np.int64),
            np.repeat(np.array(tokens, np.uint16), 2)[::2],
        ):
            self.assertEqual(kvtier.hash_blocks(same), expected)

    def test_no_tokens_have_no_hashes(self):
        self.assertEqual(kvtier.hash_blocks([]), [])

    def test_block_sizes_out_of_range_are_refused(self):
        for block_tokens in (0, -1, 1 << 20, 1 << 40):
            with self.assertRaises(kvtier.InvalidArgumentError):
                kvtier.hash_blocks([1], block_tokens)


if __name__ == "__main__":
    unittest.main()
