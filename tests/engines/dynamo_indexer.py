# SPDX-License-Identifier: Apache-2.0
"""The indexer of Dynamo's wheel beside a real kvtierd: it knows the prefixes of a daemon that was there
before it, and of one that has been started again. tools/test-dynamo.sh runs it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from typing import Any, Callable

import numpy as np
from harness.private_daemon import PrivateDaemon

import kvtier

BLOCKS, BLOCK_TOKENS = 8, 16
TOKENS = BLOCKS * BLOCK_TOKENS
TIMEOUT_S = 60
MODEL = "some/model"
RECORD = kvtier.ModelRecord(
    name=MODEL, layers=2, kv_heads=2, k_head_dim=32, v_head_dim=32, block_tokens=BLOCK_TOKENS
)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def prompt(seed: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.arange(TOKENS, dtype=np.uint32) + 1000 * seed


def eventually(holds: Callable[[], bool], message: Callable[[], str]) -> None:
    """Asks again until it holds: the indexer does not say when it has learnt something."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(message())
        threading.Event().wait(0.05)


class Indexer:
    """`python -m dynamo.indexer`, which knows one worker."""

    def __init__(self, test: unittest.TestCase, log: str) -> None:
        self.port = free_port()
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dynamo.indexer", "--port", str(self.port)],
                stdout=output,
                stderr=output,
            )
        test.addCleanup(self.end)
        eventually(self.answers, self.said)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()[-4000:]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/workers", timeout=5):
                return True
        except OSError:
            return False

    def post(self, path: str, **fields: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}",
            json.dumps(fields).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.load(response)

    def register(self, endpoint: str, replay_endpoint: str | None) -> None:
        self.post(
            "register",
            instance_id=1,
            endpoint=endpoint,
            replay_endpoint=replay_endpoint,
            model_name=MODEL,
            block_size=BLOCK_TOKENS,
        )

    def found(self, seed: int) -> dict[str, int]:
        """Tokens of the prompt in each tier, and in a row from its beginning in all."""
        answer = self.post("query", token_ids=prompt(seed).tolist(), model_name=MODEL)
        worker = answer["instances"].get("1", {})
        return {tier: worker.get(tier, 0) for tier in ("longest_matched", "gpu", "cpu", "disk")}


class DynamoIndexerTest(unittest.TestCase):
    def start(self, *settings: str) -> None:
        directory = tempfile.TemporaryDirectory(prefix="kvtier-dynamo-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.replay_endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.daemon = PrivateDaemon(
            directory.name,
            [
                "pool.bytes=2MiB",
                "pool.device=host",
                "host.bytes=4MiB",
                "cache.slab_bytes=64KiB",
                "disk.bytes=4MiB",
                "disk.free_floor_bytes=0B",
                f"events.endpoint={self.endpoint}",
                f"events.replay_endpoint={self.replay_endpoint}",
                'events.token_ids=["default"]',
                *settings,
            ],
        )
        self.addCleanup(self.daemon.kill)
        self.daemon.start()

    def compute(self, seed: int) -> None:
        with kvtier.connect(self.daemon.socket) as connection:
            pool = connection.attach(connection.register_model(RECORD))
            with pool.open_sequence(prompt(seed)) as sequence:
                sequence.wait()
                sequence.mark_computed(TOKENS)
                sequence.finish()

    def indexer(self, replays: bool) -> Indexer:
        indexer = Indexer(self, f"{self.directory}/indexer-{replays}.log")
        indexer.register(self.endpoint, self.replay_endpoint if replays else None)
        return indexer

    def expect(self, indexer: Indexer, seed: int, **tiers: int) -> None:
        eventually(
            lambda: tiers.items() <= indexer.found(seed).items(),
            lambda: f"{seed}: {indexer.found(seed)}, wanted {tiers}\n{indexer.said()}",
        )

    def test_one_that_comes_later_knows_what_is_cached(self) -> None:
        for replays in (False, True):
            with self.subTest(replays=replays):
                self.start()
                for seed in range(4):
                    self.compute(seed)
                indexer = self.indexer(replays)
                for seed in range(4):
                    self.expect(indexer, seed, longest_matched=TOKENS, gpu=TOKENS)
                self.compute(9)
                self.expect(indexer, 9, longest_matched=TOKENS, gpu=TOKENS)
                another = self.indexer(not replays)
                self.expect(another, 9, longest_matched=TOKENS, gpu=TOKENS)
                self.compute(10)
                for each in (indexer, another):
                    self.expect(each, 10, longest_matched=TOKENS, gpu=TOKENS)

    def test_one_that_outlives_the_daemon_knows_what_the_next_one_has(self) -> None:
        for replays in (False, True):
            with self.subTest(replays=replays):
                self.start()
                indexer = self.indexer(replays)
                self.compute(1)
                self.expect(indexer, 1, longest_matched=TOKENS, gpu=TOKENS)
                self.daemon.stop()
                self.daemon.start()
                self.compute(2)
                self.expect(indexer, 2, longest_matched=TOKENS, gpu=TOKENS)
                # It is on the disk, and no more in the pool.
                self.expect(indexer, 1, longest_matched=TOKENS, gpu=0, disk=TOKENS)


if __name__ == "__main__":
    unittest.main()
