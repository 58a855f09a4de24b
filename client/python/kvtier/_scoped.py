# SPDX-License-Identifier: Apache-2.0
"""Objects that a `with` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

_Self = TypeVar("_Self", bound="Scoped")


class Scoped:
    """The block's value is the object itself; at its end, however it ends, `close` is called."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
