# SPDX-License-Identifier: Apache-2.0
"""The programs that a wheel carries: `kvtierd` and `kvtierctl`.

A wheel's console scripts call `kvtierd()` and `kvtierctl()`, which become the program: signals, exit
codes and standard streams are its own. A package that was installed from the source tree carries
none, and then others are looked for.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

_DIRECTORY = pathlib.Path(__file__).resolve().parent / "bin"


class ProgramNotFoundError(FileNotFoundError):
    """A program of kvtier is neither in this package nor elsewhere; the message says where it was
    looked for."""


def find(name: str) -> str:
    """The path of a program: named by the environment ($KVTIERD, $KVTIERCTL), in this package, or
    on the search path. Raises ProgramNotFoundError."""
    named = os.environ.get(name.upper())
    if named:
        return named
    carried = _DIRECTORY / name
    if carried.exists():
        return str(carried)
    found = shutil.which(name)
    if found is None:
        raise ProgramNotFoundError(
            f"{name} is neither in {_DIRECTORY} nor on the search path; install a wheel of kvtier or "
            f"set {name.upper()} to its path"
        )
    return found


def kvtierd() -> None:
    _become("kvtierd")


def kvtierctl() -> None:
    _become("kvtierctl")


def _become(name: str) -> None:
    # Only the carried one: the search path would lead back to the script that called.
    program = _DIRECTORY / name
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {program} cannot be run: {error.strerror}")
