# SPDX-License-Identifier: Apache-2.0
"""A redis-server on a socket, as the store that daemons of several hosts share."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from typing import Any

SERVER = shutil.which("redis-server")
_READY = b"ready to accept connections"


class RedisServer:
    """Runs until the cleanup that it registers. add_cleanup: of a test, or of a class."""

    def __init__(self, directory: str, add_cleanup: Any) -> None:
        assert SERVER is not None
        self._socket = str(pathlib.Path(directory) / "store.sock")
        options = ["--port", "0", "--unixsocket", self._socket, "--save", "", "--daemonize", "no"]
        process = subprocess.Popen([SERVER, *options], stdout=subprocess.PIPE)
        assert process.stdout is not None
        add_cleanup(process.stdout.close)
        add_cleanup(process.wait)
        add_cleanup(process.kill)
        while _READY not in (line := process.stdout.readline()).lower():
            assert line, "redis-server has ended"

    def settings(self) -> list[str]:
        """The options of a daemon that writes used blocks at once, and waits for a busy machine."""
        return [
            f"cold.endpoint=resp://{self._socket}",
            "cold.after=0s",
            "cold.lookup_deadline_ms=60000",
            "cold.read_deadline_ms=60000",
        ]

    def objects(self) -> int:
        command = ["redis-cli", "-s", self._socket, "DBSIZE"]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
