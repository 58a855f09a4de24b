# SPDX-License-Identifier: Apache-2.0
"""The copy function of a sequence as C calls it."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable

from . import _abi

#: Copies one block within the pool: (target_offset, source_offset, byte_count), in bytes, offsets
#: from the pool's first byte. Returns when the copy is complete; raises if it failed.
CopyFunction = Callable[[int, int, int], None]


class Copier:
    """Must live as long as any sequence that C calls it for. Any thread."""

    def __init__(self, copy: CopyFunction) -> None:
        self._copy = copy
        self._raised = threading.local()
        self.thunk = _abi.CopyBlock(self._call)

    def take_error(self) -> BaseException | None:
        """What the copy function raised on this thread since this was last asked."""
        error: BaseException | None = getattr(self._raised, "error", None)
        self._raised.error = None
        return error

    def _call(self, _: Any, target_offset: int, source_offset: int, byte_count: int) -> int:
        # Nothing may be raised through C: ctypes would make it a 0, which means success.
        try:
            self._copy(target_offset, source_offset, byte_count)
        except BaseException as error:
            self._raised.error = error
            return 1
        return 0
