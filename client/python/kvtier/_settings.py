# SPDX-License-Identifier: Apache-2.0
"""An engine's settings as facts of a record: all that are not as they are by default count, unless they
are listed as harmless. One that a newer version brings keeps blocks apart from the start."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import types
from collections.abc import Container, Mapping, Set
from typing import Any

from ._epochs import unnamed_epoch
from ._weight_files import content_digest

#: The names of harmless settings, by the field that has their configuration; "": the outermost.
Harmless = Mapping[str, Container[str]]

# A variable with one of these words in its name says where things are and how large, who may ask, how long to
# wait, what to write down, of which build the engine is, or in which order the same is computed.
_HARMLESS_WORDS = frozenset("""
    ADDR ADDRESS AFFINITY ALIVE ALLOW AOT API ASSETS BIND BOOTSTRAP BUDGET BUFFER BUILD BYTES CAPACITY CI
    COMPATIBILITY COMPILE COREDUMP CRASH CUDAGRAPH DIR DISAGG DISAGGREGATION DP DUMP ENCODER ENDPOINT EVENTS GB GC
    GRAPH GRPC HEALTH HICACHE HOST HTTP INTERVAL IP IPC KEY LEVEL LOG LOGGING MB MEDIA METRICS MOONCAKE MULTIPROC
    MULTIPROCESSING NCCL NIC NIXL NUMA OVERLAP P2P PARSER PATH PORT PRECOMPILED PROFILE PROFILER QUEUE RANK RAY
    RESERVED ROOT RPC SAMPLER SCHEDULER SERVER SHUTDOWN SLEEP SPACE STATS STREAM TAG TARGET THREADS TIMEOUT
    TOKENIZER TOOL TRACE TRACK USAGE VERSION WARMUP WORKSPACE ZMQ
    """.split())
# Types of numbers and layouts count whatever else a name says.
_COUNTING = re.compile("QUANT|DOWNCAST|DTYPE|FP[0-9]|F16|INT[0-9]|LAYOUT|PRECISION")


def changed(config: Any, harmless: Harmless, section: str = "") -> dict[str, Any]:
    """The settings that count, as values that JSON can name. config: a dataclass, a struct of msgspec, or any
    object, whose attributes are then None by default. section: the field that has it."""
    told: dict[str, Any] = {}
    for name, field in _fields(config).items():
        value = getattr(config, name, None)
        if name in harmless.get(section, ()):
            continue
        if not _has_fields(value):
            if value != default_of(field):
                told[name] = _plain(value, harmless)
            continue
        part = changed(value, harmless, name)
        # A configuration that is not known here tells something by being there.
        if part or name not in harmless and not _has_fields(default_of(field)):
            told[name] = {type(value).__name__: part}
    return told


def default_of(field: Any) -> Any:
    """The default of a field of a dataclass, of pydantic or of msgspec; a mark, which is equal to nothing else,
    if it has none."""
    own = field.default if hasattr(field.default, "default_factory") else field
    return own.default_factory() if callable(own.default_factory) else own.default


def environment(prefix: str, known: Container[str]) -> dict[str, str]:
    """The variables that count of those that an engine knows, which begin so."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prefix) and name in known
        if _COUNTING.search(name) or _HARMLESS_WORDS.isdisjoint(name.split("_"))
    }


def _fields(config: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(config):
        return {field.name: field for field in dataclasses.fields(config)}
    if hasattr(config, "__struct_fields__"):
        import msgspec

        return {field.name: field for field in msgspec.structs.fields(config)}
    return dict.fromkeys(getattr(config, "__dict__", ()), types.SimpleNamespace(default=None, default_factory=None))


def _has_fields(value: Any) -> bool:
    if isinstance(value, (type, enum.Enum)):
        return False
    is_record = dataclasses.is_dataclass(value) or hasattr(value, "__struct_fields__")
    return is_record or isinstance(value, types.SimpleNamespace)


def _plain(value: Any, harmless: Harmless) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, os.PathLike)):
        return content_digest(str(value)) or str(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if _has_fields(value):
        return {type(value).__name__: changed(value, harmless, type(value).__name__)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one, harmless) for key, one in value.items()}
    if isinstance(value, Set):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_plain(one, harmless) for one in value]
    # An address or a function's name tells nothing of its work: no other engine has the same.
    is_told = getattr(type(value), "__repr__", None) != object.__repr__ and not callable(value)
    return str(value) if is_told else unnamed_epoch()
