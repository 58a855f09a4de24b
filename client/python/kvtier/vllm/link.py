# SPDX-License-Identifier: Apache-2.0
"""vLLM's link to the daemon, which also asks for blocks on the link's thread, so that the scheduler
never waits for an answer."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._gpu_memory import region_arguments
from .._link import Attachment, Link, LinkState, attach
from ..connection import Connection
from ..errors import KvtierError, TimedOutError, UnavailableError
from ..model import ModelRecord
from ..types import Presence
from .rows import group_of, hash_of
from .token_ids import ToldBlocks

logger = logging.getLogger("vllm.kvtier")

_IN_MEMORY = int(Presence.POOL | Presence.HOST)

#: So long requests wait altogether for the first try to reach the daemon, at an engine's start or
#: after the daemon was lost. It takes some milliseconds, or the time to open a large KV cache. A
#: daemon that is absent refuses at once.
FIRST_CONNECT_S = 1.0

# Half of the daemon's default limit for one call.
_KEYS_PER_LOOKUP = 8192

# Told blocks and calls that wait for the link's thread: beyond them the oldest are not told.
_MOST_TOLD = 4096

#: A lookup's answer for each key: the tiers that have it (kvtier.Presence), 0 for none; None: no
#: daemon was asked.
Answer = tuple[Sequence[bytes], "Sequence[int] | None"]


def attach_regions(
    socket: str,
    records: Sequence[ModelRecord],
    memories: Sequence[Mapping[str, Any]],
    on_connection: Callable[[Connection], None] | None = None,
) -> Attachment:
    """Connects and opens a region for each group of each record. records: of tensor-parallel ranks.
    memories: of each group, the arguments of Connection.open_region but model and group, and
    instead of `device` a GPU's `gpu_uuid`. on_connection: called before regions are opened. Raises
    KvtierError."""

    def open_regions(connection: Connection) -> list[Any]:
        if on_connection is not None:
            on_connection(connection)
        return [
            connection.open_region(record, group=group, **region_arguments(connection, memory))
            for record in records
            for group, memory in enumerate(memories)
        ]

    return attach(socket, "vllm", open_regions, len(records))


class LookupLink(Link):
    """Made and closed by the scheduler's thread; only `borrow` and `ask` are called often, and they
    never wait.

    open_attachment: as Link's. on_answer: gets the answers to `ask`, on the link's thread.
    tells_tokens: whether the daemon is asked if it keeps token ids, and told them.
    """

    def __init__(
        self,
        open_attachment: Callable[[], Attachment | None],
        on_answer: Callable[[Answer], None],
        retry_min_s: float = 0.05,
        retry_max_s: float = 2.0,
        tells_tokens: bool = False,
    ) -> None:
        self._on_answer = on_answer
        self._tells_tokens = tells_tokens
        self._asked_for_tokens: Attachment | None = None  # the last one over which it was
        self._wanted: frozenset[int] = frozenset()  # groups of which it wants them
        self._told: collections.deque[ToldBlocks] = collections.deque(maxlen=_MOST_TOLD)
        self._posted: collections.deque[Callable[[Attachment], None]] = collections.deque(
            maxlen=_MOST_TOLD
        )
        self._questions: collections.deque[Sequence[bytes]] = collections.deque()
        self._asking_again = False
        self._patience_s = FIRST_CONNECT_S
        # Starts the thread, which uses the members above.
        super().__init__(open_attachment, logger, retry_min_s, retry_max_s)

    def wait_for_first_try(self) -> None:
        """Returns once it is known whether the daemon can be reached, or when those who wait have
        waited for FIRST_CONNECT_S altogether."""
        if self._state is not LinkState.CONNECTING:
            self._patience_s = FIRST_CONNECT_S
            return
        began = time.monotonic()
        with self._wake:
            self._wake.wait_for(
                lambda: self._state is not LinkState.CONNECTING, max(0.0, self._patience_s)
            )
        self._patience_s -= time.monotonic() - began

    def ask(self, keys: Sequence[bytes]) -> None:
        """Asks which tiers have these blocks; the answer comes to `on_answer`."""
        with self._wake:
            self._questions.append(keys)
            self._wake.notify()

    def wants_tokens(self, group: int) -> bool:
        """Whether the daemon keeps ids of the tokens of this group's blocks."""
        return group in self._wanted

    def tell(self, blocks: ToldBlocks) -> None:
        """Tells which tokens these hold, if the daemon wants to know: nothing comes of it else."""
        with self._wake:
            self._told.append(blocks)
            self._wake.notify()

    def post(self, call: Callable[[Attachment], None]) -> None:
        """Runs a call that asks the daemon, on the link's thread; nothing comes of it without one."""
        with self._wake:
            self._posted.append(call)
            self._wake.notify()

    def _work(self, attachment: Attachment | None) -> None:
        with self._wake:
            waits = not (self._questions or self._told or self._posted)
            if waits and attachment is self._asked_for_tokens:
                self._wait(attachment)
            if attachment is not None and attachment is not self._current:
                return  # those that are asked now are meant for the next one
            questions, told = list(self._questions), list(self._told)
            posted = list(self._posted)
            self._questions.clear()
            self._told.clear()
            self._posted.clear()
        self._answer(attachment, questions)
        # Behind the lookups: a step waits for their answers, and some milliseconds only.
        self._ask_for_tokens(attachment)
        if told:
            self._tell(attachment, told)
        for call in posted:
            self._call(attachment, call)

    def _call(self, attachment: Attachment | None, call: Callable[[Attachment], None]) -> None:
        if attachment is None or attachment is not self._current:
            return
        try:
            call(attachment)
        except UnavailableError:
            self.lost(attachment)
        except KvtierError as error:
            self._report(f"a hint was refused: {error}")

    def _ask_for_tokens(self, attachment: Attachment | None) -> None:
        """Once over each attachment."""
        if attachment is self._asked_for_tokens:
            return
        self._asked_for_tokens = attachment
        self._wanted = frozenset()
        if attachment is None or attachment is not self._current or not self._tells_tokens:
            return
        groups = len(attachment.regions) // attachment.ranks
        try:
            regions = enumerate(attachment.regions[:groups])
            self._wanted = frozenset(group for group, one in regions if one.wants_tokens())
        except UnavailableError:
            self.lost(attachment)
        except KvtierError as error:
            self._report(f"a question was refused: {error}")

    def _tell(self, attachment: Attachment | None, told: Sequence[ToldBlocks]) -> None:
        """To all ranks, each of which has blocks of its own. Ids that are lost with a daemon are
        told again when the blocks are stored or loaded again."""
        if attachment is None:
            return
        groups = len(attachment.regions) // attachment.ranks
        try:
            for blocks in told:
                if not self.wants_tokens(blocks.group):
                    continue
                for region in attachment.regions[blocks.group :: groups]:
                    region.give_tokens(blocks.hashes, blocks.tokens)
        except UnavailableError:
            self.lost(attachment)
        except KvtierError as error:
            self._report(f"token ids were refused: {error}")

    def _answer(self, attachment: Attachment | None, questions: list[Sequence[bytes]]) -> None:
        while questions:
            try:
                answer = self._look_up(attachment, questions[0])
            except UnavailableError:
                assert attachment is not None
                self.lost(attachment)
                if not self._asking_again:
                    # Asks the daemon that has taken its place, if there is one.
                    self._asking_again = True
                    with self._wake:
                        self._questions.extendleft(reversed(questions))
                    return
                attachment, answer = None, None
            except TimedOutError as error:
                self._report(f"a lookup failed: {error}")
                # The others would wait for as long, one after the other, while more come.
                with self._wake:
                    questions += self._questions
                    self._questions.clear()
                attachment, answer = None, None
            self._asking_again = False
            self._on_answer((questions.pop(0), answer))

    def _look_up(
        self, attachment: Attachment | None, keys: Sequence[bytes]
    ) -> Sequence[int] | None:
        """None: there is no daemon, or it refused. Raises UnavailableError when it was lost, and
        TimedOutError."""
        if attachment is None:
            return None
        try:
            presence: list[int] = []
            for first in range(0, len(keys), _KEYS_PER_LOOKUP):
                presence += _look_up(attachment, keys[first : first + _KEYS_PER_LOOKUP])
            return presence
        except (TimedOutError, UnavailableError):
            raise
        except KvtierError as error:
            self._report(f"a lookup failed: {error}")
        return None


def _look_up(attachment: Attachment, keys: Sequence[bytes]) -> list[int]:
    """The tiers that have each key's block: of several ranks the slowest, since all must have it.
    One round trip for each region with a key."""
    if len(attachment.regions) == 1:
        return attachment.regions[0].lookup([hash_of(key) for key in keys]).tolist()
    groups = len(attachment.regions) // attachment.ranks
    presence = np.zeros((attachment.ranks, len(keys)), np.uint8)
    groups_of_keys = np.array([group_of(key) for key in keys])
    for group in range(groups):
        (places,) = np.nonzero(groups_of_keys == group)
        if len(places) == 0:
            continue
        # A group's region has blocks of that group only, under the engine's own hashes.
        hashes = [hash_of(keys[place]) for place in places.tolist()]
        for rank in range(attachment.ranks):
            region = attachment.regions[rank * groups + group]
            presence[rank, places] = region.lookup(hashes)
    in_memory = (presence & _IN_MEMORY) != 0
    # A block that a rank has in the store only is as far away as a disk.
    somewhere = np.where((presence != 0).all(axis=0), int(Presence.DISK), 0)
    return np.where(in_memory.all(axis=0), int(Presence.HOST), somewhere).tolist()
