# SPDX-License-Identifier: Apache-2.0
"""kill -9 of clients: their references and blocks come back, the daemon's descriptors, threads and
memory stay what they were, and another client sees no wrong byte."""

from __future__ import annotations

import random
import time
from typing import Any

import kvtier

from blocks import Player, conversations, random_prefix
from record import Job
from soak import descriptors, resident_bytes, threads
from world import Nursery, World

VICTIMS_AT_ONCE = 4
ROUNDS_OF_VICTIMS = 50
LONGEST_LIFE_S = 0.15
#: The first ones make the daemon allocate the memory that it keeps.
_WARM_UP = 10
_GONE_WITHIN_S = 120
_RESIDENT_SLACK_BYTES = 8 << 20


class Kills:
    """One round: one daemon and many clients that die."""

    def __init__(self, job: Job, seed: int, world: World) -> None:
        self._job = job
        self._seed = seed
        self._world = world
        self._random = random.Random(seed)
        self._prompts = conversations(seed)
        self._failed = False

    def run(self) -> None:
        self._world.daemon.start()
        nursery = Nursery(
            "load_client.py", "nursery", self._world.daemon.socket, "0", str(self._seed)
        )
        try:
            witness = Player(self._world.daemon.socket, "campaign witness")
            before: tuple[int, int, int] | None = None
            for number in range(ROUNDS_OF_VICTIMS):
                killed_s = self._kill_some(nursery, number, witness)
                witness.finish()
                self._wait_until_quiet(killed_s)
                now = self._resources()
                if number == _WARM_UP:
                    before = now
                if self._failed or self._job.is_over():
                    break
            if before is not None:
                self._compare(before, self._resources())
            self._job.count("bytes checked", witness.counts["bytes checked"])
            self._job.count("wrong blocks", witness.counts["wrong blocks"])
            for text in witness.wrong + witness.errors:
                self._fail(text)
            witness.close()
        except (RuntimeError, ValueError, kvtier.KvtierError) as error:
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            nursery.close()
        if line := self._world.broken_promise():
            self._fail(f"the daemon ended by itself: {line}")

    def _kill_some(self, nursery: Nursery, number: int, witness: Player) -> float:
        """While the victims live, the witness plays as they do. Returns when the last one died."""
        first = (self._seed * ROUNDS_OF_VICTIMS + number) * VICTIMS_AT_ONCE
        victims = [nursery.start(first + i) for i in range(VICTIMS_AT_ONCE)]
        moments = sorted(self._random.uniform(0, LONGEST_LIFE_S) for _ in victims)
        started = time.monotonic()
        for victim, moment in zip(victims, moments):
            while time.monotonic() < started + moment:
                witness.play(random_prefix(self._prompts, self._random))
            status = nursery.kill(victim)
            self._job.count("kills")
            if status != -9:
                self._fail(f"a client ended by itself, with {status}")
        return time.monotonic()

    def _wait_until_quiet(self, started: float) -> None:
        """Until nothing is left of the dead. The time that it takes is noted, not judged: it is
        that of a machine with other work."""
        while left := self._left_over(self._world.daemon.status()):
            if time.monotonic() > started + _GONE_WITHIN_S:
                self._fail(f"{_GONE_WITHIN_S} s after the kill there are {left}")
                return
        self._job.peak("longest time to give back in ms", int(1000 * (time.monotonic() - started)))
        self._world.daemon.settle()
        for pool in self._world.daemon.status()["pools"]:
            if pool["free"] + pool["cached"] != pool["blocks"]:
                self._fail(f"{pool['free']} free and {pool['cached']} cached of {pool['blocks']}")

    @staticmethod
    def _left_over(status: dict[str, Any]) -> str:
        found = {
            "references": status["references"],
            "sessions": status["sessions"]["count"] - 1,  # the witness's
            "processes in quarantine": status["sessions"]["quarantined"],
        }
        for pool in status["pools"]:
            for state in ("private", "referenced", "quarantined", "loading"):
                found[f"{state} blocks"] = found.get(f"{state} blocks", 0) + pool[state]
        return ", ".join(f"{number} {what}" for what, number in found.items() if number)

    def _resources(self) -> tuple[int, int, int]:
        process = self._world.daemon.process_id
        return descriptors(process), threads(process), resident_bytes(process)

    def _compare(self, before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
        self._job.peak("descriptors gained at most", after[0] - before[0])
        self._job.peak("threads gained at most", after[1] - before[1])
        self._job.peak("resident KiB gained at most", (after[2] - before[2]) >> 10)
        # The index opens and closes files of its own as it grows.
        if after[0] > before[0] + 8 or after[1] > before[1]:
            self._fail(f"descriptors, threads, bytes: {before} before and {after} after the kills")
        if after[2] > before[2] * 1.1 + _RESIDENT_SLACK_BYTES:
            self._fail(f"resident memory grew from {before[2]} to {after[2]} bytes")

    def _fail(self, what: str) -> None:
        # Later failures of a round are no news.
        if not self._failed:
            self._job.fail(self._seed, what, self._world.log())
        self._failed = True


def run(job: Job) -> None:
    for seed in job.seeds():
        with World(192, 150, 600, "restart.keep_for=0s") as world:
            Kills(job, seed, world).run()
