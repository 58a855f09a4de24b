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
        self._unseen: dict[str, Any] = {}  # those that no step has looked at
        self._left: set[str] = set()  # of these, those that a step had no room for
        self._asked: set[str] = set()  # of the unseen, in this step
        self._looked = 0  # how many this step has looked at
        self._room = 1  # how many the last one did that looked at any

    def came(self, request: Any) -> None:
        self._new.append(request)
        self._unseen[request.request_id] = request

    def looked_at(self, request: str) -> None:
        """The step looks at it now."""
        self._looked += 1
        self.ended(request)

    def ended(self, request: str) -> None:
        self._unseen.pop(request, None)
        self._left.discard(request)
        self._asked.discard(request)

    def ask(self, keys_of: Callable[[Any], Iterable[Sequence[bytes]]]) -> None:
        """Adds to the questions those of requests that the step may begin as well. Requests that an
        earlier one had no room for are added as far as the last one looked at as many: a long queue
        is not asked about in each step. keys_of: of a request, by runs."""
        keys_left, room = MOST_KEYS_TOGETHER, self._room
        for name, request in self._unseen.items():
            if keys_left <= 0:
                return
            if name in self._asked:
                continue
            if name in self._left:
                if room == 0:
                    continue
                room -= 1
            self._asked.add(name)
            for keys in keys_of(request):
                self._lookups.look_up_run(keys[:keys_left], name)
                keys_left -= len(keys)

    def take(self) -> list[Any]:
        """A step is planned: all that came. The requests that it had no room for are asked about
        anew, since blocks that they need may be stored meanwhile."""
        for name in self._asked:
            self._lookups.forget(name)
        self._asked.clear()
        self._left = set(self._unseen)
        self._room, self._looked = self._looked or self._room, 0
        new, self._new = self._new, []
        return new
