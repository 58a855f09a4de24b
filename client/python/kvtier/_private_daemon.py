# SPDX-License-Identifier: Apache-2.0
"""A kvtierd for one program alone, such as a demonstration. Tests have more in their harness."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterable

from . import _programs
from .connection import admin, connect
from .errors import TimedOutError, UnavailableError

_START_POLL_S = 0.002
_LOG_TAIL_BYTES = 4000
_PR_SET_PDEATHSIG = 1


class DaemonFailedError(RuntimeError):
    """The daemon does not serve; the message has the end of its log. `exit_status` is None if the
    process had not ended by itself, and minus a signal's number if that ended it."""

    def __init__(self, message: str, exit_status: int | None) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class PrivateDaemon:
    """A daemon with its sockets, log and disk tier in a directory that the caller keeps. It ends by
    `kill`, or with this process. One thread.

    settings: texts for `kvtierd --set`; later ones override earlier ones. program: by default the
    kvtierd of the environment, the package or the search path.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: Iterable[str] = (),
        program: str | None = None,
    ) -> None:
        self.directory = pathlib.Path(directory)
        self.start_timeout_s = 60.0
        self._program = program
        settings = tuple(settings)
        has_drives = any(setting.startswith("disk.directories=") for setting in settings)
        self._settings = [
            f"server.socket={self.socket}",
            f"server.admin_socket={self.admin_socket}",
            *([] if has_drives else [f"disk.directory={self.directory / 'disk'}"]),
            # The daemon ends with its owner, so no later daemon would adopt memory that is held.
            "restart.keep_for=0s",
            *settings,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self.directory / "kvtier.sock")

    @property
    def admin_socket(self) -> str:
        return str(self.directory / "admin.sock")

    @property
    def log(self) -> str:
        return (self.directory / "kvtierd.log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when the daemon serves and has all of its host memory. Raises DaemonFailedError,
        FileNotFoundError (there is no such program)."""
        self.launch()
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout_s
        while not self._is_complete():
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                self.kill()
                tail = self.log[-_LOG_TAIL_BYTES:]
                raise DaemonFailedError(f"kvtierd does not serve; its log:\n{tail}", status)
            time.sleep(_START_POLL_S)

    def launch(self) -> None:
        """Starts the process and waits for nothing."""
        with open(self.directory / "kvtierd.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def kill(self) -> None:
        """kill -9; returns when the process is gone. Does nothing when none is running."""
        if self._process is not None:
            self._kill_process(self._process)
            self._process.wait()
            self._process = None

    def _command(self) -> list[str]:
        command = [self._program or _programs.find("kvtierd")]
        for setting in self._settings:
            command += ["--set", setting]
        return command

    def _kill_process(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()

    def _is_complete(self) -> bool:
        try:
            connect(self.socket, client_name="start check").close()
            host = admin({"op": "status"}, self.admin_socket)["tiers"]["host"]
        except (UnavailableError, TimedOutError):
            return False
        return bool(host["ready_bytes"] == host["capacity_bytes"])


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
