# SPDX-License-Identifier: Apache-2.0
"""The fields of an HTTP request that say how long its KV will be of use, as hints for the connector.

A hint travels as `kv_transfer_params["kvtier"]`, which each of vLLM's doors hands to the connector
as it is; wishes.py reads it there. docs/HINTS.md has the table of fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

#: The key of the hints in `kv_transfer_params`.
HINTS_KEY = "kvtier"

#: The ends of paths: of requests in batches, and of Anthropic's.
BATCH_DOOR = "/v1/chat/completions/batch"
MESSAGES_DOOR = "/v1/messages"

_MOST_SESSION_BYTES = 256
_TTL_S = {"5m": 300, "1h": 3600}
_DEFAULT_TTL = "5m"
_DAY_S = 86_400
_RETENTION: dict[str, dict[str, Any]] = {
    "in_memory": {"retention": "memory"},
    "in-memory": {"retention": "memory"},
    "24h": {"retention": "extended", "keep_s": _DAY_S},
}
# A breakpoint as it stands in the body. In a prompt's own text the quotes are escaped.
_BREAKPOINT = b'"cache_control"'
_CONTROL = re.compile(rb"\s*:\s*(\{[^{}]*\})")


class _Body(msgspec.Struct):
    """The fields that are looked at. All others are skipped, and text is not copied."""

    prompt_cache_retention: Any = None
    prompt_cache_key: Any = None
    store: Any = None
    session_id: Any = msgspec.UNSET
    vllm_xargs: Any = msgspec.UNSET
    kv_transfer_params: Any = msgspec.UNSET
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()


_read_body = msgspec.json.Decoder(_Body).decode


def with_hints(
    body: bytes, door: str, has_session: bool, count: Callable[[str, str], None]
) -> bytes | None:
    """The body with hints; None: it stays as it is. door: the request's path. has_session: a header
    names one. count: told each field and what became of it. Raises msgspec.DecodeError for a body that
    is no JSON object."""
    fields = _read_body(body)
    hints: dict[str, Any] = {}
    _read_retention(fields.prompt_cache_retention, hints, count)
    if door.endswith(MESSAGES_DOOR):
        _read_breakpoints(fields, hints, count)
    session = _session_of(fields, has_session, count)
    goes_on = has_session or session is not None
    _read_store(fields, hints, door.endswith(BATCH_DOOR), goes_on, count)
    added: dict[str, Any] = {}
    if hints and fields.kv_transfer_params in (msgspec.UNSET, None):
        added["kv_transfer_params"] = {HINTS_KEY: hints}
    elif hints and isinstance(fields.kv_transfer_params, dict):
        own = fields.kv_transfer_params.get(HINTS_KEY, {})
        if isinstance(own, dict):
            added["kv_transfer_params"] = {
                **fields.kv_transfer_params,
                HINTS_KEY: {**hints, **own},
            }
    if session is not None:
        added["session_id"] = session
    return _with_fields(body, fields, added) if added else None


def _with_fields(body: bytes, fields: _Body, added: dict[str, Any]) -> bytes:
    """Names that the body lacks go in front of the others, by which a long prompt is not written anew.
    A reader takes the last of two that are equal."""
    if all(getattr(fields, name) is msgspec.UNSET for name in added):
        start = body.index(b"{") + 1
        front = json.dumps(added)[1:-1].encode()
        return b"".join((body[:start], front, b",", memoryview(body)[start:]))
    return msgspec.json.encode({**msgspec.json.decode(body), **added})


def _read_retention(
    value: Any, hints: dict[str, Any], count: Callable[[str, str], None]
) -> None:
    if value is None:
        return
    known = _RETENTION.get(value) if isinstance(value, str) else None
    count("prompt_cache_retention", "ignored" if known is None else "taken")
    hints.update(known or {})


def _read_breakpoints(
    fields: _Body, hints: dict[str, Any], count: Callable[[str, str], None]
) -> None:
    """Where a breakpoint stands in the prompt is its share of the text before it, in the order in which
    models get it: nothing here knows the tokens."""
    parts = [bytes(part) for part in (fields.tools, fields.system, fields.messages)]
    whole, before, keep = sum(map(len, parts)), 0, []
    for part in parts:
        place = part.find(_BREAKPOINT)
        while place >= 0:
            ttl_s = _ttl_of(_CONTROL.match(part, place + len(_BREAKPOINT)))
            count("cache_control", "ignored" if ttl_s is None else "taken")
            if ttl_s is not None:
                keep.append([ttl_s, round((before + place) / whole, 4)])
            place = part.find(_BREAKPOINT, place + 1)
        before += len(part)
    if keep:
        hints["keep"] = keep


def _ttl_of(control: re.Match[bytes] | None) -> int | None:
    try:
        value = {} if control is None else json.loads(control.group(1))
    except ValueError:
        return None
    if value.get("type") != "ephemeral":
        return None
    ttl = value.get("ttl", _DEFAULT_TTL)
    return _TTL_S.get(ttl) if isinstance(ttl, str) else None


def _session_of(
    fields: _Body, has_session: bool, count: Callable[[str, str], None]
) -> str | None:
    """The key under which a client caches names its session where nothing else does."""
    key, own = fields.prompt_cache_key, fields.vllm_xargs
    if key is None:
        return None
    is_sound = isinstance(key, str) and key.isprintable()
    if not is_sound or not 0 < len(key.encode()) <= _MOST_SESSION_BYTES:
        count("prompt_cache_key", "ignored")
        return None
    count("prompt_cache_key", "taken")
    if has_session or fields.session_id or (isinstance(own, dict) and "session_id" in own):
        return None
    return key


def _read_store(
    fields: _Body,
    hints: dict[str, Any],
    is_batch: bool,
    goes_on: bool,
    count: Callable[[str, str], None],
) -> None:
    """A client that wants nothing stored gets nothing on disk. It will not repeat the request, unless
    something else in the request says so: agents send `store: false` with each turn."""
    if fields.store is not None:
        count("store", "taken" if isinstance(fields.store, bool) else "ignored")
    if fields.store is False:
        hints.setdefault("retention", "memory")
    if fields.store is False or is_batch:
        if not (goes_on or fields.session_id or fields.prompt_cache_retention or "keep" in hints):
            hints["once"] = True
