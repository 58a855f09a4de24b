# SPDX-License-Identifier: Apache-2.0
"""The counts of workers that are killed, in a file that they and the campaign map."""

from __future__ import annotations

import mmap
import pathlib

import numpy as np

#: How many workers a file has place for.
WORKERS = 12
COUNTS = (
    "starts",
    "own blocks checked",
    "kept blocks checked",
    "loaded blocks checked",
    "wrong blocks",
    "blocks not loaded",
    "stores ended",
    "loads begun",
    "loads ended",
    "served",
)


def block_bytes(device: str) -> int:
    """On a GPU a load takes long enough to be cut off."""
    return 64 << 10 if device == "host" else 1 << 20


class Findings:
    """The counts of one worker, whichever process it is, which alone writes them."""

    def __init__(self, file: mmap.mmap, worker: int) -> None:
        counts = np.frombuffer(file, dtype=np.int64).reshape(WORKERS, len(COUNTS))
        self._counts = counts[worker]

    def add(self, what: str) -> None:
        self._counts[COUNTS.index(what)] += 1

    def set(self, what: str, value: int) -> None:
        self._counts[COUNTS.index(what)] = value

    def get(self, what: str) -> int:
        return int(self._counts[COUNTS.index(what)])


class FindingsFile:
    """All of them, zero at first."""

    def __init__(self, path: pathlib.Path) -> None:
        path.write_bytes(bytes(8 * WORKERS * len(COUNTS)))
        with open(path, "r+b") as file:
            self._file = mmap.mmap(file.fileno(), 0)
        self.of = [Findings(self._file, worker) for worker in range(WORKERS)]

    def sum(self, what: str) -> int:
        return sum(one.get(what) for one in self.of)
