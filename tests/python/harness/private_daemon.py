# SPDX-License-Identifier: Apache-2.0
"""A kvtierd of one's own, in a directory that the caller keeps."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import subprocess
import time
from typing import Any, Callable

import kvtier

from .contained import contained_process
from .paths import daemon_program

START_TIMEOUT_S = 60
START_POLL_S = 0.002
# The sizes of the C++ tests: a slot is a block and its 4 KiB header, three of them fill a slab.
BLOCK_BYTES = 16 * 1024
SLAB_BYTES = 64 * 1024
SLOTS_PER_SLAB = 3
# How long what must make room is waited for, as in the C++ tests: a busy machine takes longer than
# the default, and what was stored would be dropped.
MAX_WAIT_MS = 4000
_PR_SET_PDEATHSIG = 1


def tier_bytes(blocks: int) -> int:
    return -(-blocks // SLOTS_PER_SLAB) * SLAB_BYTES


def settings(pool_blocks: int, host_blocks: int, disk_blocks: int, device: str) -> list[str]:
    """`kvtierd --set` texts that give tiers of these sizes, in blocks of BLOCK_BYTES."""
    return [
        f"pool.bytes={pool_blocks * BLOCK_BYTES}B",
        f"pool.device={device}",
        f"host.bytes={tier_bytes(host_blocks)}B",
        f"disk.bytes={tier_bytes(disk_blocks)}B",
        f"cache.slab_bytes={SLAB_BYTES}B",
        "disk.free_floor_bytes=0B",
        f"cache.max_wait_ms={MAX_WAIT_MS}",
    ]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class PrivateDaemon:
    """Started by `start`; killed by `kill`, or with the test's process. `contain` gives the command
    that runs the daemon's command in namespaces of its own."""

    def __init__(
        self,
        directory: str,
        more_settings: list[str],
        contain: Callable[[list[str]], list[str]] | None = None,
    ) -> None:
        self._contain = contain
        self._directory = pathlib.Path(directory)
        self._settings = [
            f"server.socket={self.socket}",
            f"server.admin_socket={self.admin_socket}",
            f"disk.directory={self._directory / 'disk'}",
            "restart.keep_for=0s",
            *more_settings,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.start_timeout_s = START_TIMEOUT_S

    @property
    def socket(self) -> str:
        return str(self._directory / "kvtier.sock")

    @property
    def admin_socket(self) -> str:
        return str(self._directory / "admin.sock")

    @property
    def log(self) -> str:
        return (self._directory / "kvtierd.log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when the daemon serves and all of its host memory is there. Raises
        AssertionError, which has the log, and the exit status as `exit_status` if it ended."""
        self.launch()
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout_s
        while not self._is_complete():
            if self._process.poll() is not None or time.monotonic() > deadline:
                error = AssertionError(f"the daemon does not serve:\n{self.log}")
                error.exit_status = self._process.returncode  # type: ignore[attr-defined]
                self.kill()
                raise error
            time.sleep(START_POLL_S)

    def launch(self) -> None:
        """Starts the process, and waits for nothing."""
        command = [daemon_program()]
        for setting in self._settings:
            command += ["--set", setting]
        if self._contain is not None:
            command = self._contain(command)
        with open(self._directory / "kvtierd.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )

    @property
    def process_id(self) -> int:
        """Of the daemon that runs; of what contains it, where it is contained."""
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9, and waits until the process is gone. Does nothing when none is running."""
        if self._process is not None:
            # What runs the namespaces ends when the daemon in it has ended.
            if self._contain is not None and (daemon := contained_process(self._process)):
                os.kill(daemon, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """As a service manager stops it; waits until the process is gone. Does nothing when none is
        running. Raises subprocess.TimeoutExpired."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(self.start_timeout_s)
            self._process = None

    def pause(self) -> None:
        """It answers nothing until `resume`, and can be killed."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def corrupt_disk(self, first: int, step: int) -> int:
        """Flips each slab's bytes `first`, `first` + `step`, ...; returns how many. Of a daemon
        that was killed."""
        flipped = 0
        for path in (self._directory / "disk").glob("blocks-*.kvt"):
            with open(path, "r+b") as blocks:
                for offset in range(first, path.stat().st_size, step):
                    blocks.seek(offset)
                    byte = blocks.read(1)
                    blocks.seek(offset)
                    blocks.write(bytes([byte[0] ^ 0xFF]))
                    flipped += 1
        return flipped

    def drain(self) -> None:
        """Writes what should survive a restart to disk."""
        self._admin("drain")

    def settle(self) -> None:
        """Returns when nothing is under way."""
        self._admin("settle")

    def status(self) -> Any:
        return self._admin("status")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _admin(self, operation: str) -> Any:
        return kvtier.admin({"op": operation}, self.admin_socket)

    def _is_complete(self) -> bool:
        try:
            kvtier.connect(self.socket, client_name="start check").close()
            host = self._admin("status")["tiers"]["host"]
        except (kvtier.UnavailableError, kvtier.TimedOutError):
            return False
        return bool(host["ready_bytes"] == host["capacity_bytes"])
