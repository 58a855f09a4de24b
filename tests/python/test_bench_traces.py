# SPDX-License-Identifier: Apache-2.0
"""The loads that tools/engine-bench.sh reads from traces."""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools/bench/engine"))

import conversation  # noqa: E402
from conversation import TraceError  # noqa: E402

VOCABULARY = 1000
GOOD = {"timestamp": 0, "input_length": 1200, "output_length": 40, "hash_ids": [7, 8, 9]}


class BenchTracesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-traces-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def chat(self, *lines, count=9, requests_per_s=2.0):
        path = self.directory / "chat.jsonl"
        path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
        return conversation.read_chat(path, VOCABULARY, 1000, count, 1, requests_per_s)

    def sessions(self, trace, count=1):
        (self.directory / "session.json").write_text(json.dumps(trace))
        return conversation.read_sessions(self.directory, VOCABULARY, 1000, count, 5, 1)

    def test_requests_of_chat_come_as_far_apart_as_in_the_trace_at_the_wanted_rate(self):
        lines = [{**GOOD, "timestamp": at} for at in (500, 500, 1500, 4500)]
        self.assertEqual(self.chat(*lines, "").delays_s, [0.0, 0.0, 0.5, 2.0])

    def test_requests_of_chat_share_the_blocks_whose_ids_they_share(self):
        other = {**GOOD, "timestamp": 1, "input_length": 2048, "hash_ids": [7, 8, 5, 6]}
        first, second = (one[0].prompt for one in self.chat(GOOD, other).sessions)
        self.assertEqual((len(first), len(second)), (300, 512))
        self.assertEqual(first[:256], second[:256])
        self.assertNotEqual(first[256:], second[256:300])

    def test_longer_requests_are_passed_over_and_more_than_wanted_not_read(self):
        long = {**GOOD, "input_length": 5000, "hash_ids": list(range(10))}
        later = {**GOOD, "timestamp": 5}
        load = self.chat(long, GOOD, later, "no JSON", count=2)
        self.assertEqual(len(load.sessions), 2)

    def test_a_line_that_is_no_request_is_told_by_its_number(self):
        wrong = [
            "no JSON",
            [],
            {**GOOD, "timestamp": None},
            {**GOOD, "timestamp": float("nan")},
            {**GOOD, "input_length": "1200"},
            {**GOOD, "input_length": 10**400},
            {**GOOD, "input_length": 9000},
            {**GOOD, "hash_ids": []},
            {**GOOD, "hash_ids": [1.5, 2, 3]},
            {key: value for key, value in GOOD.items() if key != "output_length"},
        ]
        for line in wrong:
            with self.subTest(line=str(line)[:60]), self.assertRaisesRegex(TraceError, "line 2"):
                self.chat(GOOD, line)

    def test_times_that_give_no_rate_are_refused(self):
        with self.assertRaisesRegex(TraceError, "line 2: timestamp"):
            self.chat({**GOOD, "timestamp": 9}, GOOD)
        with self.assertRaisesRegex(TraceError, "are equal"):
            self.chat(GOOD, GOOD)
        with self.assertRaisesRegex(TraceError, "no request"):
            self.chat()

    def test_each_turn_of_a_session_begins_with_the_one_before(self):
        requests = [
            {"in": 128, "out": 8, "hash_ids": [1, 2]},
            {"think_time": 4},
            {"in": 250, "out": 8, "hash_ids": [1, 2, 3], "think_time": 20},
        ]
        trace = {"block_size": 64, "requests": requests}
        first, second = self.sessions(trace)[0]
        self.assertEqual((len(first.prompt), len(second.prompt)), (32, 48))
        self.assertEqual(second.prompt[:32], first.prompt)
        self.assertEqual(second.think_s, 1.0)
        one, other = (session[0].prompt for session in self.sessions(trace, count=2))
        self.assertNotEqual(one, other)

    def test_a_file_that_is_no_session_is_named(self):
        for trace in ({}, [], {"block_size": 64, "requests": [3]}, {"block_size": 0, "requests": []}):
            with self.subTest(trace=trace), self.assertRaisesRegex(TraceError, "session.json"):
                self.sessions(trace)
        with self.assertRaisesRegex(TraceError, "two requests or more"):
            self.sessions({"block_size": 64, "requests": []})
        with self.assertRaisesRegex(TraceError, "no directory"):
            conversation.read_sessions(self.directory / "none", VOCABULARY, 1000, 1, 5, 1)


if __name__ == "__main__":
    unittest.main()
