# SPDX-License-Identifier: Apache-2.0
"""`python -m kvtier.demo`, and how programs of the package are found."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from harness.daemon_test_case import DaemonTestCase
from harness.paths import daemon_program
from kvtier import _programs
from kvtier.demo import model as model_module
from kvtier.demo.model import Model

TIMEOUT_S = 180
NO_BLOCKS = {"pool": 0, "host": 0, "disk": 0}


def run_demo(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "kvtier.demo", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class DemoTest(unittest.TestCase):
    def test_it_shows_the_prompt_from_each_tier_with_a_daemon_of_its_own(self):
        done = run_demo("--private", KVTIERD=str(daemon_program()))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("identical=yes", done.stdout)
        rows = [line.split() for line in done.stdout.splitlines()]
        sources = {row[0]: row[-1] for row in rows if row and row[0] in ("pool", "host", "disk")}
        self.assertEqual(sources, {"pool": "pool", "host": "host", "disk": "disk"})
        self.assertIn("the LORD", done.stdout)

    def test_it_says_what_is_missing_where_there_is_no_daemon_to_start(self):
        done = run_demo("--private", KVTIERD="/nonexistent/kvtierd")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/kvtierd", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class ModelTest(DaemonTestCase):
    more_settings = ("pool.bytes=4MiB", "cache.slab_bytes=4MiB", "host.bytes=8MiB")

    def continuation(self, text, count):
        """With greedy decoding."""
        model, tokens = Model(), list(text.encode())
        pool = self.attach(model.record)
        with pool.open_sequence(tokens, reserve_tokens=count) as sequence:
            logits = model.forward(pool, sequence, 0, tokens)
            for _ in range(count):
                tokens.append(int(logits.argmax()))
                sequence.append(tokens[-1:])
                logits = model.forward(pool, sequence, len(tokens) - 1, tokens[-1:])
        return bytes(tokens[len(text) :]).decode()

    def test_the_weights_continue_texts_like_those_they_were_trained_on(self):
        self.assertEqual(
            self.continuation("And it came to pass in those days, that ", 60),
            "the LORD said unto him, Thus saith the LORD, I will give the",
        )
        self.assertEqual(
            self.continuation('"My dear Jane," said Elizabeth, ', 60),
            '"that I am not at all afraid of her being able to see you ag',
        )

    def test_damaged_weights_are_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            weights = bytearray(model_module._WEIGHTS.read_bytes())
            weights[len(weights) // 2] ^= 1
            damaged = pathlib.Path(directory) / "damaged.kvtmodel"
            damaged.write_bytes(weights)
            with unittest.mock.patch.object(model_module, "_WEIGHTS", damaged):
                with self.assertRaisesRegex(ValueError, "damaged.kvtmodel is damaged"):
                    Model()


class RunningDaemonTest(DaemonTestCase):
    more_settings = ("pool.bytes=32MiB", "host.bytes=64MiB", "disk.bytes=256MiB",
                     "cache.slab_bytes=4MiB")

    def test_it_uses_the_daemon_that_runs_and_leaves_no_blocks_behind(self):
        done = run_demo(KVTIER_SOCKET=self.daemon.socket)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"the one that runs, at {self.daemon.socket}", done.stdout)
        self.assertIn("identical=yes", done.stdout)
        tiers = self.daemon.status()["tiers"]
        self.assertEqual({name: tier["blocks"] for name, tier in tiers.items()}, NO_BLOCKS)
        # The pool is there still, without anything in it.
        self.assertEqual(tiers["pool"]["used_bytes"], 0)
        self.assertGreater(tiers["pool"]["allocated_bytes"], 0)


class ProgramsTest(unittest.TestCase):
    def test_a_program_is_named_or_carried_or_on_the_search_path(self):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "kvtierd"
            program.touch(0o755)
            with unittest.mock.patch.dict(os.environ, KVTIERD="/named", PATH=directory):
                self.assertEqual(_programs.find("kvtierd"), "/named")
                del os.environ["KVTIERD"]
                self.assertEqual(_programs.find("kvtierd"), str(program))
                with unittest.mock.patch.object(_programs, "_DIRECTORY", program.parent):
                    os.environ["PATH"] = "/nonexistent"
                    self.assertEqual(_programs.find("kvtierd"), str(program))
                with self.assertRaises(_programs.ProgramNotFoundError):
                    _programs.find("kvtierd")
                with self.assertRaisesRegex(SystemExit, "kvtierd.*cannot be run"):
                    _programs.kvtierd()


if __name__ == "__main__":
    unittest.main()
