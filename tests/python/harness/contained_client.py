# SPDX-License-Identifier: Apache-2.0
"""An engine's process in a container: reads what to do from standard input, a JSON list in each line,
and answers with a line of JSON. Knows nothing but the path of the daemon's socket."""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
from typing import Any, Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np  # noqa: E402

import kvtier  # noqa: E402
from harness.daemon_test_case import BLOCK_BYTES, BLOCK_TOKENS, RECORD, prompt  # noqa: E402


class Client:
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._held: list[Any] = []

    def attach(self, pool_blocks: int = 0) -> str:
        """Empty, or why it was refused. 0: all that is left of the pool."""
        try:
            self._connection = kvtier.connect(
                self._socket, request_timeout_ms=30_000, reconnect_min_ms=0, reconnect_max_ms=0
            )
            model = self._connection.register_model(RECORD)
            self._pool = self._connection.attach(model, pool_bytes=pool_blocks * BLOCK_BYTES)
        except kvtier.KvtierError as error:
            return str(error)
        return ""

    def whoami(self) -> list[int]:
        """User and process, as this process sees itself."""
        return [os.getuid(), os.getpid()]

    def sees(self, path: str) -> bool:
        return os.path.exists(path)

    def can_write(self, directory: str) -> bool:
        try:
            open(os.path.join(directory, "written"), "w").close()
        except OSError:
            return False
        return True

    def store(self, blocks: int, fill: int) -> int:
        """Computes a prompt of so many blocks; returns how many were committed."""
        hashes = self._pool.hash_blocks(prompt(blocks=blocks))
        with self._pool.acquire(new_blocks=blocks) as got:
            memory = self._pool.memory().block_bytes()
            for block in got.new_blocks:
                memory[block.index] = fill
            entries = kvtier.chain_entries(hashes, got.new_blocks, BLOCK_TOKENS)
            return self._pool.commit_and_wait(entries).count(kvtier.Status.OK)

    def load(self, blocks: int) -> list[int]:
        """How many blocks of the prompt were found, and the bytes that all of them hold."""
        hashes = self._pool.hash_blocks(prompt(blocks=blocks))
        with self._pool.acquire(hashes) as got:
            if got.load is not None:
                got.wait()
            held = self._pool.memory().block_bytes()[got.block_table()]
            return [len(got.hits), *np.unique(held).tolist()]

    def take(self, blocks: int) -> int:
        """Private blocks, kept; how many there were."""
        try:
            got = self._pool.acquire(new_blocks=blocks)
        except kvtier.ResourceExhaustedError:
            return 0
        self._held.append(got)
        return len(got.new_blocks)

    def region(self, fill: int) -> list[int]:
        """Stores a row of memory that this process lends, loads it into another; its bytes there."""
        with open(os.memfd_create("rows"), "r+b", buffering=0) as file:
            os.ftruncate(file.fileno(), 2 * BLOCK_BYTES)
            rows = np.frombuffer(mmap.mmap(file.fileno(), 2 * BLOCK_BYTES), np.uint8)
            rows[:BLOCK_BYTES] = fill
            name = bytes([fill]) * 32
            with self._connection.open_region(
                RECORD, fd=file.fileno(), bytes=2 * BLOCK_BYTES, blocks=2
            ) as region:
                stored = region.wait(region.store_many(np.array([0]), name, [None]))
                loaded = region.wait(region.load_many(np.array([1]), name))
                assert stored.error is None and loaded.error is None, (stored, loaded)
                return np.unique(rows[BLOCK_BYTES:]).tolist()

    def disconnect(self) -> bool:
        """Breaks off, without giving anything back first. The process lives on, with its mapped
        memory."""
        broken = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
            except FileNotFoundError:  # the listing's own
                continue
            with socket.socket(fileno=os.dup(int(name))) as connected:
                if connected.getpeername() == self._socket:
                    connected.shutdown(socket.SHUT_RDWR)
                    broken += 1
        return broken == 1


def main() -> None:
    client = Client(sys.argv[1])
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        act: Callable[..., Any] = getattr(client, verb)
        print(json.dumps(act(*arguments)), flush=True)


if __name__ == "__main__":
    main()
