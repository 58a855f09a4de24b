# SPDX-License-Identifier: Apache-2.0
"""A campaign's results so far: counted, kept in a JSON file, shown as a table in Markdown."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

SCHEMA = "kvtier-campaign/1"
MAX_FAILURES = 5
_TEXT_LIMIT = 4000


class Record:
    """The file of a campaign: one entry for each part, to which every run adds. One thread."""

    def __init__(self, path: pathlib.Path, seed: int) -> None:
        """Continues the file if it is there. Raises ValueError (it is not a campaign's)."""
        self._path = path
        self._document: dict[str, Any] = {"schema": SCHEMA, "seed": seed, "parts": {}}
        if path.exists():
            self._document = json.loads(path.read_text())
            if not isinstance(self._document, dict) or self._document.get("schema") != SCHEMA:
                raise ValueError(f"{path} is not a record of a campaign")

    def part(self, name: str, first_seed: int) -> dict[str, Any]:
        """The entry of a part, made if it is not there."""
        empty = {
            "rounds": 0,
            "seconds": 0.0,
            "first_seed": first_seed,
            "next_seed": first_seed,
            "counts": {},
            "peaks": {},
            "failures": [],
            "skipped": "",
        }
        return self._document["parts"].setdefault(name, empty)

    def merge(self, other: dict[str, Any]) -> None:
        """Adds what another run has done: of a process of this one, or on another machine. Raises
        ValueError (it is not a campaign's document)."""
        if not isinstance(other, dict) or other.get("schema") != SCHEMA:
            raise ValueError("this is not a record of a campaign")
        for name, theirs in other["parts"].items():
            ours = self.part(name, theirs["first_seed"])
            was_run = ours["rounds"] > 0
            ours["skipped"] = "" if was_run or theirs["rounds"] else theirs["skipped"]
            ours["first_seed"] = min(ours["first_seed"], theirs["first_seed"])
            ours["next_seed"] = max(ours["next_seed"], theirs["next_seed"])
            for what in ("rounds", "seconds"):
                ours[what] += theirs[what]
            for what, number in theirs["counts"].items():
                ours["counts"][what] = ours["counts"].get(what, 0) + number
            for what, value in theirs["peaks"].items():
                ours["peaks"][what] = max(ours["peaks"].get(what, value), value)
            ours["failures"] += theirs["failures"]

    def document(self) -> dict[str, Any]:
        return self._document

    def failures(self) -> int:
        return sum(len(part["failures"]) for part in self._document["parts"].values())

    def save(self) -> None:
        """A reader finds the old file or the new one."""
        temporary = self._path.with_name(self._path.name + ".new")
        temporary.write_text(json.dumps(self._document, indent=1) + "\n")
        os.replace(temporary, self._path)

    def to_markdown(self) -> str:
        lines = [
            "| part | time | seeds | work done | failures |",
            "|---|---|---|---|---|",
        ]
        for name, part in self._document["parts"].items():
            if part["skipped"]:
                lines.append(f"| `{name}` | | | not run: {part['skipped']} | |")
                continue
            done = [f"{value:,} {what}" for what, value in part["counts"].items()]
            done += [f"{what} {value:,}" for what, value in part["peaks"].items()]
            seeds = f"{part['first_seed']} to {part['next_seed'] - 1}"
            failed = ", ".join(f"seed {failure['seed']}" for failure in part["failures"]) or "none"
            minutes = part["seconds"] / 60
            lines.append(f"| `{name}` | {minutes:.1f} min | {seeds} | {'; '.join(done)} | {failed} |")
        return "\n".join(lines) + "\n"


class Dealer:
    """Gives each seed to one of the processes that are forked from this one."""

    def __init__(self, first: int) -> None:
        self._file = tempfile.TemporaryFile(prefix="kvtier-campaign-")
        self._put(first)

    def take(self, count: int) -> int:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            first = int.from_bytes(os.pread(self._file.fileno(), 8, 0), "little")
            self._put(first + count)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return first

    def close(self) -> None:
        self._file.close()

    def _put(self, seed: int) -> None:
        os.pwrite(self._file.fileno(), seed.to_bytes(8, "little"), 0)


class Job:
    """One part's share of a run: how long it may take, and its results. One thread.

    deal: gives the next so many seeds, where several jobs share a range; without it the job goes on
    where its record ends. again: what a command that repeats a seed needs beyond it."""

    def __init__(
        self,
        name: str,
        record: Record,
        seconds: float,
        first_seed: int,
        deal: Callable[[int], int] | None = None,
        again: str = "",
    ) -> None:
        self.name = name
        self._again = again
        self._deal = deal
        self._record = record
        self._entry = record.part(name, first_seed)
        self._started = time.monotonic()
        self._seconds_before = self._entry["seconds"]
        self._deadline = self._started + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def is_over(self) -> bool:
        """True when the time is up, or enough has failed."""
        return self.seconds_left == 0 or len(self._entry["failures"]) >= MAX_FAILURES

    def seeds(self, step: int = 1) -> Iterator[int]:
        """The first seed of each round, `step` apart, until the part is over; at least one. A
        round's counts are saved with it."""
        while True:
            self._entry["skipped"] = ""
            seed = self._entry["next_seed"] if self._deal is None else self._deal(step)
            yield seed
            self._entry["next_seed"] = max(self._entry["next_seed"], seed + step)
            self._entry["rounds"] += 1
            self._save()
            if self.is_over():
                return

    def count(self, what: str, number: int = 1) -> None:
        counts = self._entry["counts"]
        counts[what] = counts.get(what, 0) + int(number)

    def peak(self, what: str, value: int) -> None:
        """Keeps the largest."""
        peaks = self._entry["peaks"]
        peaks[what] = max(peaks.get(what, value), value)

    def skip(self, reason: str) -> None:
        """Nothing was done, for a reason."""
        if self._entry["rounds"] == 0:
            self._entry["skipped"] = reason
        print(f"{self.name}: not run: {reason}", flush=True)
        self._save()

    def fail(self, seed: int, what: str, log: str = "") -> None:
        """Reports a failure at once, and how to see it again."""
        again = f"tools/campaign.sh --only {self.name} --seed {seed}{self._again}"
        failure = {"seed": seed, "what": what[:_TEXT_LIMIT], "again": again}
        if log:
            failure["log"] = log[-_TEXT_LIMIT:]
        self._entry["failures"].append(failure)
        print(f"{self.name}: FAILED, seed {seed}: {what}\n  again: {again}", flush=True)
        self._save()

    def _save(self) -> None:
        self._entry["seconds"] = self._seconds_before + time.monotonic() - self._started
        self._record.save()
