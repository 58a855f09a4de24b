# SPDX-License-Identifier: Apache-2.0
"""The connector in a vLLM worker: transfers between its KV cache and the daemon."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence

import numpy as np

from ..types import Retention
from .connector_scheduler import BlockList, StepPlan
from .rows import StoreRows, key_of
from .transfers import EndedJob, Job, Transfers

# Between looks at a load that has failed in part and whose other parts are under way.
_END_PAUSE_S = 0.0005


class WorkerSide:
    """Of the worker's thread. block_tokens: tokens of a block, by cache group."""

    def __init__(
        self, transfers: Transfers, block_tokens: Sequence[int], retention: Retention
    ) -> None:
        self._transfers = transfers
        self._block_tokens = block_tokens
        self._retention = retention
        self._next_job = 0
        self._lists: dict[int, BlockList] = {}  # what the transfers under way are for
        self._loads_of: dict[str, int] = {}  # how many of a request's loads are under way
        self._loaded: set[str] = set()
        # The step's loads that it waits for, and what waits until so many of their layers are there.
        self._waited: dict[int, BlockList] = {}
        self._layer_waits: list[Callable[[int], bool]] = []
        self._layers_waited = 0
        self._is_in_vain = False
        self._failed_requests: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._failed_keys: set[bytes] = set()
        self._stored: collections.Counter[int] = collections.Counter()
        self._disk_loads: list[tuple[int, float]] = []
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def begin(self, plan: StepPlan) -> None:
        """Begins the step's transfers; never waits."""
        for blocks in plan.stores:
            tokens = self._block_tokens[blocks.group]
            self._transfers.store(
                self._job(blocks, is_load=False),
                np.array(blocks.blocks, dtype=np.uint32),
                StoreRows(
                    blocks.hashes,
                    blocks.parents,
                    np.full(len(blocks.blocks), tokens, dtype=np.uint16),
                    np.array(blocks.depths, dtype=np.uint32),
                    self._retention,
                ),
            )
        for request, lists in plan.loads.items():
            if lists:
                self._loads_of[request] = len(lists)
            elif request not in plan.waited:
                self._loaded.add(request)
            for blocks in lists:
                self._load(blocks, is_waited=request in plan.waited)

    @property
    def waits(self) -> bool:
        """Whether the step waits for layers of loads."""
        return bool(self._layer_waits)

    def wait_layers(self, layers: int) -> None:
        """Returns when the blocks that the step's requests need have so many layers. What does not
        come is told by `take_failed_blocks` after the step, which was computed in vain then."""
        self._layers_waited = max(self._layers_waited, layers)
        for wait in self._layer_waits:
            if not self._is_in_vain and not wait(layers):
                self._is_in_vain = True

    def end_step(self, layers: int) -> bool:
        """After the step's kernels were launched: takes notice of the transfers that have ended,
        and of all that the step waited for if it was in vain. layers: that the step has. False: it
        did not wait for all of them, and never will, so that nothing must be loaded in this way."""
        lists = list(self._waited.values())
        self.poll()
        if not self._layer_waits:
            return True
        waited_for_all = self._layers_waited >= layers
        while (self._is_in_vain or not waited_for_all) and self._waited:
            time.sleep(_END_PAUSE_S)
            self.poll()
        if not waited_for_all:
            # Kernels may have read what was not there yet.
            for blocks in lists:
                self._failed_blocks.update(blocks.blocks)
                self._failed_keys.update(key_of(one, blocks.group) for one in blocks.hashes)
        self._layer_waits.clear()
        self._layers_waited, self._is_in_vain = 0, False
        return waited_for_all

    def poll(self) -> None:
        """Takes notice of the transfers that have ended."""
        for ended in self._transfers.take_ended():
            self._end(ended)

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
        """Of the loads with blocks on disk that have ended, the tokens of those and the seconds."""
        loads, self._disk_loads = self._disk_loads, []
        return loads

    def take_stored(self) -> collections.Counter[int]:
        """The numbers of the stores that have ended."""
        stored, self._stored = self._stored, collections.Counter()
        return stored

    def _load(self, blocks: BlockList, is_waited: bool) -> None:
        job, rows = self._job(blocks, is_load=True), np.array(blocks.blocks, dtype=np.uint32)
        if not is_waited:
            self._transfers.load(job, rows, blocks.hashes)
            return
        self._waited[job.number] = blocks
        self._layer_waits.append(self._transfers.load_layers(job, rows, blocks.hashes))

    def _job(self, blocks: BlockList, is_load: bool) -> Job:
        self._next_job += 1
        self._lists[self._next_job] = blocks
        return Job(self._next_job, is_load, blocks.hashes, blocks.group)

    def _end(self, ended: EndedJob) -> None:
        blocks = self._lists.pop(ended.job.number)
        operation = "load" if ended.job.is_load else "store"
        copied = len(blocks.blocks) - len(ended.failed) - ended.skipped
        self.counts[operation, "copied"] += copied
        self.counts[operation, "skipped"] += ended.skipped
        for reason in ended.failed.values():
            self.counts[operation, reason] += 1
        if not ended.job.is_load:
            self._stored[blocks.number] += 1
            return
        if blocks.disk_tokens and not ended.failed:
            self._disk_loads.append((blocks.disk_tokens, ended.seconds))
        is_waited = self._waited.pop(ended.job.number, None) is not None
        if ended.failed:
            if not is_waited:
                self._failed_requests.add(blocks.request)
            self._failed_blocks.update(blocks.blocks[i] for i in ended.failed)
            self._failed_keys.update(key_of(blocks.hashes[i], blocks.group) for i in ended.failed)
        self._loads_of[blocks.request] -= 1
        if self._loads_of[blocks.request] == 0:
            del self._loads_of[blocks.request]
            if not is_waited:
                self._loaded.add(blocks.request)
