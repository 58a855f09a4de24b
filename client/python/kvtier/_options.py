# SPDX-License-Identifier: Apache-2.0
"""Options of the engines' modules, which users write as JSON or YAML: each has a type, a range and a
default, and a value that does not fit is an error that names the option and its range."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# The longest path of a Unix socket.
_MOST_SOCKET_BYTES = 107


@dataclass(frozen=True)
class Option:
    """An option; each subclass is a type with its range."""

    default: Any

    def read(self, value: Any) -> Any:
        """The value as the module uses it. Raises ValueError, whose text is the range."""
        raise NotImplementedError


@dataclass(frozen=True)
class Flag(Option):
    """True or false, also as text, since command lines quote what they pass on."""

    default: bool

    def read(self, value: Any) -> bool:
        named = {"true": True, "false": False}
        value = named.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value


@dataclass(frozen=True)
class Number(Option):
    """A number, also as text. whole: without a fraction."""

    default: float
    least: float
    most: float
    whole: bool = False

    def read(self, value: Any) -> float | int:
        wanted = f"a {'whole ' if self.whole else ''}number from {self.least:g} to {self.most:g}"
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise ValueError(wanted) from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(wanted)
        if not math.isfinite(value) or not self.least <= value <= self.most:
            raise ValueError(wanted)
        if not self.whole:
            return float(value)
        if value != int(value):
            raise ValueError(wanted)
        return int(value)


@dataclass(frozen=True)
class Choice(Option):
    """One of several texts. names: by text, the value that the module uses."""

    default: Any
    names: Mapping[str, Any]

    def read(self, value: Any) -> Any:
        if not isinstance(value, str) or value not in self.names:
            raise ValueError(" or ".join(f'"{name}"' for name in self.names))
        return self.names[value]


@dataclass(frozen=True)
class Text(Option):
    """Printable text of at most so many bytes."""

    default: str = ""
    most_bytes: int = 4096

    def read(self, value: Any) -> str:
        if isinstance(value, str) and value.isprintable():
            if len(value.encode(errors="surrogateescape")) <= self.most_bytes:
                return value
        raise ValueError(f"a printable text of at most {self.most_bytes} bytes")


#: The options that all modules have.
COMMON: dict[str, Option] = {
    "identity": Text(),
    "retry_max_ms": Number(2000, 1, 600_000),
    "retry_min_ms": Number(50, 1, 600_000),
    "socket": Text("", _MOST_SOCKET_BYTES),
    # Whether files are read whole to tell the weights.
    "weights_digest": Choice(False, {"sample": False, "whole": True}),
}


def retry_pauses(values: Mapping[str, Any]) -> tuple[float, float]:
    """The shortest and the longest pause between tries to reach the daemon, in seconds."""
    return values["retry_min_ms"] / 1000, values["retry_max_ms"] / 1000


def read_options(
    owner: str,
    known: Mapping[str, Option],
    given: Mapping[str, Any],
    others: Iterable[str] | None = (),
) -> dict[str, Any]:
    """The values of all known options. owner: whose they are, for errors. others: keys that are not
    this module's; None: any, but those that look like one of its options. Raises ValueError."""
    for name in given:
        if name not in known and name not in (others or ()):
            _refuse_unknown(owner, known, str(name), may_be_another_s=others is None)
    values = {name: option.default for name, option in known.items()}
    for name, option in known.items():
        if name in given:
            try:
                values[name] = option.read(given[name])
            except ValueError as error:
                raise ValueError(
                    f"{owner}: {name} is {_shown(given[name])}, but takes {error}"
                ) from None
    _order_pauses(owner, given, values)
    return values


def _order_pauses(owner: str, given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """A default gives way to the other one's value."""
    shortest, longest = values.get("retry_min_ms"), values.get("retry_max_ms")
    if shortest is None or longest is None or shortest <= longest:
        return
    if "retry_min_ms" in given and "retry_max_ms" in given:
        raise ValueError(f"{owner}: retry_min_ms is {shortest:g}, more than retry_max_ms, {longest:g}")
    values["retry_min_ms"] = values["retry_max_ms"] = (
        shortest if "retry_min_ms" in given else longest
    )


def _refuse_unknown(
    owner: str, known: Mapping[str, Option], name: str, may_be_another_s: bool
) -> None:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.8 if may_be_another_s else 0.5)
    if nearest:
        raise ValueError(f"{owner} has no option {name}: {nearest[0]} is meant, perhaps")
    if not may_be_another_s:
        raise ValueError(f"{owner} has no option {name}, only {', '.join(sorted(known))}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
