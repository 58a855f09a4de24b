# SPDX-License-Identifier: Apache-2.0
"""Whether ctypes structures are laid out as a C++ compiler lays out those of a header."""

from __future__ import annotations

import ctypes
import inspect
import re
import shutil
import subprocess
from types import ModuleType
from typing import Any

from .paths import SOURCE

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def structures(module: ModuleType) -> dict[str, Any]:
    """The module's structures by their names in C: DecodeParams is kvt_decode_params."""
    return {
        "kvt" + re.sub("[A-Z]", lambda match: "_" + match[0].lower(), name): structure
        for name, structure in inspect.getmembers(module, inspect.isclass)
        if issubclass(structure, ctypes.Structure) and structure is not ctypes.Structure
    }


def differences(module: ModuleType, header: str, include: str = ".") -> str:
    """What the compiler says against the module's sizes and offsets; "" if they are right.
    `include`: directory of the source tree that `header` is found in."""
    checks = []
    for name, structure in structures(module).items():
        checks.append(f"static_assert(sizeof({name}) == {ctypes.sizeof(structure)});")
        for field, _ in structure._fields_:
            offset = getattr(structure, field).offset
            checks.append(f"static_assert(offsetof({name}, {field}) == {offset});")
    source = f'#include <cstddef>\n#include "{header}"\n' + "\n".join(checks) + "\n"
    assert COMPILER is not None
    command = [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{SOURCE / include}", "-xc++", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True).stderr


def declared_functions(texts: list[str], macro: str) -> set[str]:
    """The functions that the headers' texts declare behind `macro`."""
    return set(re.findall(macro + r"[^;(]*?\b(kvt_\w+)\(", "".join(texts)))
