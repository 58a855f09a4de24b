# SPDX-License-Identifier: Apache-2.0
"""The connector in a vLLM worker: transfers between its KV cache and the daemon."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..types import DType, Retention
from .adapters import LoadedAdapters
from .kept_cache import KeptCacheWorker
from .rows import StoreRows, key_of
from .step_plan import BlockList, StepPlan
from .transfers import OLD_EPOCH, EndedJob, Job, Transfers

if TYPE_CHECKING:
    from .weight_watch import WeightWatch


# How often a worker that waits looks whether a load has ended.
_LOAD_PAUSE_S = 0.00005


class WorkerSide:
    """Used by the worker's thread. block_tokens: tokens of a block, by cache group. kept: None if the
    KV cache is not kept. clock, pause: of `wait_for_load`. watch: None if the weights are not looked
    at. number_types: by cache group, of blocks that can be compared; may be empty. adapters: None: of none
    it is known which tensors it has."""

    def __init__(
        self,
        transfers: Transfers,
        block_tokens: Sequence[int],
        retention: Retention,
        kept: KeptCacheWorker | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = lambda: time.sleep(_LOAD_PAUSE_S),
        watch: WeightWatch | None = None,
        number_types: Sequence[DType | None] = (),
        adapters: LoadedAdapters | None = None,
    ) -> None:
        self.adapters = adapters or LoadedAdapters(None)
        self._number_types = number_types
        self._watch = watch
        self._is_idle = False  # the step uses neither weights nor KV
        self._is_outdated = False  # since the watch has noticed other weights
        self._told_outdated = True
        self._clock = clock
        self._pause = pause
        self._kept = kept
        self._transfers = transfers
        self._block_tokens = block_tokens
        self._retention = retention
        self.epoch = 0  # of the plans that are carried out
        self._next_job = 0
        self._lists: dict[int, BlockList] = {}  # the purposes of the transfers under way
        self._loads_of: dict[str, int] = {}  # how many of a request's loads are under way
        self._loaded: set[str] = set()
        # Loads, with the look that must answer before they count: the weights may have changed before they ended.
        self._unsure: collections.deque[tuple[int, EndedJob]] = collections.deque()
        self._failed_requests: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._failed_keys: set[bytes] = set()
        self._stored: collections.Counter[int] = collections.Counter()
        self._disk_loads: list[tuple[int, float]] = []
        self._disk_tokens: dict[str, int] = {}  # of requests whose loads are under way
        self._disk_busy_until = 0.0  # the end of the last load from disk
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def turn(self, epoch: int) -> None:
        """The engine has other weights: plans of this epoch follow. Loads under way fail, and so do
        plans of epochs before which have not begun yet."""
        self.epoch = epoch
        self._is_outdated, self._told_outdated = False, True
        if self._watch is not None:
            self._watch.begin_epoch()
        self._turn_transfers()

    def begin_step(self, plan: StepPlan, tokens: int) -> None:
        """Before the step's kernels are launched, which compute so many tokens."""
        self.adapters.ask(plan.questions)
        self._is_idle = not (tokens or plan.loads or self._loads_of)
        if self._watch is not None and not self._is_idle:
            self._watch.look()

    def end_step(self) -> None:
        """After the step's kernels were launched."""
        # A step that used no weights must not hide the pause before it, in which they may have been
        # updated.
        if self._watch is not None and not self._is_idle:
            self._watch.end_step()

    def begin(self, plan: StepPlan) -> None:
        """Begins the step's transfers; never waits. The kernels of the steps before it have
        ended."""
        self._look_for_other_weights()
        if plan.epoch != self.epoch or self._is_outdated:
            self._refuse(plan)
            return
        if self._kept is not None:
            self._kept.publish(plan.kept.computed)
        for blocks in plan.stores:
            if not self.adapters.may_store(blocks.adapter):
                self._transfers.refuse(self._job(blocks, is_load=False))
                continue
            tokens = self._block_tokens[blocks.group]
            self._transfers.store(
                self._job(blocks, is_load=False),
                np.array(blocks.blocks, dtype=np.uint32),
                StoreRows(
                    blocks.hashes,
                    blocks.parents,
                    np.full(len(blocks.blocks), tokens, dtype=np.uint16),
                    np.array(blocks.depths, dtype=np.uint32),
                    self._retention_of(blocks),
                    self._number_types[blocks.group] if blocks.compare else None,
                ),
            )
        for job, blocks in self._load_jobs(plan):
            if not self.adapters.may_load(blocks.adapter):
                self._transfers.refuse(job)
                continue
            self._transfers.load(job, np.array(blocks.blocks, dtype=np.uint32), blocks.hashes)

    def _retention_of(self, blocks: BlockList) -> Retention | npt.NDArray[np.uint8]:
        if not blocks.retentions:
            return self._retention
        column = np.full(len(blocks.blocks), self._retention, dtype=np.uint8)
        for position, retention in blocks.retentions.items():
            column[position] = retention
        return column

    def poll(self) -> None:
        """Takes notice of the transfers that have ended. A load counts when the last look before its end has
        answered, and fails if that says that the weights have changed."""
        looks, answered = (0, 0) if self._watch is None else (self._watch.looks(), self._watch.answered())
        self._look_for_other_weights()
        for ended in self._transfers.take_ended():
            if ended.job.is_load:
                self._unsure.append((looks, ended))
            else:
                self._end(ended)
        while self._unsure and self._unsure[0][0] <= answered:
            self._end(self._unsure.popleft()[1])

    def is_loading(self) -> bool:
        """Whether loads are under way that have begun."""
        return bool(self._loads_of)

    def wait_for_load(self, timeout_s: float, begin_ready: Callable[[], None]) -> None:
        """`poll` until a request has its blocks, at the latest after `timeout_s`. Called in a step
        that computes nothing, for vLLM would only come back later. begin_ready: begins the
        transfers of the step's plan, as soon as they may begin."""
        deadline = self._clock() + timeout_s
        while not self._loaded and self._clock() < deadline:
            self._pause()
            begin_ready()
            self.poll()

    def take_loaded(self) -> tuple[set[str], set[str]]:
        """The requests of which all loads have ended, and those of them that miss a block."""
        loaded, self._loaded = self._loaded, set()
        failed = self._failed_requests & loaded
        self._failed_requests -= failed
        return loaded, failed

    def take_failed_blocks(self) -> set[int]:
        """The engine's blocks whose loads failed."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_failed_keys(self) -> set[bytes]:
        """The keys of the blocks whose loads failed."""
        failed, self._failed_keys = self._failed_keys, set()
        return failed

    def take_disk_loads(self) -> list[tuple[int, float]]:
        """For the requests with blocks on disk whose loads have ended, the tokens on disk and the
        seconds that they took, of all together: loads of the same time share the disk."""
        loads, self._disk_loads = self._disk_loads, []
        return [(sum(tokens), sum(seconds)) for tokens, seconds in [zip(*loads)]] if loads else []

    def take_outdated(self) -> int:
        """The epoch in which other weights were noticed, once; -1: in none."""
        told, self._told_outdated = self._told_outdated, True
        return -1 if told else self.epoch

    def take_stored(self) -> collections.Counter[int]:
        """The numbers of the stores that have ended."""
        stored, self._stored = self._stored, collections.Counter()
        return stored

    def _look_for_other_weights(self) -> None:
        """Until the scheduler begins another epoch, nothing of this one is stored or loaded."""
        if self._watch is not None and not self._is_outdated and self._watch.has_changed():
            self._is_outdated, self._told_outdated = True, False
            self._turn_transfers()

    def _turn_transfers(self) -> None:
        self._transfers.turn()
        self._unsure = collections.deque((0, ended.outdated()) for _, ended in self._unsure)

    def _refuse(self, plan: StepPlan) -> None:
        for blocks in plan.stores:
            self._transfers.refuse(self._job(blocks, is_load=False))
        for job, _ in self._load_jobs(plan):
            self._transfers.refuse(job)

    def _load_jobs(self, plan: StepPlan) -> list[tuple[Job, BlockList]]:
        for request, lists in plan.loads.items():
            if lists:
                self._loads_of[request] = len(lists)
            else:
                self._loaded.add(request)
        blocks_of_loads = [blocks for lists in plan.loads.values() for blocks in lists]
        return [(self._job(blocks, is_load=True), blocks) for blocks in blocks_of_loads]

    def _job(self, blocks: BlockList, is_load: bool) -> Job:
        self._next_job += 1
        self._lists[self._next_job] = blocks
        return Job(self._next_job, is_load, blocks.hashes, blocks.group)

    def _end(self, ended: EndedJob) -> None:
        blocks = self._lists.pop(ended.job.number)
        operation = "load" if ended.job.is_load else "store"
        failed = ended.failed
        if ended.job.is_load and not self.adapters.may_load(blocks.adapter):
            failed = dict.fromkeys(range(len(blocks.blocks)), OLD_EPOCH)
        copied = len(blocks.blocks) - len(failed) - ended.skipped
        self.counts[operation, "copied"] += copied
        self.counts[operation, "skipped"] += ended.skipped
        for reason in failed.values():
            self.counts[operation, reason] += 1
        if not ended.job.is_load:
            self._stored[blocks.number] += 1
            return
        if failed:
            self._failed_requests.add(blocks.request)
            self._failed_blocks.update(blocks.blocks[i] for i in failed)
            self._failed_keys.update(key_of(blocks.hashes[i], blocks.group) for i in failed)
        if blocks.disk_tokens:
            # The groups of a request are loaded at once.
            most = max(blocks.disk_tokens, self._disk_tokens.get(blocks.request, 0))
            self._disk_tokens[blocks.request] = most
        self._loads_of[blocks.request] -= 1
        if self._loads_of[blocks.request] == 0:
            del self._loads_of[blocks.request]
            self._loaded.add(blocks.request)
            self._count_disk_load(blocks.request, ended.seconds)

    def _count_disk_load(self, request: str, seconds: float) -> None:
        """All of the request's loads have ended, the last of which took so long."""
        tokens = self._disk_tokens.pop(request, 0)
        if tokens:
            now = self._clock()
            began = max(now - seconds, self._disk_busy_until)
            self._disk_busy_until = now
            if request not in self._failed_requests:
                self._disk_loads.append((tokens, now - began))
