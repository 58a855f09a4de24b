# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the daemon under load: no client sees a wrong byte, and every later daemon finds the
blocks that the daemon had reported on disk."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import Any

import kvtier

from blocks import Player, conversations
from record import Job
from world import LoadClient, World

KILLS_A_ROUND = 100
CLIENTS = 4
#: Every so many kills the keeper dies with its daemon; every so many, a daemon before it serves.
KILLS_TO_A_KEEPER = 7
KILLS_TO_A_START = 5
PROMPTS_READ_AFTER_EACH_KILL = 4
_SERVES_WITHIN_S = 300


class DaemonKills:
    """One round: one world, and many deaths in it."""

    def __init__(self, job: Job, seed: int, world: World) -> None:
        self._job = job
        self._seed = seed
        self._world = world
        self._random = random.Random(seed)
        self._prompts = conversations(seed)
        self._hashes = [block for prompt in self._prompts for block in prompt]
        self._promised: set[bytes] = set()
        self._failed = False

    def run(self) -> None:
        self._world.daemon.start()
        clients: list[LoadClient] = []
        try:
            for number in range(CLIENTS):
                clients.append(
                    LoadClient(self._world.daemon.socket, 1000 * self._seed + number, self._seed)
                )
            observer = Player(self._world.daemon.socket, "campaign observer")
            for kill in range(1, KILLS_A_ROUND + 1):
                self._live_and_die(kill, observer)
                self._check_promises(observer)
                ended = any(client.has_ended() for client in clients)
                if ended or self._failed or self._job.is_over():
                    break
            observer.finish()
            self._add(observer.report())
            observer.close()
            for client in clients:
                self._add(client.finish())
        except (RuntimeError, kvtier.KvtierError) as error:
            self._fail(str(error))
        finally:
            for client in clients:
                client.kill()
        if line := self._world.broken_promise():
            self._fail(f"a daemon ended by itself: {line}")

    def _live_and_die(self, kill: int, observer: Player) -> None:
        life_s = self._random.uniform(0.05, 0.5)
        moment = self._random.random()
        time.sleep(life_s * moment)
        self._note_promises(observer)
        time.sleep(life_s * (1 - moment))
        restart = self._world.daemon.status()["restart"]
        self._job.count("blocks adopted", restart["adopted"]["blocks"])
        keeper = restart["pid"] if kill % KILLS_TO_A_KEEPER == 0 else 0
        if not self._world.daemon.is_running():
            self._fail("the daemon has ended by itself")
        self._world.daemon.kill()
        self._job.count("kills")
        if keeper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
                self._job.count("of them with the keeper")
        if kill % KILLS_TO_A_START == 0:
            self._world.daemon.launch()
            time.sleep(self._random.uniform(0, 0.3))
            self._world.daemon.kill()
            self._job.count("kills")
            self._job.count("of them at the start")
        started = time.monotonic()
        self._world.daemon.start()
        self._job.peak("longest start in ms", int(1000 * (time.monotonic() - started)))

    def _note_promises(self, observer: Player) -> None:
        presence = observer.pool.lookup(self._hashes)
        for block, where in zip(self._hashes, presence):
            if where & kvtier.Presence.DISK:
                self._promised.add(block)

    def _check_promises(self, observer: Player) -> None:
        give_up = time.monotonic() + _SERVES_WITHIN_S
        while not observer.connection.is_connected():
            with contextlib.suppress(kvtier.UnavailableError):
                observer.connection.ping()
            if time.monotonic() > give_up:
                raise RuntimeError("the daemon does not take the observer back")
        presence = observer.pool.lookup(self._hashes)
        for block, where in zip(self._hashes, presence):
            if block in self._promised and not where & kvtier.Presence.DISK:
                self._fail(f"block {block.hex()[:16]} was on disk, and no more")
                return
        self._job.count("promises checked", len(self._promised))
        for prompt in self._random.sample(self._prompts, PROMPTS_READ_AFTER_EACH_KILL):
            self._read_promised(observer, prompt)

    def _read_promised(self, observer: Player, prompt: list[bytes]) -> None:
        length = 0
        while length < len(prompt) and prompt[length] in self._promised:
            length += 1
        if length == 0:
            return
        hits = observer.play(prompt[:length])
        if hits < 0:
            return  # no room, or no answer in time; a daemon that has died is noticed at its kill
        if hits < length and observer.miss == kvtier.Miss.POOL_FULL:
            # Blocks that sessions went on holding over the restart leave little of so small a pool.
            self._job.count("requests cut for want of room")
        elif hits < length:
            self._fail(f"{hits} of {length} blocks on disk were served: {observer.miss.name}")
        self._job.count("promised blocks read", length)

    def _add(self, report: dict[str, Any]) -> None:
        for what in ("requests", "requests without a daemon", "requests timed out",
                     "bytes checked", "wrong blocks", "blocks lost at a restart",
                     "lost blocks with other bytes"):
            self._job.count(what, report["counts"].get(what, 0))
        for tier in ("pool", "host", "disk"):
            self._job.count(f"hits in {tier}", report["counts"].get(f"hits in {tier}", 0))
        for text in report["wrong"] + report["errors"]:
            self._fail(text)

    def _fail(self, what: str) -> None:
        # Later failures of a round are no news.
        if not self._failed:
            self._job.fail(self._seed, what, self._world.log())
        self._failed = True


def _run(job: Job, keep_for: str) -> None:
    # The disk holds every block there is: none may leave it by rule.
    settings = ("retention.persist_after=0s", f"restart.keep_for={keep_for}")
    for seed in job.seeds():
        with World(192, 150, 1500, *settings) as world:
            DaemonKills(job, seed, world).run()


def run(job: Job) -> None:
    _run(job, keep_for="0s")


def run_keeping(job: Job) -> None:
    """Host memory and pools outlive the daemons."""
    _run(job, keep_for="1min")
