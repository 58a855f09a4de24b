# SPDX-License-Identifier: Apache-2.0
"""Records everything that a daemon under load writes, by kvtier-record-writes, with notes in the
stream of the daemon's reports at each moment: which blocks are on disk, and which are gone."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any

import kvtier

from blocks import Player
from recording import (
    DISK_BLOCKS,
    DRIVES,
    SETTINGS,
    SIZES,
    blocks_of,
    doomed_hash,
    drives_in,
    settings_of,
)
from world import LoadClient, World, die_with_parent, program

_DOOMED_AT_ONCE = 6
_CLIENTS = 2
_LIFE_S = 3.0
_LIVES_WITH_KEYS = 3
_LOOK_EVERY_S = 0.01
_LOOKS_TO_A_DOOM = 8
_ON_DISK_WITHIN_S = 1.0
_MOUNTED_WITHIN_S = 10
_ENDS_WITHIN_S = 60
_COMPRESSION = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 64 << 20}]


class Mount:
    """The recording file system in a temporary directory, for as long as a `with` statement."""

    def __init__(self) -> None:
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-recording-"))
        self.stream = self._directory / "stream"
        self.root = self._directory / "mount"
        self._process: subprocess.Popen[bytes] | None = None
        self._note_file = -1

    def __enter__(self) -> Mount:
        backing = self._directory / "backing"
        backing.mkdir()
        self.root.mkdir()
        command = [program("kvtier-record-writes"), self.stream, backing, self.root]
        with open(self._directory / "log", "wb") as log:
            self._process = subprocess.Popen(command, stderr=log, preexec_fn=die_with_parent)
        give_up = time.monotonic() + _MOUNTED_WITHIN_S
        while not os.path.ismount(self.root):
            if self._process.poll() is not None or time.monotonic() > give_up:
                text = (self._directory / "log").read_text(errors="replace")
                self.__exit__()
                raise RuntimeError(f"cannot mount a file system: {text.strip()}")
            time.sleep(0.01)
        self._note_file = os.open(self.root / ".note", os.O_WRONLY | os.O_CREAT, 0o600)
        return self

    def note(self, **what: Any) -> None:
        os.pwrite(self._note_file, json.dumps(what).encode(), 0)

    def end(self) -> None:
        """The stream is whole afterwards."""
        if self._note_file >= 0:
            os.close(self._note_file)
            self._note_file = -1
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_WITHIN_S)
            self._process.kill()
            self._process.wait()
            self._process = None

    def __exit__(self, *_: object) -> None:
        self.end()
        shutil.rmtree(self._directory, ignore_errors=True)


class _Recorder:
    """A daemon on the mounted directory that lives several lives under load."""

    def __init__(self, seed: int, mount: Mount, world: World) -> None:
        self._seed = seed
        self._mount = mount
        self._world = world
        self._numbers = random.Random(seed)
        self._hashes: list[bytes] = []
        self._looks = 0
        self._doomed = 0

    def run(self, seconds: float) -> None:
        keeps_keys = self._seed % 2 == 0
        lives = _LIVES_WITH_KEYS if keeps_keys else max(len(DISK_BLOCKS), int(seconds / _LIFE_S))
        for life in range(lives):
            settings = settings_of(self._seed, life)
            prompts = self._seed + life if keeps_keys else self._seed
            self._mount.note(seed=self._seed, prompts=prompts, **settings._asdict())
            if keeps_keys or life == 0:
                self._hashes += blocks_of(prompts)
            settings.apply(self._world)
            self._world.daemon.start()
            # Data that is encrypted anew each time does not get smaller by compression.
            share = 0.25 if settings.keys == "memory" else 1.0
            self._live(prompts, share * seconds / lives, erases=life % 3 == 2 and not keeps_keys)
            self._end(life, index_is_lost=life % 4 == 3)

    def _live(self, prompts: int, seconds: float, erases: bool) -> None:
        clients: list[LoadClient] = []
        observer = Player(self._world.daemon.socket, "campaign observer")
        begun = time.monotonic()
        try:
            for _ in range(_CLIENTS):
                seed = self._numbers.getrandbits(30)
                clients.append(LoadClient(self._world.daemon.socket, seed, prompts))
            while time.monotonic() < begun + seconds:
                self._look(observer)
                if self._looks % _LOOKS_TO_A_DOOM == 0:
                    self._doom(observer)
                if erases and time.monotonic() > begun + seconds / 3:
                    self._erase()
                    erases = False
                time.sleep(_LOOK_EVERY_S)
        finally:
            for client in clients:
                client.kill()
            observer.close()

    def _look(self, observer: Player) -> None:
        self._looks += 1
        self._mount.note(look=self._looks)
        presence = observer.pool.lookup(self._hashes)
        on_disk = [i for i, where in enumerate(presence) if where & kvtier.Presence.DISK]
        self._mount.note(seen=self._looks, on_disk=on_disk)

    def _doom(self, observer: Player) -> None:
        """Blocks that reach the disk and are evicted by an administrator: they never come back."""
        numbers = range(self._doomed, self._doomed + _DOOMED_AT_ONCE)
        self._doomed += _DOOMED_AT_ONCE
        hashes = [doomed_hash(self._seed, number) for number in numbers]
        observer.fill(hashes)
        give_up = time.monotonic() + _ON_DISK_WITHIN_S
        while not all(where & kvtier.Presence.DISK for where in observer.pool.lookup(hashes)):
            if time.monotonic() > give_up:
                return
        for number, block in zip(numbers, hashes):
            request = {"op": "evict", "hashes": [block.hex()]}
            if kvtier.admin(request, self._world.daemon.admin_socket)["evicted"] == 1:
                self._mount.note(gone=number)

    def _erase(self) -> None:
        self._mount.note(erasing=True)
        request = {"op": "erase", "tenant": "default", "without_proof": True}
        kvtier.admin(request, self._world.daemon.admin_socket)
        self._mount.note(erased=True)

    def _end(self, life: int, index_is_lost: bool) -> None:
        """Killed, or stopped as by a service manager; now and then the index is told to be old, so
        that the next start makes it anew."""
        if life % 2 == 0:
            self._world.daemon.kill()
        else:
            self._world.daemon.stop()
        if index_is_lost:
            with open(self._mount.root / "disk" / DRIVES[0] / "index.epoch", "r+b") as mark:
                mark.write(b"999999\n")
                os.fsync(mark.fileno())


def record(seed: int, seconds: float, path: pathlib.Path) -> None:
    """Raises RuntimeError (no FUSE here; the daemon failed), KvtierError."""
    with Mount() as mount:
        for drive in DRIVES:
            (mount.root / "disk" / drive).mkdir(parents=True)
        drives = drives_in(mount.root / "disk")
        with World(*SIZES, DISK_BLOCKS[0], *SETTINGS, drives) as world:
            _Recorder(seed, mount, world).run(seconds)
        mount.end()
        temporary = path.with_name(path.name + ".new")
        with open(mount.stream, "rb") as stream, lzma.open(
            temporary, "wb", format=lzma.FORMAT_XZ, filters=_COMPRESSION
        ) as out:
            shutil.copyfileobj(stream, out, 1 << 20)
        os.replace(temporary, path)
