# SPDX-License-Identifier: Apache-2.0
"""The tier's connection to the daemon: a thread that opens the region, asks for blocks, and comes
back after the daemon was lost, so that vLLM's scheduler never waits for any of it."""

from __future__ import annotations

import collections
import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..connection import Connection, connect
from ..errors import KvtierError, UnavailableError, invalid
from ..model import ModelRecord
from ..types import Presence
from .rows import block_hash, group_of, hash_of

logger = logging.getLogger("vllm.kvtier")

_IN_MEMORY = int(Presence.POOL | Presence.HOST)

#: So long the first requests of an engine wait for its first try to reach the daemon, which takes
#: some milliseconds, or the time to open a large KV cache. A daemon that is absent refuses at once.
FIRST_CONNECT_S = 1.0

# How often an idle link looks whether the daemon is still there.
_IDLE_CHECK_S = 0.5
# Half of what the daemon takes in one call by default.
_KEYS_PER_LOOKUP = 8192
# Shutting down waits so long for copies; after that the process's end ends them.
_CLOSE_TIMEOUT_S = 10.0

#: What a lookup brings for each key: the tiers that have it (kvtier.Presence), 0 for none; None: no
#: daemon was asked.
Answer = tuple[Sequence[bytes], "Sequence[int] | None"]


class LinkState(enum.Enum):
    """CONNECTING: the first try is under way; READY: there is a region; DOWN: there is none, and
    the thread tries again; CLOSED: for good."""

    CONNECTING = 0
    READY = 1
    DOWN = 2
    CLOSED = 3


class Region(Protocol):
    """What the link and its user need of kvtier.Region, and what tests put in its place."""

    def store_many(
        self, blocks: Any, hashes: Any, parents: Any, tokens: Any, depths: Any, retention: Any
    ) -> int: ...

    def load_many(self, blocks: Any, hashes: Any) -> int: ...

    def poll(self) -> Sequence[Any]: ...

    def lookup(self, hashes: Sequence[bytes]) -> npt.NDArray[np.uint8]: ...

    def close(self) -> None: ...


class Attachment:
    """The regions of one connection, one for each cache group, and what is closed with them. Users
    take it by `Link.borrow` and give it back. Those who only ask have regions of all
    tensor-parallel ranks, one rank's after the other's.

    A retired attachment takes no more borrowers and is closed when the last one has left: the
    transfers that a lost daemon had under way are still reported by its region.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        close: Callable[[], None],
        alive: Callable[[], bool],
        ranks: int = 1,
    ) -> None:
        self.regions = regions
        self.ranks = ranks
        self.alive = alive
        self._close = close
        self._lock = threading.Lock()
        self._borrowers = 0
        self._retired = False
        self._closed = False

    def borrow(self) -> bool:
        """Counts one more borrower; False if it is retired."""
        with self._lock:
            if self._retired:
                return False
            self._borrowers += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._borrowers -= 1

    def retire(self) -> None:
        with self._lock:
            self._retired = True

    def close_if_unused(self, force: bool = False) -> bool:
        """Whether it is closed. Waits for copies that are under way; only the link's thread."""
        with self._lock:
            if self._closed:
                return True
            if not self._retired or (self._borrowers > 0 and not force):
                return False
            self._closed = True
        try:
            self._close()
        except KvtierError as error:
            logger.warning("kvtier: closing the region failed: %s", error)
        return True


def attach_regions(
    socket: str, records: Sequence[ModelRecord], memories: Sequence[Mapping[str, Any]]
) -> Attachment:
    """Connects and opens a region for each group of each record. records: of tensor-parallel ranks.
    memories: of each group, the arguments of Connection.open_region but model and group, and
    instead of `device` a GPU's `gpu_uuid`. Raises KvtierError."""
    connection = connect(socket, client_name="vllm", reconnect_min_ms=-1)
    try:
        # What fails half-way closes the regions that were opened with their connection.
        regions = [
            connection.open_region(record, group=group, **_arguments(connection, memory))
            for record in records
            for group, memory in enumerate(memories)
        ]
    except BaseException:
        connection.close()
        raise

    def close() -> None:
        for region in regions:
            region.close()
        connection.close()

    # All regions live as long as the connection does.
    return Attachment(regions, close, regions[0].is_connected, len(records))


def _arguments(connection: Connection, memory: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(memory)
    gpu_uuid = arguments.pop("gpu_uuid", None)
    if gpu_uuid is not None:
        known = [device.uuid for device in connection.devices()]
        if gpu_uuid not in known:
            raise invalid("unknown_gpu", f"the daemon does not serve the GPU {gpu_uuid}")
        arguments["device"] = known.index(gpu_uuid)
    return arguments


class Link:
    """Made and closed by one thread, the scheduler's; only `borrow` and `ask` are called often, and
    they never wait.

    open_attachment: connects and opens the region, on the link's thread; it raises KvtierError,
    OSError or ImportError when that fails, and returns None when it is too early. on_answer: gets
    the answers to `ask`, on the link's thread.
    """

    def __init__(
        self,
        open_attachment: Callable[[], Attachment | None],
        on_answer: Callable[[Answer], None],
        retry_min_s: float = 0.05,
        retry_max_s: float = 2.0,
    ) -> None:
        self._open_attachment = open_attachment
        self._on_answer = on_answer
        self._retry_s = (retry_min_s, retry_max_s)
        self._pause_s = retry_min_s
        self._retry_at = 0.0
        self._wake = threading.Condition()
        self._questions: collections.deque[Sequence[bytes]] = collections.deque()
        self._current: Attachment | None = None
        self._state = LinkState.CONNECTING
        self._reported: str | None = None
        self.connections = 0  # how often a region was opened
        self._thread = threading.Thread(target=self._run, name="kvtier-link", daemon=True)
        self._thread.start()

    @property
    def state(self) -> LinkState:
        return self._state

    def borrow(self) -> Attachment | None:
        """The region to use now, to be given back; None if there is none."""
        attachment = self._current
        return attachment if attachment is not None and attachment.borrow() else None

    def wait_for_first_try(self, timeout_s: float = FIRST_CONNECT_S) -> None:
        """Returns once it is known whether the daemon can be reached, at the latest after
        `timeout_s`."""
        if self._state is LinkState.CONNECTING:
            with self._wake:
                self._wake.wait_for(lambda: self._state is not LinkState.CONNECTING, timeout_s)

    def lost(self, attachment: Attachment) -> None:
        """Says that a call found the daemon gone. Any thread, any number of times."""
        with self._wake:
            if self._current is attachment:
                self._current = None
                self._state = LinkState.DOWN
                attachment.retire()
                self._wake.notify()

    def ask(self, keys: Sequence[bytes]) -> None:
        """Asks which tiers have these blocks; the answer comes to `on_answer`."""
        with self._wake:
            self._questions.append(keys)
            self._wake.notify()

    def close(self) -> None:
        """Ends the thread once nothing touches the memory any more, within ten seconds."""
        with self._wake:
            self._state = LinkState.CLOSED
            self._wake.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("kvtier: copies of the daemon are still under way")

    def _run(self) -> None:
        retired: list[Attachment] = []
        attachment: Attachment | None = None
        while self._state is not LinkState.CLOSED:
            if attachment is not None and not self._serves(attachment):
                retired.append(attachment)
                attachment = None
            if attachment is None and time.monotonic() >= self._retry_at:
                attachment = self._try_to_open()
            for keys in self._wait_for_questions(attachment):
                self._on_answer((keys, self._look_up(attachment, keys)))
            retired = [one for one in retired if not one.close_if_unused()]
        self._current = None
        if attachment is not None:
            attachment.retire()
            retired.append(attachment)
        for one in retired:
            one.close_if_unused(force=True)

    def _serves(self, attachment: Attachment) -> bool:
        if not attachment.alive():
            self.lost(attachment)
        return self._current is attachment

    def _try_to_open(self) -> Attachment | None:
        try:
            attachment = self._open_attachment()
        except (KvtierError, OSError, ImportError) as error:
            self._report(f"no region: {error}")
            self._fail(LinkState.DOWN)
            return None
        except Exception:
            # Wrong for good, such as hashes that are too short; no reason to stop the engine.
            logger.exception("kvtier: the tier is off; its blocks are misses")
            self._fail(LinkState.CLOSED)
            return None
        if attachment is None:
            self._retry_at = time.monotonic() + self._retry_s[0]
            return None
        with self._wake:
            if self._state is not LinkState.CLOSED:
                self._current = attachment
                self._state = LinkState.READY
                self._wake.notify_all()
        self.connections += 1
        self._pause_s = self._retry_s[0]
        self._reported = None
        logger.info("kvtier: the daemon has the engine's host memory")
        return attachment

    def _fail(self, state: LinkState) -> None:
        """Waits for longer and longer before the next try."""
        self._retry_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._retry_s[1])
        with self._wake:
            if self._state is not LinkState.CLOSED:
                self._state = state
                self._wake.notify_all()

    def _wait_for_questions(self, attachment: Attachment | None) -> list[Sequence[bytes]]:
        """What was asked meanwhile; nothing once it is time to look at the daemon or to try
        again."""
        timeout_s = _IDLE_CHECK_S
        if attachment is None:
            timeout_s = max(0.0, self._retry_at - time.monotonic())
        with self._wake:
            if not self._questions and self._state is not LinkState.CLOSED:
                self._wake.wait(timeout_s)
            questions = list(self._questions)
            self._questions.clear()
        return questions

    def _look_up(
        self, attachment: Attachment | None, keys: Sequence[bytes]
    ) -> Sequence[int] | None:
        if attachment is None:
            return None
        try:
            presence: list[int] = []
            for first in range(0, len(keys), _KEYS_PER_LOOKUP):
                presence += _look_up(attachment, keys[first : first + _KEYS_PER_LOOKUP])
            return presence
        except UnavailableError:
            self.lost(attachment)
        except KvtierError as error:
            self._report(f"a lookup failed: {error}")
        return None

    def _report(self, text: str) -> None:
        """Logs what is wrong, once until it is something else or right again."""
        if text != self._reported:
            logger.warning("kvtier: %s; its blocks are misses", text)
            self._reported = text


def _look_up(attachment: Attachment, keys: Sequence[bytes]) -> list[int]:
    """The tiers that have each key's block: of several ranks the slowest, since all must have it.
    One round trip for each region with a key."""
    if len(attachment.regions) == 1:
        return attachment.regions[0].lookup([block_hash(key) for key in keys]).tolist()
    groups = len(attachment.regions) // attachment.ranks
    presence = np.zeros((attachment.ranks, len(keys)), np.uint8)
    groups_of_keys = np.array([group_of(key) for key in keys])
    for group in range(groups):
        (places,) = np.nonzero(groups_of_keys == group)
        if len(places) == 0:
            continue
        # A group's region has blocks of that group only, under the engine's own hashes.
        hashes = [hash_of(keys[place]) for place in places]
        for rank in range(attachment.ranks):
            region = attachment.regions[rank * groups + group]
            presence[rank, places] = region.lookup(hashes)
    in_memory = (presence & _IN_MEMORY) != 0
    somewhere = np.where((presence != 0).all(axis=0), int(Presence.DISK), 0)
    return np.where(in_memory.all(axis=0), int(Presence.HOST), somewhere).tolist()
