# SPDX-License-Identifier: Apache-2.0
"""Programs in namespaces of their own, as containers run them: they see their own processes,
network, shared memory, users and files, and share with others only the files passed to them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

from kvtier._private_daemon import die_with_parent

# Run as root of the new namespaces.
_ENTER = """set -e
mount -t tmpfs hidden "$1"
[ -z "$2" ] || { mount --bind "$2" "$2"; mount -o remount,bind,ro "$2"; }
shift 2
exec "$@"
"""


def command_in_container(
    program: list[str], hide: pathlib.Path, read_only: pathlib.Path | str = "", uid: int = 0
) -> list[str]:
    """`program` in namespaces of its own, where `hide` is an empty directory, and `read_only` a
    volume that it cannot write to. `uid` is the user as the machine knows it; inside the program is
    root."""
    become = [] if uid == 0 else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    unshare += ["--ipc", "--net", "--mount", "--mount-proc", "--propagation", "private"]
    return [*become, *unshare, "sh", "-c", _ENTER, "sh", str(hide), str(read_only), *program]


def why_not(hide: pathlib.Path) -> str:
    """Why this machine cannot run such programs; empty if it can."""
    for tool in ("unshare", "setpriv"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if os.geteuid() != 0:
        return "other users can only be played by root"
    tried = subprocess.run(
        command_in_container(["true"], hide, uid=12345), capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def contained_process(outer: subprocess.Popen[Any]) -> int | None:
    """The number, outside, of the program that `outer` runs in its namespaces; None if it has ended."""
    try:
        children = pathlib.Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


class ContainedClient:
    """A client that obeys commands (contained_client.py), until it is killed or closed."""

    def __init__(self, socket: str, hide: pathlib.Path, uid: int = 0) -> None:
        program = pathlib.Path(__file__).with_name("contained_client.py")
        # Not the test's own: `unshare` complains there of each program that is killed.
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command_in_container(
                [sys.executable, str(program), socket], hide, pathlib.Path(socket).parent, uid
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=die_with_parent,
        )

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Returns the result of the client's function of this name."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise AssertionError(f"the client ended: {self._errors.read()}")
        return json.loads(line)

    def kill(self) -> None:
        """kill -9 of the client itself, whose namespaces end with it."""
        if client := contained_process(self._process):
            os.kill(client, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()
