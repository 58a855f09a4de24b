# SPDX-License-Identifier: Apache-2.0
"""Requests to the daemon's admin socket, as kvtierctl makes them."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Callable

from . import _abi, _library
from .errors import check

DEFAULT_ADMIN_SOCKET = "/run/kvtier/admin.sock"


def admin(
    request: dict[str, Any],
    socket: str | os.PathLike[str] = DEFAULT_ADMIN_SOCKET,
    *,
    timeout_ms: int = 60_000,
    progress: Callable[[Any], None] | None = None,
) -> Any:
    """Sends one request, for example {"op": "status"}, and returns the reply's JSON value.

    timeout_ms: after the last message from the daemon. progress: called with each progress
    message's JSON value, on this thread; what it raises is raised here, after the reply. Raises
    UnavailableError, PermissionDeniedError, TimedOutError; the daemon's refusals with their code.
    """
    library = _library.load()
    raised: list[BaseException] = []

    def forward(_: Any, text: bytes) -> None:
        # Nothing may be raised through C.
        try:
            if progress is not None and not raised:
                progress(json.loads(text))
        except BaseException as error:
            raised.append(error)

    reply = ctypes.c_void_p()
    status = library.kvt_admin(
        os.fsencode(socket),
        json.dumps(request).encode(),
        timeout_ms,
        _abi.AdminProgress(forward),
        None,
        ctypes.byref(reply),
    )
    if raised:
        library.kvt_string_free(reply)
        raise raised[0]
    check(status)
    try:
        return json.loads(ctypes.string_at(reply.value)) if reply.value else None
    finally:
        library.kvt_string_free(reply)
