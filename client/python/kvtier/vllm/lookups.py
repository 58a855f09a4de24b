# SPDX-License-Identifier: Apache-2.0
"""Answers vLLM's scheduler when it asks whether the daemon has a request's blocks.

The questions of one scheduler step go to the daemon as one, on the link's thread; until the answer
is there the scheduler hears "ask again", and after a deadline, or without a daemon, "no". A verdict
is kept for as long as a request that asked is under way, so that the request does not see a prefix
that changes; the next request asks anew.
"""

from __future__ import annotations

import collections
import itertools
import queue
import time
from collections.abc import Callable, Iterable, Sequence

from .._link import LinkState
from ..types import Presence
from .link import FIRST_CONNECT_S, Answer

#: Names of outcomes, for the counters: where a block was found, or why it was not.
FOUND_IN_HOST, FOUND_ON_DISK, FOUND_COLD = "host", "disk", "cold"
NOT_FOUND, TOO_LATE, NO_DAEMON = "miss", "timeout", "unavailable"
#: The outcome for blocks on a disk that answers no more.
DISK_STUCK = "disk_stuck"

_IN_MEMORY = int(Presence.POOL | Presence.HOST)
_ON_DISK = int(Presence.DISK | Presence.DISK_UNVERIFIED)
_COLD_BIT = int(Presence.COLD)

# An engine with nothing else to do steps on and on in Python, and a thread that wants the
# interpreter waits 5 ms for it each time. So a step that ends while a question is open lets go of
# it for a moment.
_YIELD_S = 0.0001


class _State:
    """The state of blocks, one object for all of which the same is known. outcome: how they are
    counted. deadline: of those that came up together and of which nothing is known yet; blocks
    without an answer by then are misses."""

    __slots__ = ("deadline", "outcome")

    def __init__(self, outcome: str, deadline: float | None = None) -> None:
        self.outcome = outcome
        self.deadline = deadline


_MEMORY, _DISK, _MISS = _State(FOUND_IN_HOST), _State(FOUND_ON_DISK), _State(NOT_FOUND)
_COLD = _State(FOUND_COLD)


def _state_of(presence: int) -> _State:
    if presence & _IN_MEMORY:
        return _MEMORY
    if presence & _ON_DISK:
        return _DISK
    return _COLD if presence & _COLD_BIT else _MISS


# The state for each byte that an answer can have.
_STATES = [_state_of(presence) for presence in range(256)]


class Lookups:
    """Belongs to the scheduler's thread, but for `receive`. A request has thousands of blocks and
    waits for this, so that the work for each of them is left to functions that take them all at
    once.

    ask: sends keys to the daemon without waiting. state: of the link. count: told outcomes and of
    how many blocks they are, once for each block. yield_interpreter: lets the link's thread run.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[bytes]], None],
        state: Callable[[], LinkState],
        count: Callable[[str, int], None],
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        yield_interpreter: Callable[[], None] = lambda: time.sleep(_YIELD_S),
    ) -> None:
        self._ask = ask
        self._state = state
        self._count = count
        self._timeout_s = timeout_s
        self._clock = clock
        self._yield = yield_interpreter
        self._states: dict[bytes, _State] = {}
        # The keys that each request has asked for, and how many more requests ask for those that
        # more than one has.
        self._keys_of: dict[str, set[bytes]] = {}
        self._more_askers: collections.Counter[bytes] = collections.Counter()
        self._held: set[bytes] = set()  # by some request
        self._unasked: list[bytes] = []
        self._unanswered = 0  # questions that are with the link
        self._outdated = 0  # the first of these, which were asked of an epoch that has ended
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def look_up_run(self, keys: Sequence[bytes], request: str) -> tuple[int, bool]:
        """Returns how many of the blocks come before the first miss, and whether one of these is not
        known yet; never waits."""
        if self._unanswered:
            self._take_answers()
        link, now = self._state(), self._clock()
        down = link not in (LinkState.READY, LinkState.CONNECTING)
        states = list(map(self._states.get, keys))
        if _MISS in states:
            end = states.index(_MISS)
            keys, states = keys[: end + 1], states[: end + 1]
        if None in states and down:
            self._count(NO_DAEMON, 1)
            end = states.index(None)
            keys, states = keys[:end], [*states[:end], _MISS]
        elif None in states:
            fresh = [key for key, state in zip(keys, states) if state is None]
            patience_s = self._timeout_s
            if link is LinkState.CONNECTING:
                patience_s = max(patience_s, FIRST_CONNECT_S)
            question = _State("", now + patience_s)
            self._states.update(dict.fromkeys(fresh, question))
            self._unasked += fresh
            states = [question if state is None else state for state in states]
        self._hold(keys, request)
        waiting = False
        # In the order in which they come up.
        for state in dict.fromkeys(states):
            if state is _MISS:
                return states.index(state), waiting
            if state is None or state.deadline is None:
                continue
            if down or now >= state.deadline:
                first = states.index(state)
                self._states[keys[first]] = _MISS
                self._count(NO_DAEMON if down else TOO_LATE, 1)
                return first, waiting
            waiting = True
        return len(keys), waiting

    def is_hit(self, key: bytes) -> bool:
        """Whether it is known that the daemon has the block."""
        return self._states.get(key) in (_MEMORY, _DISK, _COLD)

    def are_on_disk(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether the blocks were found on disk only, or in the store that hosts share, which is
        taken to be as slow."""
        return [state is _DISK or state is _COLD for state in map(self._states.get, keys)]

    def came_to_memory(self, keys: Iterable[bytes]) -> None:
        """These were found on disk, if at all, and host memory has them now."""
        self._states.update((key, _MEMORY) for key in keys if self._states.get(key) is _DISK)

    def count_stuck(self, blocks: int) -> None:
        """So many blocks are computed although a disk has them."""
        self._count(DISK_STUCK, blocks)

    def has_unasked(self) -> bool:
        """Whether something has come up since the last `flush` or `wait`."""
        return bool(self._unasked)

    def flush(self) -> None:
        """At the end of a scheduler step: asks for all that came up in it."""
        self._ask_open()
        if self._unanswered:
            self._yield()

    def wait(self, timeout_s: float) -> bool:
        """Asks at once instead of at the end of the step, and waits for an answer; False if none came
        in time."""
        self._ask_open()
        try:
            self._take(self._answers.get(timeout=timeout_s))
        except queue.Empty:
            return False
        return True

    def receive(self, answer: Answer) -> None:
        """The link's answer to a `flush`; any thread."""
        self._answers.put(answer)

    def refuse(self, keys: Iterable[bytes]) -> None:
        """These could not be loaded: misses for the requests that wait for them, which would
        otherwise load them again and again."""
        self._states.update((key, _MISS) for key in keys if key in self._states)

    def forget(self, request: str) -> None:
        """The request has ended, and with it all knowledge of blocks that no other request has
        asked for."""
        mine = self._keys_of.pop(request, set())
        shared = mine.intersection(self._more_askers) if self._more_askers else set()
        for key in shared:
            self._more_askers[key] -= 1
            if self._more_askers[key] == 0:
                del self._more_askers[key]
        mine -= shared
        self._held -= mine
        for key in mine:
            del self._states[key]

    def turn(self) -> None:
        """The engine has other weights: nothing is known any more, for any request."""
        self._states.clear()
        self._keys_of.clear()
        self._more_askers.clear()
        self._held.clear()
        self._unasked.clear()
        self._outdated = self._unanswered

    def _hold(self, keys: Sequence[bytes], request: str) -> None:
        mine = self._keys_of.setdefault(request, set())
        if not mine.issuperset(keys):
            more = set(keys) - mine
            self._more_askers.update(self._held & more)
            self._held |= more
            mine |= more

    def _ask_open(self) -> None:
        if self._unasked:
            self._ask(self._unasked)
            self._unasked = []
            self._unanswered += 1

    def _take_answers(self) -> None:
        while not self._answers.empty():
            self._take(self._answers.get())

    def _take(self, answer: Answer) -> None:
        keys, presence = answer
        self._unanswered -= 1
        if self._outdated:
            self._outdated -= 1  # answers come in the order of the questions
            return
        found = [_MISS] * len(keys)
        if presence is not None:
            found = list(map(_STATES.__getitem__, presence))
        states = list(map(self._states.get, keys))
        if any(state is None or state.deadline is None for state in set(states)):
            # A block that was given up stays a miss; one that was forgotten is no more.
            is_open = [state is not None and state.deadline is not None for state in states]
            keys = list(itertools.compress(keys, is_open))
            found = list(itertools.compress(found, is_open))
        self._states.update(zip(keys, found))
        for state, count in collections.Counter(found).items():
            self._count(NO_DAEMON if presence is None else state.outcome, count)
