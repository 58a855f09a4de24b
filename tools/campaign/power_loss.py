# SPDX-License-Identifier: Apache-2.0
"""Power loss: a recorded stream of a daemon's writes is cut, unsynced data is dropped, torn and
reordered, and a daemon is started on the rest. It starts; blocks promised to be on disk are hits;
no byte is wrong; and blocks evicted or erased by an administrator stay gone."""

from __future__ import annotations

import lzma
import pathlib
import random
import shutil
from typing import NamedTuple

import kvtier
from kvtier._private_daemon import DaemonFailedError

from blocks import Player, conversations, random_prefix
from record import Job
from recorder import record
from recording import DRIVES, SETTINGS, SIZES, Recording, drives_in
from world import World, program
from write_stream import Disk, write_tree

CUTS_A_ROUND = 50
RECORDED_S = 30.0
#: Every so many cuts the daemon goes on to store blocks, is killed, and looked at once more.
CUTS_TO_A_LATER_LIFE = 8
_LATER_REQUESTS = 12
_READ_AT_MOST = 500


class Cut(NamedTuple):
    """One power loss: when, and the numbers that decide which data is left."""

    seed: int
    position: int
    numbers: random.Random


def make_cut(seed: int, recording: Recording) -> Cut:
    numbers = random.Random(seed)
    return Cut(seed, recording.position(numbers), numbers)


class Checks:
    """Starts a daemon on what a cut has left."""

    def __init__(self, job: Job, recording: Recording, world: World) -> None:
        self._job = job
        self._recording = recording
        self._world = world
        self._cut: Cut | None = None
        self._failed = False

    def run(self, cut: Cut, disk: Disk) -> None:
        self._cut = cut
        self._failed = False
        tree = self._world.directory / "tree"
        tree.mkdir()
        try:
            write_tree(disk.cut(cut.numbers), tree)
            if (tree / "disk").exists():
                (tree / "disk").rename(self._world.disk)
            # An operator made them before the first start.
            for drive in DRIVES:
                (self._world.disk / drive).mkdir(parents=True, exist_ok=True)
            self._check(cut)
        except (RuntimeError, kvtier.KvtierError) as error:
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._world.daemon.kill()
            if line := self._world.broken_promise():
                self._fail(f"the daemon ended by itself: {line}")
            shutil.rmtree(tree)
            shutil.rmtree(self._world.disk, ignore_errors=True)
            self._world.forget_log()
        self._job.count("cuts")

    def _check(self, cut: Cut) -> None:
        self._recording.settings(cut.position).apply(self._world)
        self._start()
        player = Player(self._world.daemon.socket, "campaign")
        blocks = self._recording.all_blocks(cut.position)
        promised = self._recording.promised(cut.position)
        missing = self._read(player, blocks, promised)
        self._job.count("promises checked", len(promised))
        if broken := promised & missing:
            self._fail(f"{len(broken)} of {len(promised)} blocks on disk are misses, one of them "
                       f"{min(broken).hex()[:16]}")
        gone = self._recording.gone(cut.position)
        self._job.count("erased blocks looked for", len(gone))
        if back := gone - missing:
            self._fail(f"{len(back)} blocks that were erased are hits, one of them "
                       f"{min(back).hex()[:16]}")
        if cut.seed % CUTS_TO_A_LATER_LIFE == 0 and not self._failed:
            self._live_on(player, blocks)
        player.close()

    def _start(self) -> None:
        try:
            self._world.daemon.start()
        except DaemonFailedError as error:
            self._job.count("refused starts")
            status = error.exit_status
            raise RuntimeError(f"the daemon refuses to start, with {status}") from None

    def _read(self, player: Player, blocks: list[bytes], promised: set[bytes]) -> set[bytes]:
        """Reads the blocks that are there, or a part of them if they are many. Returns the misses.
        """
        assert self._cut is not None
        presence = player.pool.lookup(blocks)
        present = [block for block, where in zip(blocks, presence) if where]
        missing = set(blocks) - set(present)
        if len(present) > _READ_AT_MOST:
            present = self._cut.numbers.sample(present, _READ_AT_MOST)
        found = player.read(present)
        missing.update(block for block, hit in zip(present, found) if not hit)
        self._job.count("blocks read", len(found))
        self._job.count("right hits", sum(found))
        self._job.count("promised blocks read", len(promised.intersection(present)))
        for text in player.wrong + player.errors:
            self._fail(text)
        if not self._world.daemon.is_running():
            self._fail("the daemon has ended")
        return missing

    def _live_on(self, player: Player, blocks: list[bytes]) -> None:
        assert self._cut is not None
        prompts = conversations(self._recording.prompts)
        for _ in range(_LATER_REQUESTS):
            player.play(random_prefix(prompts, self._cut.numbers))
        player.finish()
        self._world.daemon.settle()
        self._world.daemon.kill()
        self._start()
        later = Player(self._world.daemon.socket, "campaign")
        self._read(later, blocks, set())
        later.close()
        self._job.count("later lives")

    def _fail(self, what: str) -> None:
        assert self._cut is not None
        if not self._failed:
            self._job.fail(
                self._cut.seed, f"cut at event {self._cut.position}: {what}", self._world.log()
            )
        self._failed = True


def run_cuts(job: Job, recording: Recording) -> None:
    """A round walks once through the stream. Without time left it is one cut, the seed's."""
    with World(*SIZES, 0, *SETTINGS) as world:
        world.add_settings(drives_in(world.disk))
        checks = Checks(job, recording, world)
        for seed in job.seeds(1 if job.is_over() else CUTS_A_ROUND):
            count = 1 if job.is_over() else CUTS_A_ROUND
            cuts = [make_cut(seed + i, recording) for i in range(count)]
            cuts.sort(key=lambda cut: cut.position)
            disk = Disk()
            stream = recording.stream()
            for cut in cuts:
                while disk.events < cut.position:
                    disk.advance(next(stream))
                checks.run(cut, disk)
                if job.is_over():
                    break


def prepare(path: pathlib.Path, seed: int) -> Recording | str:
    """The recording in the file, made if it is not there; or why there is none."""
    if not path.exists() and not program("kvtier-record-writes").exists():
        return "no kvtier-record-writes was built, which needs libfuse3, and no recording is given"
    try:
        if not path.exists():
            record(seed, RECORDED_S, path)
        return Recording(path)
    except (OSError, RuntimeError, ValueError, lzma.LZMAError, kvtier.KvtierError) as error:
        return f"no recording: {error}"
