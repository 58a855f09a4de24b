# SPDX-License-Identifier: Apache-2.0
"""The programs that start in the image of vLLM and kvtierd, with others in their places that only
say how they were called."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from harness.paths import SOURCE

ENTRYPOINT = SOURCE / "tools" / "packaging" / "vllm" / "kvtier-vllm"
# One line for each argument, to a file of the program's name; the script becomes `vllm`, which ends
# it once the daemon beside it has written.
PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
name=$(basename "$0")
{ echo "cache=${XDG_CACHE_HOME-}"; for word; do echo "$word" | tr '\\n' ' '; echo; done; } > ".$name"
mv ".$name" "$name.called"
"""


class VllmImageTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-image-")
        self.addCleanup(directory.cleanup)
        self.programs = pathlib.Path(directory.name)
        for name in ("kvtierd", "vllm"):
            path = self.programs / name
            path.write_text(PROGRAM)
            path.chmod(0o755)

    def start(self, *arguments, **variables):
        path = f"{self.programs}:{os.environ['PATH']}"
        environment = {"PATH": path, **variables}
        # Its output ends when the daemon has ended, too.
        subprocess.run([ENTRYPOINT, *arguments], env=environment, check=True, capture_output=True)

    def called(self, name):
        lines = (self.programs / f"{name}.called").read_text().splitlines()
        return [line.rstrip() for line in lines]

    def test_a_daemon_and_a_server_with_the_connector_are_started(self):
        self.start("MODEL", "--tensor-parallel-size", "8", KVTIERD_ARGS="--set host.bytes=512GiB")
        self.assertEqual(
            self.called("kvtierd"),
            ["cache=/var/lib/kvtier", "--dev", "--set", "host.bytes=512GiB"],
        )
        cache, *words, config = self.called("vllm")
        self.assertEqual(cache, "cache=", "vLLM's models are where its image has them")
        self.assertEqual(words[:4], ["serve", "MODEL", "--tensor-parallel-size", "8"])
        self.assertIn("sha256_cbor", words)
        config = json.loads(config)
        self.assertEqual(config["kv_connector"], "KvtierConnector")
        self.assertEqual(config["kv_load_failure_policy"], "recompute")
        self.assertEqual(config["kv_connector_extra_config"], {})

    def test_no_daemon_is_started_where_one_runs_elsewhere(self):
        self.start(
            "MODEL",
            KVTIER_SOCKET="/run/kvtier/kvtier.sock",
            KVTIER_CONNECTOR_OPTIONS='{"keep_kv_cache": true}',
        )
        self.assertFalse((self.programs / "kvtierd.called").exists())
        config = json.loads(self.called("vllm")[-1])
        self.assertEqual(config["kv_connector_extra_config"], {"keep_kv_cache": True})


if __name__ == "__main__":
    unittest.main()
