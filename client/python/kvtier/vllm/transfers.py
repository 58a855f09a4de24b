# SPDX-License-Identifier: Apache-2.0
"""vLLM's jobs as transfers of a region: submitted without waiting, collected by polling.

The host memory of a job belongs to the daemon until its transfer has ended, so that a job is
reported as failed only when it was not begun or when the region says that it is over, never because
it takes long. A load that was cut off with the connection is reported when the daemon's process has
ended, and its copies with it, or after a while: if the library gave the connection up, a daemon that
lives may be in the midst of a copy into a row that vLLM would use anew at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from .. import _settling
from .._link import Attachment, LinkState
from ..errors import KvtierError, UnavailableError
from .link import FIRST_CONNECT_S, LookupLink, logger
from .lookups import NO_DAEMON
from .rows import StoreRows

#: Why transfers fail that would mix KV of the weights that the engine had with those that it has.
OLD_EPOCH = "old_epoch"

#: Why transfers fail that waited in vain for others to end.
BUSY = "busy"

# So many blocks may be under way, each job counting as some more. Where twice as many are, the
# daemon leaves requests in the socket for as long as it likes, and a call that sends one waits.
_MOST_UNDER_WAY, _JOB_PRICE = 1 << 15, 64
_PATIENCE_S = 5.0  # of jobs that wait for others to end


@dataclass
class Job:
    """A transfer that vLLM asked for. keys: one for each of its rows, by position. group: of the
    attachment's regions, the one that it concerns."""

    number: int
    is_load: bool
    keys: Sequence[bytes]
    group: int = 0
    began: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class EndedJob:
    """failed: by position, why; the other rows were copied, or stored before (skipped)."""

    job: Job
    failed: dict[int, str]
    skipped: int
    seconds: float

    def outdated(self) -> EndedJob:
        """The same, failed, since the engine has other weights than when it was begun."""
        failed = dict.fromkeys(range(len(self.job.keys)), OLD_EPOCH)
        return EndedJob(self.job, failed, 0, self.seconds)


class Transfers:
    """Belongs to the scheduler's thread."""

    def __init__(self, link: LookupLink, settle_s: float = _settling.LONGEST_S) -> None:
        self._link = link
        self._settle_s = settle_s
        # Stores that begin when the link knows whether there is a daemon, and jobs that begin when
        # there are fewer under way.
        self._held: list[tuple[Job, Callable[[Any], int]]] = []
        self._price = 0  # of the jobs under way
        # By region and transfer.
        self._under_way: dict[Attachment, dict[tuple[int, int], Job]] = {}
        # With the time from which to report them at the latest.
        self._cut_off: dict[Attachment, tuple[float, list[EndedJob]]] = {}
        self._ended: list[EndedJob] = []
        self._outdated: set[int] = set()  # the numbers of loads that were begun before a turn

    def store(self, job: Job, rows: npt.NDArray[Any], what: StoreRows) -> None:
        """Begins to copy rows of the host memory to the daemon; a little later if the link is about
        to reach it, for the rows stay as they are until the job has ended."""

        def begin(region: Any) -> int:
            return region.store_many(
                rows,
                what.hashes,
                what.parents,
                what.tokens,
                what.depths,
                what.retention,
                compare=what.compare,
            )

        if self._must_wait(job):
            self._held.append((job, begin))
        elif not self._submit(job, begin):
            if self._link.state is LinkState.CONNECTING:
                self._held.append((job, begin))
            else:
                self._fail(job, NO_DAEMON)

    def load(self, job: Job, rows: npt.NDArray[Any], hashes: Sequence[bytes]) -> None:
        """Begins to copy blocks of the daemon to rows of the host memory. If the daemon turns out to
        be lost before it begins, of the one that takes its place at once, if one does."""

        def begin(region: Any) -> int:
            return region.load_many(rows, hashes)

        if self._must_wait(job):
            self._held.append((job, begin))
            return
        for _ in range(2):
            self._link.wait_for_first_try()
            if self._submit(job, begin):
                return
        self._fail(job, NO_DAEMON)

    def take_ended(self) -> list[EndedJob]:
        """The jobs that have ended since the last call; never waits."""
        now = time.monotonic()
        self._begin_held(now)
        for attachment, jobs in list(self._under_way.items()):
            for group, region in enumerate(attachment.regions):
                for end in region.poll():
                    job = jobs.pop((group, end.transfer), None)
                    if job is not None:
                        self._price -= len(job.keys) + _JOB_PRICE
                        self._end(attachment, job, end, now)
            self._report_settled(attachment, now)
            if not jobs and attachment not in self._cut_off:
                del self._under_way[attachment]
                attachment.give_back()
        ended, self._ended = self._ended, []
        return [self._judged(one) for one in ended] if self._outdated else ended

    def turn(self) -> None:
        """The engine has other weights. Stores that were begun go on as stores of the weights before.
        Loads that were begun are reported as failed when they have ended."""
        held, self._held = self._held, []
        for job, _ in held:
            self.refuse(job)
        jobs = [job for of_one in self._under_way.values() for job in of_one.values()]
        ended = [*self._ended, *(one for _, cut_off in self._cut_off.values() for one in cut_off)]
        jobs += [one.job for one in ended]
        self._outdated.update(job.number for job in jobs if job.is_load)

    def refuse(self, job: Job) -> None:
        """Reports a job as failed that would be of other weights than the engine has now."""
        self._fail(job, OLD_EPOCH)

    def _end(self, attachment: Attachment, job: Job, end: Any, now: float) -> None:
        if end.error is not None and not isinstance(end.error, UnavailableError):
            logger.warning("kvtier: the daemon refused a transfer: %s", end.error)
        failed = {position: reason.name.lower() for position, reason in end.failed.items()}
        ended = EndedJob(job, failed, end.skipped, now - job.began)
        if job.is_load and NO_DAEMON in failed.values():
            cut_off = self._cut_off.setdefault(attachment, (now + self._settle_s, []))
            cut_off[1].append(ended)
        else:
            self._ended.append(ended)

    def _report_settled(self, attachment: Attachment, now: float) -> None:
        cut_off = self._cut_off.get(attachment)
        if cut_off and (cut_off[0] <= now or attachment.regions[0].daemon_ended()):
            self._ended += self._cut_off.pop(attachment)[1]

    def _judged(self, ended: EndedJob) -> EndedJob:
        if ended.job.number not in self._outdated:
            return ended
        self._outdated.remove(ended.job.number)
        return ended.outdated()

    def _begin_held(self, now: float) -> None:
        """Begins the jobs that have waited, once each, or reports them as failed."""
        connecting = self._link.state is LinkState.CONNECTING
        held, self._held = self._held, []
        for job, begin in held:
            full, waited_s = self._must_wait(job), now - job.began
            if waited_s < (_PATIENCE_S if full else FIRST_CONNECT_S if connecting else 0.0):
                self._held.append((job, begin))
            elif full:
                self._fail(job, BUSY)
            elif not self._submit(job, begin):
                self._fail(job, NO_DAEMON)

    def _must_wait(self, job: Job) -> bool:
        price = self._price + len(job.keys) + _JOB_PRICE
        return self._price > 0 and price > _MOST_UNDER_WAY

    def _submit(self, job: Job, begin: Callable[[Any], int]) -> bool:
        """False: there is no daemon, or it was just found lost; otherwise the job is under way or has
        been refused."""
        attachment = self._link.borrow()
        if attachment is None:
            return False
        try:
            transfer = begin(attachment.regions[job.group])
        except UnavailableError:
            self._link.lost(attachment)
            attachment.give_back()
            return False
        except (KvtierError, ValueError) as error:
            logger.warning("kvtier: a transfer was refused: %s", error)
            attachment.give_back()
            self._fail(job, getattr(error, "reason", "refused"))
            return True
        self._price += len(job.keys) + _JOB_PRICE
        jobs = self._under_way.get(attachment)
        if jobs is None:
            self._under_way[attachment] = {(job.group, transfer): job}
        else:
            jobs[job.group, transfer] = job
            attachment.give_back()  # one borrowing for all jobs of a region
        return True

    def _fail(self, job: Job, reason: str) -> None:
        failed = dict.fromkeys(range(len(job.keys)), reason)
        self._ended.append(EndedJob(job, failed, 0, time.monotonic() - job.began))
