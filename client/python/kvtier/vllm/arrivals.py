# SPDX-License-Identifier: Apache-2.0
"""Requests that came since the last step was planned.

A step may begin many of them, and looks at one after the other. If each waited for an answer of its
own, a step would begin a few only and the next ones the others: more steps with prompts in them,
each of which holds up all requests that are being answered. So the first that waits asks for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .lookups import Lookups

#: As many keys as go in one call: those of more requests than a step can begin would be asked for in
#: vain.
MOST_KEYS_TOGETHER = 8192


class Arrivals:
    """Belongs to the scheduler's thread."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._new: list[Any] = []
        self._unseen: dict[str, Any] = {}  # of these, those that this step has not looked at
        self._asked: set[str] = set()  # of the unseen

    def came(self, request: Any) -> None:
        self._new.append(request)
        self._unseen[request.request_id] = request

    def looked_at(self, request: str) -> None:
        """The step looks at it now, or it has ended."""
        self._unseen.pop(request, None)
        self._asked.discard(request)

    def ask(self, keys_of: Callable[[Any], Iterable[Sequence[bytes]]]) -> None:
        """Adds to the questions those of requests that the step may begin as well. keys_of: of a
        request, by runs."""
        left = MOST_KEYS_TOGETHER
        for name, request in self._unseen.items():
            if left <= 0:
                return
            if name in self._asked:
                continue
            self._asked.add(name)
            for keys in keys_of(request):
                self._lookups.look_up_run(keys[:left], name)
                left -= len(keys)

    def take(self) -> list[Any]:
        """A step is planned: all that came. The requests that it had no room for ask anew in their
        turn, since blocks that they need may be stored meanwhile."""
        for name in self._asked:
            self._lookups.forget(name)
        self._asked.clear()
        self._unseen.clear()
        new, self._new = self._new, []
        return new
