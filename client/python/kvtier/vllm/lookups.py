# SPDX-License-Identifier: Apache-2.0
"""What vLLM's scheduler is told when it asks, block by block, whether the tier has a block.

The questions of one scheduler step go to the daemon as one, on the link's thread; until the answer
is there the scheduler hears "ask again", and after a deadline, or without a daemon, "no". A verdict
is kept for as long as a request that asked is under way, so that the request does not see a prefix
that changes; the next request asks anew.
"""

from __future__ import annotations

import enum
import queue
import time
from collections.abc import Callable, Iterable, Sequence

from .._link import LinkState
from ..types import Presence
from .link import FIRST_CONNECT_S, Answer

#: Names of outcomes, for the counters: where a block was found, or why it was not.
FOUND_IN_HOST, FOUND_ON_DISK = "host", "disk"
NOT_FOUND, TOO_LATE, NO_DAEMON = "miss", "timeout", "unavailable"

# As plain numbers, since a request has thousands of blocks.
_IN_MEMORY = int(Presence.POOL | Presence.HOST)
_ON_DISK = int(Presence.DISK)

# An engine with nothing else to do steps on and on in Python, and a thread that wants the
# interpreter waits 5 ms for it each time. So a step that ends while a question is open lets go of
# it for a moment.
_YIELD_S = 0.0001


class Verdict(enum.Enum):
    """HIT: a tier of the daemon has it; MISS; RETRY: not known yet."""

    HIT = 0
    MISS = 1
    RETRY = 2


class _Probe:
    """One block that was asked for. deadline: when no answer becomes a miss."""

    __slots__ = ("deadline", "in_memory", "requests", "verdict")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.verdict = Verdict.RETRY
        self.in_memory = False
        self.requests: set[str] = set()


class Lookups:
    """Of the scheduler's thread, but for `receive`.

    ask: sends keys to the daemon without waiting. state: of the link. count: told the outcome of
    each probe, once. yield_interpreter: lets the link's thread run.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[bytes]], None],
        state: Callable[[], LinkState],
        count: Callable[[str], None],
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
        self._probes: dict[bytes, _Probe] = {}
        self._keys_of: dict[str, list[bytes]] = {}
        self._unasked: list[bytes] = []
        self._unanswered = 0  # questions that are with the link
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def look_up(self, key: bytes, request: str) -> Verdict:
        """Whether to expect the block; never waits."""
        hits, waiting = self.look_up_run((key,), request)
        return Verdict.MISS if hits == 0 else Verdict.RETRY if waiting else Verdict.HIT

    def look_up_run(self, keys: Sequence[bytes], request: str) -> tuple[int, bool]:
        """`look_up` of blocks until one is a miss: how many come before that one, and whether one
        of them is not known yet. A prompt has thousands."""
        if self._unanswered:
            self._take_answers()
        state, now = self._state(), self._clock()
        down = state not in (LinkState.READY, LinkState.CONNECTING)
        deadline = now + self._timeout_s
        if state is LinkState.CONNECTING:
            deadline = max(deadline, now + FIRST_CONNECT_S)
        mine = self._keys_of.setdefault(request, [])
        waiting = False
        for position, key in enumerate(keys):
            probe = self._probes.get(key)
            if probe is None:
                if down:
                    self._count(NO_DAEMON)
                    return position, waiting
                probe = self._probes[key] = _Probe(deadline)
                self._unasked.append(key)
            if request not in probe.requests:
                probe.requests.add(request)
                mine.append(key)
            if probe.verdict is Verdict.RETRY:
                if down or now >= probe.deadline:
                    probe.verdict = Verdict.MISS
                    self._count(NO_DAEMON if down else TOO_LATE)
                else:
                    waiting = True
            if probe.verdict is Verdict.MISS:
                return position, waiting
        return len(keys), waiting

    def is_hit(self, key: bytes) -> bool:
        """Whether it is known that the daemon has the block."""
        probe = self._probes.get(key)
        return probe is not None and probe.verdict is Verdict.HIT

    def are_on_disk(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether the blocks were found on disk only."""
        probes = [self._probes.get(key) for key in keys]
        return [probe is not None and not probe.in_memory for probe in probes]

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
        for key in keys:
            probe = self._probes.get(key)
            if probe is not None:
                probe.verdict = Verdict.MISS

    def forget(self, request: str) -> None:
        """The request has ended, and with it the verdicts that no other request has heard."""
        for key in self._keys_of.pop(request, ()):
            probe = self._probes[key]
            probe.requests.discard(request)
            if not probe.requests:
                del self._probes[key]

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
        for position, key in enumerate(keys):
            probe = self._probes.get(key)
            # A probe that was given up stays a miss; one that was forgotten is no more.
            if probe is not None and probe.verdict is Verdict.RETRY:
                self._decide(probe, None if presence is None else presence[position])

    def _decide(self, probe: _Probe, presence: int | None) -> None:
        if presence is None:
            probe.verdict = Verdict.MISS
            self._count(NO_DAEMON)
        elif presence & _IN_MEMORY:
            probe.verdict = Verdict.HIT
            probe.in_memory = True
            self._count(FOUND_IN_HOST)
        elif presence & _ON_DISK:
            probe.verdict = Verdict.HIT
            self._count(FOUND_ON_DISK)
        else:
            probe.verdict = Verdict.MISS
            self._count(NOT_FOUND)
