# SPDX-License-Identifier: Apache-2.0
"""Wishes of requests for how long the daemon keeps their blocks: read from the request, and told to
the daemon when the request has ended and its blocks are stored.

A request has them in `kv_transfer_params["kvtier"]`, from its client or from the middleware, or in vLLM's
`kv_hints`. docs/HINTS.md has the fields. A value that is not understood is counted, and is no wish.
"""

from __future__ import annotations

import collections
import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._link import Attachment
from ..errors import LimitExceededError
from ..types import Hint, Retention

_RETENTIONS = {"memory": Retention.MEMORY, "extended": Retention.EXTENDED}
_ACTIONS = ("retain", "pin", "demote", "prefetch", "share")
_UNKNOWN_ACTION = "unknown_action:"
_MOST_UNKNOWN_ACTIONS = 16  # counted by name; the others together, since clients choose the names
_MOST_RETURNS_MS = 86_400_000
_MOST_KEPT_PARTS = 16
_MOST_NUMBER = 1e12  # NaN is not within it, either
# The longest sequences of a session that are remembered for its end, and bytes of their hashes and
# names, of all sessions together.
_SEQUENCES_PER_SESSION = 4
_MOST_SESSION_BYTES = 16 << 20
_HASH_BYTES = 32  # an object of Python takes twice that
_SEQUENCE_BYTES = 500  # without hashes
# Half of the daemon's default limit for one call.
_HASHES_PER_CALL = 8192

Count = Callable[[str, int], None]
# Hashes of a sequence's full blocks, by group.
_Sequence = list[list[bytes]]


@dataclass(frozen=True)
class Wishes:
    """retention: None: as the engine's other blocks. keep: seconds, and the share of the prompt that
    they are wished for. hint: of the whole sequence. session: "": none."""

    retention: Retention | None = None
    keep: tuple[tuple[float, float], ...] = ()
    hint: Hint | None = None
    returns_in_ms: int = 0
    session: str = ""

    def __bool__(self) -> bool:
        return bool(self.keep or self.hint is not None or self.session)


def wishes_of(request: Any, keep_most_s: float, count: Count) -> Wishes:
    """request: vLLM's. keep_most_s: nothing is kept longer than that. count: told each outcome."""
    given = _given(request, count)
    session = getattr(request, "session_id", None)
    if not given and not session:
        return Wishes()
    hint, returns_in_ms = None, given.get("returns_in_ms")
    if returns_in_ms is not None:
        if _is_number(returns_in_ms) and 0 <= returns_in_ms <= _MOST_RETURNS_MS:
            hint = Hint.RETURNS
        else:
            count("ignored", 1)
    for name, closing in (("once", Hint.ONCE), ("closed", Hint.CLOSED)):
        if given.get(name) is True:
            hint = closing
        elif given.get(name) not in (None, False):
            count("ignored", 1)
    named = given.get("retention")
    retention = _RETENTIONS.get(named) if isinstance(named, str) else None
    if named is not None and retention is None:
        count("ignored", 1)
    return Wishes(
        retention,
        tuple(_kept_parts(given, keep_most_s, count)),
        hint,
        int(returns_in_ms or 0) if hint is Hint.RETURNS else 0,
        session if isinstance(session, str) else "",
    )


def _given(request: Any, count: Count) -> dict[str, Any]:
    """All that the request says; a client's own words outweigh the rest."""
    given: dict[str, Any] = {}
    for action in getattr(getattr(request, "kv_hints", None), "actions", ()):
        payload = action.payload if isinstance(action.payload, dict) else {}
        if action.action_type not in _ACTIONS:
            count(f"{_UNKNOWN_ACTION}{action.action_type}", 1)
        elif action.action_type in ("retain", "pin"):
            given["keep_s"] = payload.get("ttl_s")
        elif action.action_type == "demote":
            given["closed"] = True
    params = getattr(request, "kv_transfer_params", None)
    own = params.get("kvtier") if isinstance(params, dict) else None
    if isinstance(own, dict):
        given.update(own)
    elif own is not None:
        count("ignored", 1)
    return given


def _kept_parts(
    given: dict[str, Any], keep_most_s: float, count: Count
) -> Iterable[tuple[float, float]]:
    parts = given.get("keep", [])
    if not isinstance(parts, list) or len(parts) > _MOST_KEPT_PARTS:
        parts = [None]
    if given.get("keep_s") is not None:
        parts = [*parts, [given["keep_s"], 1.0]]
    for part in parts:
        is_pair = isinstance(part, list) and len(part) == 2 and all(map(_is_number, part))
        if not is_pair or not 0 < part[0] or not 0 < part[1] <= 1:
            count("ignored", 1)
            continue
        if part[0] > keep_most_s:
            count("keep_clipped", 1)
        if keep_most_s > 0:
            yield min(part[0], keep_most_s), part[1]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _MOST_NUMBER


class WishTeller:
    """Belongs to the scheduler's thread. keep_most_s, count: as wishes_of's; the link's thread counts,
    too. post: runs a call with an attachment on that thread, or drops it without a daemon."""

    def __init__(
        self,
        keep_most_s: float,
        post: Callable[[Callable[[Attachment], None]], None],
        count: Count,
    ) -> None:
        self._keep_most_s = keep_most_s
        self._post = post
        self._count = count
        # Calls that wait for stores to end, by the numbers of these.
        self._waiting: list[tuple[set[int], Callable[[Attachment], None]]] = []
        self._unknown_actions: set[str] = set()
        self._sessions: collections.OrderedDict[str, list[_Sequence]] = collections.OrderedDict()
        self._session_bytes = 0

    def of(self, request: Any) -> Wishes:
        return wishes_of(request, self._keep_most_s, self._count_bounded)

    def ended(
        self, wishes: Wishes, sequence: _Sequence, prompt_blocks: Sequence[int], stores: set[int]
    ) -> None:
        """A request has ended. sequence: hashes of its full blocks, by group; prompt_blocks: how many of
        them are the prompt's. stores: those under way, which may have blocks of it."""
        calls: list[Callable[[Attachment], None]] = []
        for ttl_s, share in wishes.keep:
            kept = [one[: math.ceil(n * share)] for one, n in zip(sequence, prompt_blocks)]
            calls.append(functools.partial(self._keep, kept, int(ttl_s * 1000)))
        if wishes.hint is not None:
            ending = [sequence]
            if wishes.hint is Hint.CLOSED:
                ending += self._forget_session(wishes.session)
            for one in ending:
                calls.append(functools.partial(self._hint, one, wishes.hint, wishes.returns_in_ms))
        if wishes.session and wishes.hint in (None, Hint.RETURNS):
            self._remember(wishes.session, sequence)
        if not calls:
            return

        def tell(attachment: Attachment) -> None:
            for call in calls:
                call(attachment)

        if stores:
            self._waiting.append((set(stores), tell))
        else:
            self._post(tell)

    def stored(self, number: int) -> None:
        """A store has ended."""
        if not self._waiting:
            return
        for stores, _ in self._waiting:
            stores.discard(number)
        for stores, tell in self._waiting:
            if not stores:
                self._post(tell)
        self._waiting = [one for one in self._waiting if one[0]]

    def turn(self) -> None:
        """The engine has other weights: blocks of those before are not asked for under these."""
        self._waiting.clear()
        self._sessions.clear()
        self._session_bytes = 0

    def _count_bounded(self, outcome: str, count: int) -> None:
        if outcome.startswith(_UNKNOWN_ACTION) and outcome not in self._unknown_actions:
            is_name = outcome[len(_UNKNOWN_ACTION) :].isidentifier() and len(outcome) <= 64
            if is_name and len(self._unknown_actions) < _MOST_UNKNOWN_ACTIONS:
                self._unknown_actions.add(outcome)
            else:
                outcome = f"{_UNKNOWN_ACTION}(others)"
        self._count(outcome, count)

    def _remember(self, session: str, sequence: _Sequence) -> None:
        if not any(sequence):
            return
        known = [one for one in self._forget_session(session) if not _begins_with(sequence, one)]
        known = [*known, sequence][-_SEQUENCES_PER_SESSION:]
        self._sessions[session] = known
        self._session_bytes += _bytes_of(session, known)
        while self._session_bytes > _MOST_SESSION_BYTES:
            self._forget_session(next(iter(self._sessions)))

    def _forget_session(self, session: str) -> list[_Sequence]:
        known = self._sessions.pop(session, [])
        self._session_bytes -= _bytes_of(session, known)
        return known

    def _keep(self, sequence: _Sequence, ttl_ms: int, attachment: Attachment) -> None:
        for region, hashes in _parts_of(attachment, sequence):
            try:
                self._count("kept", region.pin(hashes, ttl_ms))
            except LimitExceededError:
                self._count("keep_refused", len(hashes))

    def _hint(
        self, sequence: _Sequence, hint: Hint, returns_in_ms: int, attachment: Attachment
    ) -> None:
        for region, hashes in _parts_of(attachment, sequence):
            self._count(hint.name.lower(), region.hint(hashes, hint, returns_in_ms))


def _begins_with(sequence: _Sequence, other: _Sequence) -> bool:
    return all(one[: len(before)] == before for one, before in zip(sequence, other))


def _bytes_of(session: str, known: list[_Sequence]) -> int:
    hashes = sum(len(group) for sequence in known for group in sequence)
    return len(known) * (sys.getsizeof(session) + _SEQUENCE_BYTES) + _HASH_BYTES * hashes


def _parts_of(
    attachment: Attachment, sequence: _Sequence
) -> Iterable[tuple[Any, list[bytes]]]:
    """For each region the hashes of its group, in calls that the daemon takes; the last first, since a
    block is of use while those behind it are."""
    groups = len(attachment.regions) // attachment.ranks
    for number, region in enumerate(attachment.regions):
        hashes = sequence[number % groups]
        for end in range(len(hashes), 0, -_HASHES_PER_CALL):
            yield region, hashes[max(0, end - _HASHES_PER_CALL) : end]
