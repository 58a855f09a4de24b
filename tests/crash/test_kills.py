# SPDX-License-Identifier: Apache-2.0
"""kill -9 of daemons and of clients at random moments, as tools/campaign does it for hours, for a
minute each. Prints KVTIER_SEED=N, and takes it from the environment again."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("KVTIER_SEED", 1))
SECONDS = 60
FEWEST_KILLS = 40
REFERENCES_GONE_WITHIN_MS = 1000


class KillTest(unittest.TestCase):
    def play(self, part, seed):
        """Runs a part of the campaign; returns its counts, and its largest values."""
        print(f"KVTIER_SEED={SEED}", flush=True)
        with tempfile.TemporaryDirectory(prefix="kvtier-kills-") as directory:
            record = pathlib.Path(directory) / "campaign.json"
            command = [sys.executable, SOURCE / "tools/campaign", "--only", part]
            command += ["--minutes", str(SECONDS / 60), "--seed", str(seed), "--resume", record]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            print(done.stdout, flush=True)
            entry = json.loads(record.read_text())["parts"][part]
        counts, peaks = entry["counts"], entry["peaks"]
        self.assertGreater(counts["kills"], FEWEST_KILLS)
        self.assertEqual(counts["wrong blocks"], 0)
        return counts, peaks

    def assert_promises_were_kept(self, counts):
        """A block that is missing fails the campaign; here, that there was something to miss."""
        self.assertGreater(counts["promises checked"], 5 * counts["kills"])
        self.assertGreater(counts["promised blocks read"], 0)
        self.assertGreater(counts["requests without a daemon"], 0)
        for tier in ("pool", "host", "disk"):
            self.assertGreater(counts[f"hits in {tier}"], 0)

    def test_killed_daemons_forget_nothing_on_disk_and_serve_no_wrong_byte(self):
        counts, _ = self.play("daemon-kill", SEED)
        self.assert_promises_were_kept(counts)
        self.assertEqual(counts["blocks adopted"], 0)

    def test_the_same_where_host_memory_outlives_daemons_and_sometimes_its_keeper_dies_too(self):
        counts, _ = self.play("kept-daemon-kill", SEED)
        self.assert_promises_were_kept(counts)
        self.assertGreater(counts["of them with the keeper"], 0)
        self.assertGreater(counts["blocks adopted"], 0)

    def test_references_of_killed_clients_go_within_a_second_and_others_see_no_wrong_byte(self):
        counts, peaks = self.play("client-kill", SEED)
        self.assertLess(peaks["longest time to give back in ms"], REFERENCES_GONE_WITHIN_MS)
        self.assertGreater(counts["bytes checked"], 0)


if __name__ == "__main__":
    unittest.main()
