# SPDX-License-Identifier: Apache-2.0
"""tools/campaign: what it counts and keeps, the bytes it expects, and where it damages. Its parts run
on real daemons for minutes and are no test of this tree's: tools/campaign.sh."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import random
import sys
import tempfile
import unittest
from unittest import mock

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/campaign"


def load(name):
    """The tool is a folder that python3 runs, not a package: its modules are loaded by path."""
    spec = importlib.util.spec_from_file_location(name, TOOL / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


record = load("record")
blocks = load("blocks")
world = load("world")
damage = load("damage")
soak = load("soak")
simulations = load("simulations")


class CampaignTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-campaign-test-")
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "campaign.json"
        # Failures are printed at once.
        output = contextlib.redirect_stdout(io.StringIO())
        output.__enter__()
        self.addCleanup(output.__exit__, None, None, None)

    def job(self, seconds=0.0, first_seed=5):
        return record.Job("part", record.Record(self.path, 1), seconds, first_seed)

    def part(self):
        return json.loads(self.path.read_text())["parts"]["part"]


class RecordTest(CampaignTest):
    def test_a_part_without_time_has_one_round(self):
        self.assertEqual(list(self.job().seeds()), [5])
        self.assertEqual((self.part()["rounds"], self.part()["next_seed"]), (1, 6))

    def test_a_later_run_goes_on_with_the_next_seed_and_adds_what_it_counts(self):
        for _ in range(2):
            job = self.job(first_seed=100)
            for _ in job.seeds(10):
                job.count("kills", 3)
                job.peak("most", 7)
        self.assertEqual(self.part()["counts"], {"kills": 6})
        self.assertEqual(self.part()["peaks"], {"most": 7})
        self.assertEqual(self.part()["next_seed"], 120)

    def test_a_failure_names_its_seed_in_the_file_and_in_the_table(self):
        job = self.job()
        for seed in job.seeds():
            job.fail(seed, "a wrong byte", log="x" * 10_000 + "the end")
        failure = self.part()["failures"][0]
        self.assertEqual(failure["again"], "tools/campaign.sh --only part --seed 5")
        self.assertTrue(failure["log"].endswith("the end"))
        self.assertLess(len(failure["log"]), 5000)
        self.assertIn("| seed 5 |", record.Record(self.path, 1).to_markdown())

    def test_a_part_that_fails_again_and_again_is_over(self):
        job = self.job(seconds=3600)
        for seed in job.seeds():
            job.fail(seed, "a wrong byte")
        self.assertEqual(len(self.part()["failures"]), record.MAX_FAILURES)

    def test_a_part_that_cannot_run_says_why(self):
        self.job().skip("no fuzzer is built")
        self.assertIn("not run: no fuzzer is built", record.Record(self.path, 1).to_markdown())

    def test_another_file_is_refused(self):
        self.path.write_text('{"schema": "another/1"}')
        with self.assertRaises(ValueError):
            record.Record(self.path, 1)


class ProgramsTest(CampaignTest):
    """With programs in the place of the build's that print what those print."""

    def setUp(self):
        super().setUp()
        self.build = self.path.parent
        (self.build / "bin").mkdir()
        environment = mock.patch.dict(os.environ, KVTIER_BUILD_DIRECTORY=str(self.build))
        environment.start()
        self.addCleanup(environment.stop)

    def make_program(self, name, text):
        path = self.build / "bin" / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def test_seeds_that_fail_are_named_and_the_others_counted(self):
        self.make_program(
            "kvtier-sim",
            'echo "seed 5012 failed; again with: ..." >&2\n'
            'echo "kvtier-sim: 199 seeds hold, 1 fail; 700 events, 80 crashes, 9 blocks"\n'
            "exit 1\n",
        )
        simulations.run_simulations(self.job(first_seed=5000))
        part = self.part()
        self.assertEqual([failure["seed"] for failure in part["failures"]], [5012])
        self.assertEqual(part["counts"], {"histories held": 199, "events": 700, "deaths": 80})
        self.assertEqual(part["next_seed"], 5200)

    def test_a_simulator_that_dies_is_a_failure(self):
        self.make_program("kvtier-sim", "exit 3\n")
        simulations.run_simulations(self.job())
        self.assertIn("without a summary", self.part()["failures"][0]["what"])

    def make_fuzzer(self, text):
        fuzzer = self.make_program("fuzz_one", text)
        tests = self.build / "tests/fuzz"
        tests.mkdir(parents=True)
        line = f'add_test([=[fuzz_one]=] "{fuzzer}" "-max_total_time=60" "-max_len=8" "found" "corpus")'
        (tests / "CTestTestfile.cmake").write_text(f"# It's made by cmake.\n{line}\n")

    def test_fuzzers_are_those_of_the_builds_tests(self):
        self.make_fuzzer('echo "stat::number_of_executed_units: 123"\n')
        simulations.run_fuzzers(self.job())
        self.assertEqual(self.part()["counts"]["inputs of fuzz_one"], 123)
        self.assertEqual(self.part()["failures"], [])

    def test_an_input_that_fails_is_in_the_report(self):
        self.make_fuzzer(
            'for word; do case $word in -exact_artifact_path=*) printf AB >"${word#*=}" ;; esac; done\n'
        )
        simulations.run_fuzzers(self.job())
        self.assertIn("fuzz_one failed on the input 4142", self.part()["failures"][0]["what"])


class DamageTest(unittest.TestCase):
    def test_the_bytes_of_a_block_follow_from_its_hash(self):
        one, other = blocks.block_hash(1), blocks.block_hash(2)
        self.assertEqual(blocks.bytes_of(one).nbytes, blocks.BLOCK_BYTES)
        self.assertTrue((blocks.bytes_of(one) == blocks.bytes_of(one)).all())
        self.assertFalse((blocks.bytes_of(one) == blocks.bytes_of(other)).all())

    def test_slots_are_found_by_the_hash_in_their_headers(self):
        memory = bytearray(3 * blocks.SLOT_BYTES)
        wanted = blocks.block_hash("wanted")
        memory[blocks.SLOT_BYTES : blocks.SLOT_BYTES + 8] = b"KVTSLOT1"
        memory[blocks.SLOT_BYTES + 64 : blocks.SLOT_BYTES + 96] = wanted
        self.assertEqual(damage.slots_in(memory, 0), {wanted: blocks.SLOT_BYTES})
        self.assertEqual(damage.slots_in(memory, 2 * blocks.SLOT_BYTES), {})

    def test_a_flipped_byte_is_always_another_one(self):
        memory = bytearray(range(256))
        for place in range(256):
            damage.flip(memory, place, random.Random(place))
        self.assertTrue(all(memory[place] != place for place in range(256)))


class SoakTest(unittest.TestCase):
    def test_memory_that_grows_to_the_end_is_told_from_memory_that_is_flat(self):
        flat = [(30, 14, 40 << 20)] * 30
        self.assertEqual(soak.grown(flat), "")
        growing = [(30, 14, (40 + i) << 20) for i in range(60)]
        self.assertIn("resident memory", soak.grown(growing))
        leaking = [(30 + i, 14, 40 << 20) for i in range(30)]
        self.assertIn("descriptors", soak.grown(leaking))

    def test_what_is_allocated_at_the_beginning_is_no_growth(self):
        samples = [(30, 14, min(40, 10 + i) << 20) for i in range(120)]
        self.assertEqual(soak.grown(samples), "")


if __name__ == "__main__":
    unittest.main()
