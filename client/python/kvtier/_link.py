# SPDX-License-Identifier: Apache-2.0
"""An engine's connection to the daemon: a thread that opens the regions, and comes back after the
daemon was lost, so that the engine's threads never wait for it. Each engine's module has a logger
of its own below the engine's."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ._native import HASH_BYTES
from .connection import Connection, connect
from .errors import KvtierError, TimedOutError, UnavailableError
from .regions import Region

Result = TypeVar("Result")

# How often an idle link looks whether the daemon is still there.
_IDLE_CHECK_S = 0.5
# Shutting down waits so long for copies; after that the process's end ends them.
_CLOSE_TIMEOUT_S = 10.0
# How long a transfer is waited for until the daemon is asked whether it lives.
_WAIT_MS = 1000
#: The daemon takes twice as many in one call by default.
HASHES_PER_CALL = 8192


class LinkState(enum.Enum):
    """CONNECTING: the first try is under way, or the first one after the daemon was lost; READY:
    there is a region; DOWN: there is none, and the thread tries again; CLOSED: for good."""

    CONNECTING = 0
    READY = 1
    DOWN = 2
    CLOSED = 3


class Attachment:
    """The regions of one connection, one for each cache group, and the objects that are closed with
    them. Users take it by `Link.borrow` and give it back. Users that only ask have regions of all
    tensor-parallel ranks, one rank's after the other's. memory: the regions' memory, if it was made
    for this connection.

    A retired attachment takes no more borrowers and is closed when the last one has left: the
    transfers that a lost daemon had under way are still reported by its region.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        close: Callable[[], None],
        alive: Callable[[], bool],
        ranks: int = 1,
        memory: Any = None,
    ) -> None:
        self.regions = regions
        self.memory = memory
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
        """Whether it is closed. Waits for copies that are under way; only the link's thread. Raises
        KvtierError once, of what closing it found."""
        with self._lock:
            if self._closed:
                return True
            if not self._retired or (self._borrowers > 0 and not force):
                return False
            self._closed = True
        self._close()
        return True


def attach(
    socket: str,
    client_name: str,
    open_regions: Callable[[Connection], Sequence[Region]],
    ranks: int = 1,
) -> Attachment:
    """Connects and opens regions, one at least. ranks: as Attachment's. Raises KvtierError, and what
    `open_regions` raises."""
    connection = connect(socket, client_name=client_name, reconnect_min_ms=-1)
    try:
        # A failure half-way closes the regions that were opened with their connection.
        regions = open_regions(connection)
    except BaseException:
        connection.close()
        raise

    def close() -> None:
        for region in regions:
            region.close()
        connection.close()

    # All regions live as long as the connection does.
    return Attachment(regions, close, regions[0].is_connected, ranks)


def wait_until_ended(region: Region, transfer: int) -> Any:
    """The transfer's end, however long a daemon that answers takes: before that, its memory belongs to
    the daemon. Raises the transfer's error; UnavailableError, too, when the daemon has answered nothing
    for some ten seconds. It is hung up on then, and begins no more copies if it goes on."""
    while True:
        try:
            end = region.wait(transfer, _WAIT_MS)
        except TimedOutError:
            with contextlib.suppress(UnavailableError):
                _hang_up_on_the_dead(region)
            continue
        if end.error is not None:
            raise end.error
        return end


def _hang_up_on_the_dead(region: Region) -> None:
    """Raises UnavailableError if the connection is lost already."""
    try:
        region.pin(np.zeros((1, HASH_BYTES), np.uint8), 0)
    except TimedOutError:
        region.hang_up()


class Link:
    """Made and closed by one thread of the engine; `borrow` may be called often, by any thread, and
    never waits.

    open_attachment: connects and opens the regions, on the link's thread; it raises KvtierError,
    OSError or ImportError when that fails, and returns None when it is too early. logger: the
    engine's.
    """

    def __init__(
        self,
        open_attachment: Callable[[], Attachment | None],
        logger: logging.Logger,
        retry_min_s: float = 0.05,
        retry_max_s: float = 2.0,
    ) -> None:
        self._open_attachment = open_attachment
        self._logger = logger
        self._retry_s = (retry_min_s, retry_max_s)
        self._pause_s = retry_min_s
        self._retry_at = 0.0
        self._wake = threading.Condition()
        self._current: Attachment | None = None
        self._state = LinkState.CONNECTING
        self._reported: str | None = None
        self._turns = 0  # how often other regions were asked for
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

    def use(self, call: Callable[[Attachment], Result], otherwise: Result) -> Result:
        """The call's result, or `otherwise` if there is no daemon, or it refuses. One that does not
        answer in time is asked no more: it would hold each call for as long."""
        attachment = self.borrow()
        if attachment is None:
            return otherwise
        try:
            return call(attachment)
        except (UnavailableError, TimedOutError):
            self.lost(attachment)
        except (KvtierError, ValueError, OSError) as error:
            self._logger.warning("kvtier: a request was refused: %s", error)
        finally:
            attachment.give_back()
        return otherwise

    def lost(self, attachment: Attachment) -> None:
        """Says that a call found the daemon gone. Any thread, any number of times."""
        with self._wake:
            if self._current is attachment:
                self._current = None
                if self._state is not LinkState.CLOSED:
                    # Another daemon may have taken its place, which the thread finds out at once.
                    self._state = LinkState.CONNECTING
                attachment.retire()
                self._wake.notify_all()

    def reopen(self) -> None:
        """Has `open_attachment` open other regions at once, since it now opens those of another model.
        The regions of before serve no new borrower. Any thread."""
        with self._wake:
            self._turns += 1
            if self._state is LinkState.CLOSED:
                return
            if self._current is not None:
                self._current.retire()
                self._current = None
            self._state = LinkState.CONNECTING
            self._retry_at = 0.0
            self._pause_s = self._retry_s[0]
            self._wake.notify_all()

    def close(self) -> None:
        """Ends the thread once nothing touches the memory any more, within ten seconds."""
        with self._wake:
            self._state = LinkState.CLOSED
            self._wake.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._logger.warning("kvtier: copies of the daemon are still under way")

    def _run(self) -> None:
        retired: list[Attachment] = []
        attachment: Attachment | None = None
        while self._state is not LinkState.CLOSED:
            if attachment is not None and not self._serves(attachment):
                retired.append(attachment)
                attachment = None
            if attachment is None and time.monotonic() >= self._retry_at:
                attachment = self._try_to_open()
            self._work(attachment)
            retired = [one for one in retired if not self._close_unused(one)]
        self._current = None
        if attachment is not None:
            attachment.retire()
            retired.append(attachment)
        for one in retired:
            self._close_unused(one, force=True)

    def _work(self, attachment: Attachment | None) -> None:
        """The thread's work between two looks at the daemon: it waits. Derived classes do more, on
        which `_wake` is notified."""
        with self._wake:
            self._wait(attachment)

    def _wait(self, attachment: Attachment | None) -> None:
        """Holding `_wake`: until it is notified, or time to look at the daemon or to try again."""
        if self._state is LinkState.CLOSED:
            return
        timeout_s = _IDLE_CHECK_S
        if attachment is None:
            timeout_s = max(0.0, self._retry_at - time.monotonic())
        self._wake.wait(timeout_s)

    def _close_unused(self, attachment: Attachment, force: bool = False) -> bool:
        """Whether it is closed."""
        try:
            return attachment.close_if_unused(force)
        except KvtierError as error:
            self._logger.warning("kvtier: closing the region failed: %s", error)
            return True

    def _serves(self, attachment: Attachment) -> bool:
        if not attachment.alive():
            self.lost(attachment)
        return self._current is attachment

    def _try_to_open(self) -> Attachment | None:
        """Tries again at once if other regions were asked for meanwhile."""
        while True:
            turns = self._turns
            attachment, state = self._open()
            with self._wake:
                if turns == self._turns:
                    return self._take(attachment, state)
            if attachment is not None:
                attachment.retire()
                self._close_unused(attachment)

    def _open(self) -> tuple[Attachment | None, LinkState]:
        """A new attachment, and the state of the link with it, or without one."""
        try:
            attachment = self._open_attachment()
        except (KvtierError, OSError, ImportError) as error:
            self._report(f"no region: {error}")
            return None, LinkState.DOWN
        except Exception:
            # Wrong for good, such as hashes that are too short; no reason to stop the engine.
            self._logger.exception("kvtier: the tier is off; its blocks are misses")
            return None, LinkState.CLOSED
        return attachment, LinkState.CONNECTING if attachment is None else LinkState.READY

    def _take(self, attachment: Attachment | None, state: LinkState) -> Attachment | None:
        """Holding `_wake`. Makes it the current attachment; without one, the thread waits before the
        next try, after a failure for longer and longer."""
        if attachment is None:
            self._retry_at = time.monotonic() + self._pause_s
            if state is LinkState.DOWN:
                self._pause_s = min(2 * self._pause_s, self._retry_s[1])
        else:
            self.connections += 1
            self._pause_s = self._retry_s[0]
            self._reported = None
            self._logger.info("kvtier: the daemon has the engine's memory")
        if self._state is not LinkState.CLOSED:
            self._current = attachment
            self._state = state
            self._wake.notify_all()
        return attachment

    def _report(self, text: str) -> None:
        """Logs a fault, once until it is another or right again."""
        if text != self._reported:
            self._logger.warning("kvtier: %s; its blocks are misses", text)
            self._reported = text
