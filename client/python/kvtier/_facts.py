# SPDX-License-Identifier: Apache-2.0
"""Facts that tell models apart, as the short texts that a model record's `extra` can hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
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


def short(text: str) -> str:
    """`text` if a record's value can hold it, else its end behind its digest."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    if len(printable.encode()) <= 160:
        return printable
    end = printable.encode()[-80:].decode(errors="ignore")
    return f"{hashlib.sha256(text.encode()).hexdigest()} {end}"


def record_name(name: str) -> str:
    """`name` as a record's name. The end of a long path says more than its beginning, and the
    digest before it tells paths apart."""
    return name if len(name.encode()) <= _MAX_NAME_BYTES else short(name)


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, Iterable) else str(value)
