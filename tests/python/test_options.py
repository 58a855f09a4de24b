# SPDX-License-Identifier: Apache-2.0
"""Options of engines' modules, as users write them."""

import unittest

from kvtier._options import Choice, Flag, Number, Text, read_options

KNOWN = {
    "keep_kv_cache": Flag(False),
    "load_wait_ms": Number(5, 0, 1000),
    "retention": Choice("E", {"extended": "E", "memory": "M"}),
    "retry_max_ms": Number(2000, 1, 600_000),
    "retry_min_ms": Number(50, 1, 600_000),
    "rows": Number(8, 1, 64, whole=True),
    "socket": Text("", 10),
}


class ReadOptionsTest(unittest.TestCase):
    def read(self, others=(), **given):
        return read_options("Module", KNOWN, given, others)

    def refusal(self, others=(), **given):
        with self.assertRaises(ValueError) as caught:
            self.read(others, **given)
        return str(caught.exception)

    def test_options_that_are_not_given_have_their_defaults(self):
        self.assertEqual(self.read(), {name: one.default for name, one in KNOWN.items()})

    def test_values_are_read_as_what_they_are(self):
        read = self.read(keep_kv_cache=True, load_wait_ms=0, retention="memory", rows=3, socket="/s")
        self.assertEqual(
            (read["keep_kv_cache"], read["load_wait_ms"], read["retention"]), (True, 0.0, "M")
        )
        self.assertEqual((read["rows"], read["socket"]), (3, "/s"))

    def test_text_stands_for_a_flag_or_a_number(self):
        self.assertIs(self.read(keep_kv_cache="false")["keep_kv_cache"], False)
        self.assertIs(self.read(keep_kv_cache="true")["keep_kv_cache"], True)
        self.assertEqual(self.read(load_wait_ms="2.5", rows="7")["load_wait_ms"], 2.5)

    def test_a_value_that_does_not_fit_says_what_does(self):
        for given, message in (
            ({"keep_kv_cache": "maybe"}, "keep_kv_cache is 'maybe', but takes true or false"),
            ({"keep_kv_cache": 1}, "true or false"),
            ({"load_wait_ms": "fast"}, "'fast', but takes a number from 0 to 1000"),
            ({"load_wait_ms": "nan"}, "a number from 0 to 1000"),
            ({"load_wait_ms": float("inf")}, "a number from 0 to 1000"),
            ({"load_wait_ms": -5}, "a number from 0 to 1000"),
            ({"load_wait_ms": None}, "load_wait_ms is None"),
            ({"load_wait_ms": True}, "a number from 0 to 1000"),
            ({"load_wait_ms": [1]}, "a number from 0 to 1000"),
            ({"rows": 2.5}, "a whole number from 1 to 64"),
            ({"rows": 0}, "a whole number from 1 to 64"),
            ({"retention": "disk"}, "retention is 'disk', but takes \"extended\" or \"memory\""),
            ({"retention": ["memory"]}, '"extended" or "memory"'),
            ({"socket": "/tmp/too-long"}, "at most 10 bytes"),
            ({"socket": "a\nb"}, "a printable text"),
            ({"socket": 7}, "a printable text"),
            ({"retry_min_ms": 0}, "retry_min_ms is 0"),
        ):
            with self.subTest(given):
                self.assertIn(message, self.refusal(**given))
                self.assertTrue(self.refusal(**given).startswith("Module: "))

    def test_pauses_that_contradict_each_other_are_refused(self):
        self.assertIn("more than retry_max_ms", self.refusal(retry_min_ms=500, retry_max_ms=100))
        for given, pause in (({"retry_max_ms": 20}, 20), ({"retry_min_ms": 5000}, 5000)):
            read = self.read(**given)
            self.assertEqual((read["retry_min_ms"], read["retry_max_ms"]), (pause, pause))

    def test_a_long_value_is_shown_in_part(self):
        self.assertLess(len(self.refusal(socket="x" * 10_000)), 300)

    def test_a_key_that_is_none_names_the_nearest(self):
        self.assertEqual(
            self.refusal(retension="memory"),
            "Module has no option retension: retention is meant, perhaps",
        )
        self.assertIn("only keep_kv_cache, ", self.refusal(zzz=1))

    def test_beside_another_module_s_keys_only_slips_are_refused(self):
        self.assertEqual(self.read(None, interface_v1=1, prefetch_threshold=2)["rows"], 8)
        self.assertIn("retention", self.refusal(None, retension="memory"))


if __name__ == "__main__":
    unittest.main()
