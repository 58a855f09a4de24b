# SPDX-License-Identifier: Apache-2.0
"""Counts what a process and its descendants have used, as Linux tells it."""

from __future__ import annotations

import os
import pathlib

_PROC = pathlib.Path("/proc")
# Fields of /proc/PID/stat behind the program's name.
_PARENT, _FIRST_TIME, _TIMES = 1, 11, 4


def of(process_id: int) -> dict[str, float]:
    """Processor time, including that of descendants that were waited for, and the bytes that went
    to drives and came from them, whether through the page cache or not. A process that ended
    meanwhile counts as nothing."""
    fields = _fields_of_all()
    family, size = {process_id}, 0
    while len(family) != size:
        size = len(family)
        family |= {one for one, values in fields.items() if int(values[_PARENT]) in family}
    ticks = sum(
        int(value)
        for one in family & fields.keys()
        for value in fields[one][_FIRST_TIME : _FIRST_TIME + _TIMES]
    )
    counts = [_io(one) for one in family]
    return {
        "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
        "written_bytes": sum(one.get("write_bytes", 0) for one in counts),
        "read_bytes": sum(one.get("read_bytes", 0) for one in counts),
    }


def _fields_of_all() -> dict[int, list[str]]:
    fields = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # The name may hold spaces and parentheses.
            fields[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:
            pass
    return fields


def _io(process_id: int) -> dict[str, int]:
    try:
        lines = (_PROC / str(process_id) / "io").read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.partition(": ") for line in lines]
    return {name: int(value) for name, _, value in pairs}
