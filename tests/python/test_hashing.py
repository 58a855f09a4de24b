# SPDX-License-Identifier: Apache-2.0
"""Block hashes against the cases that were computed without any of the project's code."""

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


class HashingTest(unittest.TestCase):
    def test_every_known_case_has_its_hashes(self):
        text = (SOURCE / "tests/data/block_hash_more.json").read_text()
        tried = 0
        for case in json.loads(text)["cases"]:
            identity = identity_of(case)
            if identity is None or not case["tokens"] or "\0" in (identity.cache_salt or ""):
                continue
            with self.subTest(case["name"]):
                hashes = kvtier.hash_blocks(case["tokens"], case["block_tokens"], identity)
                self.assertEqual([one.hex() for one in hashes], case["block_hashes"])
                tried += 1
        self.assertGreater(tried, 25)

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
