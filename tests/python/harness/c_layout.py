# SPDX-License-Identifier: Apache-2.0
"""Whether ctypes structures are laid out as a C++ compiler lays out those of a header."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

from kvtier._cheader import Header

from .paths import SOURCE

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def differences(header: Header, name: str, include: str) -> str:
    """Compares the compiler's sizes and offsets with those that the package read out of a header;
    "" if they are right. `include`: directory of the source tree that `name` is found in."""
    checks = []
    for structure_name, structure in header.structures.items():
        checks.append(f"static_assert(sizeof({structure_name}) == {ctypes.sizeof(structure)});")
        for field, _ in structure._fields_:
            offset = getattr(structure, field).offset
            checks.append(f"static_assert(offsetof({structure_name}, {field}) == {offset});")
    source = f'#include <cstddef>\n#include "{name}"\n' + "\n".join(checks) + "\n"
    assert COMPILER is not None
    command = [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{SOURCE / include}", "-xc++", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True).stderr


def declared_functions(texts: list[str], macro: str) -> set[str]:
    """The functions that the headers' texts declare behind `macro`."""
    return set(re.findall(macro + r"[^;(]*?\b(kvt_\w+)\(", "".join(texts)))
