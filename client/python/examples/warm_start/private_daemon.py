# SPDX-License-Identifier: Apache-2.0
"""A kvtierd of this program's own."""

from __future__ import annotations

import ctypes
import pathlib
import signal
import subprocess
import time

import kvtier

_START_TIMEOUT_S = 120
_START_POLL_S = 0.01
_HASHES_PER_REQUEST = 512
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class PrivateDaemon:
    """Started by `start` in a directory that the caller keeps; ends with `kill`, or with this
    process."""

    def __init__(self, program: str, directory: pathlib.Path, settings: dict[str, str]) -> None:
        self._program = program
        self._directory = directory
        self._settings = {
            "server.socket": self.socket,
            "server.admin_socket": self.admin_socket,
            "disk.directory": str(directory / "disk"),
            "disk.free_floor_bytes": "0B",
            # What it shows is what the disk brings back.
            "restart.keep_for": "0s",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self._directory / "kvtier.sock")

    @property
    def admin_socket(self) -> str:
        return str(self._directory / "admin.sock")

    def start(self) -> None:
        """Returns when it serves and has all of its host memory. Raises RuntimeError with the
        log."""
        command = [self._program]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        log_path = self._directory / "kvtierd.log"
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_complete():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"kvtierd does not serve:\n{log_path.read_text()}")
            time.sleep(_START_POLL_S)

    def kill(self) -> None:
        """kill -9, and waits until the process is gone. Does nothing when none is running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def drain(self) -> None:
        """Writes to disk whatever should survive a restart."""
        kvtier.admin({"op": "drain"}, self.admin_socket)

    def push_to_host(self, hashes: list[bytes]) -> None:
        """Drops blocks from the pool that lower tiers hold."""
        self.drain()
        self._evict("pool", hashes)

    def push_to_disk(self, hashes: list[bytes]) -> None:
        """Drops blocks from host memory that the disk holds. None may be in the pool."""
        self._evict("host", hashes)

    def _evict(self, tier: str, hashes: list[bytes]) -> None:
        """In requests that are short enough for the admin socket."""
        for first in range(0, len(hashes), _HASHES_PER_REQUEST):
            some = [one.hex() for one in hashes[first : first + _HASHES_PER_REQUEST]]
            request = {"op": "evict", "tier": tier, "hashes": some}
            # What is on the move is dropped at a later try.
            while kvtier.admin(request, self.admin_socket)["moving"] > 0:
                kvtier.admin({"op": "settle"}, self.admin_socket)

    def _is_complete(self) -> bool:
        try:
            kvtier.connect(self.socket, client_name="start check").close()
            host = kvtier.admin({"op": "status"}, self.admin_socket)["tiers"]["host"]
        except kvtier.UnavailableError:
            return False
        return bool(host["ready_bytes"] == host["capacity_bytes"])
