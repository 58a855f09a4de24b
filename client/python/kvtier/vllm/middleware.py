# SPDX-License-Identifier: Apache-2.0
"""Hands what OpenAI's and Anthropic's clients say of their prompts' caching to KvtierConnector:

    vllm serve MODEL --middleware kvtier.vllm.middleware.CacheHints ...

vLLM reads these fields at its API and drops them. The middleware copies them into fields that vLLM
passes on. A request with a value that it does not understand goes on as it came, and is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import Counter

from .hint_fields import BATCH_DOOR, MESSAGES_DOOR, with_hints

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger("vllm.kvtier")

_DOORS = (
    "/v1/chat/completions",
    BATCH_DOOR,
    "/v1/completions",
    "/v1/responses",
    MESSAGES_DOOR,
)
_SESSION_HEADER = b"x-session-id"
# A body beyond this is handed on as it comes.
_MOST_BODY_BYTES = 32 << 20

_FIELDS = Counter(
    "vllm:kvtier_hint_fields",
    "Fields of requests that say how long their KV will be of use, by name and whether they were "
    "taken or ignored; body: requests that were not read.",
    ["field", "outcome"],
)


def _count(field: str, outcome: str) -> None:
    _FIELDS.labels(field, outcome).inc()


class CacheHints:
    """ASGI middleware; replies go through untouched."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            if scope["path"].endswith(_DOORS):
                scope, receive = await _hinted(scope, receive)
        await self._app(scope, receive, send)


async def _hinted(scope: Message, receive: Receive) -> tuple[Message, Receive]:
    """The request with hints in its body, or as it came."""
    messages, body_bytes, is_whole = [], 0, False
    while not is_whole and body_bytes <= _MOST_BODY_BYTES:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            break
        body_bytes += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
    if is_whole:
        body = b"".join(message.get("body", b"") for message in messages)
        changed = _changed(scope, body)
        if changed is not None:
            scope = {**scope, "headers": _headers_of(scope["headers"], changed)}
            messages = [{"type": "http.request", "body": changed, "more_body": False}]
    elif body_bytes > _MOST_BODY_BYTES:
        _count("body", "ignored")

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return scope, replay


def _changed(scope: Message, body: bytes) -> bytes | None:
    """None: the body stays as it is, for whatever reason: a request never fails by this."""
    try:
        has_session = any(name == _SESSION_HEADER for name, _ in scope["headers"])
        return with_hints(body, scope["path"], has_session, _count)
    except Exception as error:
        _count("body", "ignored")
        logger.debug("kvtier: no hints are read from a request: %s", error)
        return None


def _headers_of(headers: Any, body: bytes) -> list[tuple[bytes, bytes]]:
    length = (b"content-length", str(len(body)).encode())
    return [length if name == b"content-length" else (name, value) for name, value in headers]
