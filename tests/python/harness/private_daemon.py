# SPDX-License-Identifier: Apache-2.0
"""kvtierd with small tiers, which tests can contain, pause and damage."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any, Callable

from kvtier import _private_daemon, admin
from kvtier._private_daemon import DaemonFailedError

from .contained import contained_process
from .paths import daemon_program

# The sizes of the C++ tests: a slot is a block and its 4 KiB header, three of them fill a slab.
BLOCK_BYTES = 16 * 1024
SLAB_BYTES = 64 * 1024
SLOTS_PER_SLAB = 3
# How long the daemon waits for blocks that must make room, as in the C++ tests: a busy machine
# takes longer than the default, and stored blocks would be dropped.
MAX_WAIT_MS = 20_000


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


class PrivateDaemon(_private_daemon.PrivateDaemon):
    """`contain` turns the daemon's command into one that runs it in namespaces of its own;
    `process_id` is then that command's process."""

    def __init__(
        self,
        directory: str,
        more_settings: list[str],
        contain: Callable[[list[str]], list[str]] | None = None,
    ) -> None:
        super().__init__(directory, more_settings, daemon_program())
        self._contain = contain

    @property
    def process_id(self) -> int:
        """REQUIRES: running."""
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """SIGTERM; returns when the process is gone. Does nothing when none is running. Raises
        subprocess.TimeoutExpired."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(self.start_timeout_s)
            self._process = None

    def drain(self) -> None:
        """Writes to disk what should survive a restart."""
        self.admin("drain")

    def settle(self) -> None:
        """Returns when no copy and no I/O is in flight."""
        self.admin("settle")

    def status(self) -> Any:
        return self.admin("status")

    def admin(self, operation: str) -> Any:
        """The reply of an operation of the admin socket. Raises KvtierError."""
        return admin({"op": operation}, self.admin_socket)

    def pause(self) -> None:
        """Stops the process, which can still be killed, until `resume`."""
        os.kill(self.process_id, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process_id, signal.SIGCONT)

    def corrupt_disk(self, first: int, step: int) -> int:
        """Flips each slab's bytes `first`, `first` + `step`, ...; returns how many. REQUIRES: the
        daemon was killed."""
        flipped = 0
        for path in (self.directory / "disk").glob("blocks.kvt"):
            with open(path, "r+b") as blocks:
                for offset in range(first, path.stat().st_size, step):
                    blocks.seek(offset)
                    byte = blocks.read(1)
                    blocks.seek(offset)
                    blocks.write(bytes([byte[0] ^ 0xFF]))
                    flipped += 1
        return flipped

    def _command(self) -> list[str]:
        command = super()._command()
        return command if self._contain is None else self._contain(command)

    def _kill_process(self, process: subprocess.Popen[bytes]) -> None:
        # The process that made the namespaces ends when the daemon in them has ended.
        if self._contain is not None and (daemon := contained_process(process)):
            os.kill(daemon, signal.SIGKILL)
        else:
            process.kill()


__all__ = ["BLOCK_BYTES", "MAX_WAIT_MS", "DaemonFailedError", "PrivateDaemon", "settings"]
