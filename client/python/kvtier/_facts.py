# SPDX-License-Identifier: Apache-2.0
"""Facts that tell models apart, as the short texts that a model record's `extra` can hold."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Sequence
from typing import Any

#: Fields of a model's configuration that name the file and not the model.
NOT_IDENTITY = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "_commit_hash"})
_MAX_NAME_BYTES = 256


def digest(value: Any) -> str:
    """The digest of any values that JSON can name; others by their text."""
    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def config_digest(configuration: dict[str, Any]) -> str:
    """The digest of a model's configuration, but for the fields that name its file."""
    return digest({key: value for key, value in configuration.items() if key not in NOT_IDENTITY})


@functools.cache
def engine_of(package: str) -> str:
    """An engine by its package and the first two numbers of its version."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return f"{package} {'.'.join(version.split('.')[:2])}"


def weights_of(parts: Sequence[str | None], label: str) -> str | None:
    """Names an engine's weights by those of its models, each of which may be unknown, as None; None: then
    the user has not named them either. label: the user's name for them."""
    if None in parts:
        return f"named:{short(label)}" if label else None
    return parts[0] if len(parts) == 1 else f"files:{digest(parts)[:32]}"


def short(text: str) -> str:
    """`text` if a record's value can hold it, else its end, as far as it can, behind its digest."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    if printable == text and len(text.encode()) <= 160:
        return text
    end = printable.encode()[-80:].decode(errors="ignore")
    return f"{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()} {end}"


def record_name(name: str) -> str:
    """`name` as a record's name. The end of a long path says more than its beginning, and the
    digest before it tells paths apart."""
    return name if name.isprintable() and len(name.encode()) <= _MAX_NAME_BYTES else short(name)


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, Iterable) else str(value)
