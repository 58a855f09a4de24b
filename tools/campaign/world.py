# SPDX-License-Identifier: Apache-2.0
"""A daemon of the campaign in a temporary directory, and the client processes that load it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from harness.private_daemon import PrivateDaemon
from kvtier._private_daemon import die_with_parent

from blocks import BLOCK_BYTES, SLOT_BYTES

SLAB_BYTES = 64 * 1024
#: Generous: a campaign gives way to everything else on the machine.
_END_TIMEOUT_S = 300
_HERE = pathlib.Path(__file__).resolve().parent
_ENDED_BADLY = re.compile(r"check failed|Sanitizer|terminate called")


def build_directory() -> pathlib.Path:
    return pathlib.Path(os.environ["KVTIER_BUILD_DIRECTORY"])


def program(name: str) -> pathlib.Path:
    return build_directory() / "bin" / name


def _tier_bytes(blocks: int) -> int:
    slots = SLAB_BYTES // SLOT_BYTES - 1  # on disk a slab has a header
    return -(-blocks // slots) * SLAB_BYTES


class World:
    """Used in a `with` statement, whose end kills the daemon and its keeper and removes the
    directory. Sizes are in blocks; 0 disk blocks: no disk tier. One thread."""

    def __init__(
        self, pool_blocks: int, host_blocks: int, disk_blocks: int, *more_settings: str
    ) -> None:
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-campaign-"))
        self._settings = [
            f"pool.bytes={max(pool_blocks * BLOCK_BYTES, SLAB_BYTES)}B",
            "pool.device=host",
            f"host.bytes={_tier_bytes(host_blocks)}B",
            f"cache.slab_bytes={SLAB_BYTES}B",
            "disk.free_floor_bytes=0B",
            "kernels.enabled=false",
            *more_settings,
        ]
        self.resize_disk(disk_blocks)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.kill()
        # Ends the keeper, too, if there is one.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [program("kvtierctl"), "--socket", self.daemon.socket, "stop", "--release"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_END_TIMEOUT_S,
            )
        shutil.rmtree(self.directory, ignore_errors=True)

    def add_settings(self, *settings: str) -> None:
        """For the starts that follow the next `resize_disk`."""
        self._settings.extend(settings)

    def resize_disk(self, blocks: int, *more_settings: str) -> None:
        """For the next start. REQUIRES: no daemon runs."""
        settings = [*self._settings, f"disk.bytes={_tier_bytes(blocks)}B", *more_settings]
        self.daemon = PrivateDaemon(str(self.directory), settings)
        self.daemon.start_timeout_s = _END_TIMEOUT_S

    @property
    def disk(self) -> pathlib.Path:
        return self.directory / "disk"

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return self.daemon.log
        return ""

    def forget_log(self) -> None:
        (self.directory / "kvtierd.log").unlink(missing_ok=True)

    def broken_promise(self) -> str:
        """The line of the log that says that a daemon ended by its own checks; empty if none."""
        for line in self.log().splitlines():
            if _ENDED_BADLY.search(line):
                return line
        return ""

    def keeper(self) -> int:
        """The process that holds memory for the next daemon; 0: none."""
        return int(self.daemon.status()["restart"]["pid"])


class LoadClient:
    """A process that plays random prompts until it is told to stop."""

    def __init__(self, socket: str, seed: int, prompts_seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, _HERE / "load_client.py", "play", socket, str(seed), str(prompts_seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )

    @property
    def process_id(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def finish(self) -> dict[str, Any]:
        """Returns its findings. Raises RuntimeError (it failed)."""
        try:
            output, errors = self._process.communicate(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError("a client does not end") from None
        if self._process.returncode != 0:
            text = errors.decode(errors="replace")[-2000:]
            raise RuntimeError(f"a client ended with {self._process.returncode}: {text}")
        return json.loads(output)

    def kill(self) -> None:
        """Does nothing when it has ended."""
        self._process.kill()
        self._process.communicate()


class Nursery:
    """A process that has loaded everything and makes clients by fork, to be killed. command: a script
    of this folder with its arguments."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, _HERE / command[0], *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )

    def start(self, seed: int) -> int:
        """A client that plays until it is killed; returns its number."""
        return int(self._ask(f"start {seed}"))

    def kill(self, client: int) -> int:
        """kill -9; returns its exit status as subprocess has it: -9, unless it had ended before."""
        return int(self._ask(f"kill {client}"))

    def close(self) -> None:
        """Its child processes end with it."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, line: str) -> str:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()
