# SPDX-License-Identifier: Apache-2.0
"""The connector in a vLLM worker: transfers between its KV cache and the daemon."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import numpy as np

from ..types import Retention
from .connector_scheduler import BlockList, StepPlan
from .rows import StoreRows
from .transfers import EndedJob, Job, Transfers


class WorkerSide:
    """Of the worker's thread. block_tokens: tokens of a block."""

    def __init__(self, transfers: Transfers, block_tokens: int, retention: Retention) -> None:
        self._transfers = transfers
        self._block_tokens = block_tokens
        self._retention = retention
        self._next_job = 0
        # What the transfers under way are for: the request and the engine's blocks.
        self._lists: dict[int, BlockList] = {}
        self._stores_of: collections.Counter[str] = collections.Counter()
        self._finished: set[str] = set()  # requests that wait for the end of their stores
        self._loaded: set[str] = set()
        self._failed_blocks: set[int] = set()
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def begin(self, plan: StepPlan) -> None:
        """Begins the step's transfers; never waits."""
        for blocks in plan.stores:
            self._stores_of[blocks.request] += 1
            self._transfers.store(
                self._job(blocks, is_load=False),
                np.array(blocks.blocks, dtype=np.uint32),
                StoreRows(
                    blocks.hashes,
                    blocks.parents,
                    np.full(len(blocks.blocks), self._block_tokens, dtype=np.uint16),
                    np.array(blocks.depths, dtype=np.uint32),
                    self._retention,
                ),
            )
        for blocks in plan.loads:
            job = self._job(blocks, is_load=True)
            self._transfers.load(job, np.array(blocks.blocks, dtype=np.uint32), blocks.hashes)
        self._finished.update(plan.finished)

    def take_finished(self) -> tuple[set[str], set[str]]:
        """The requests whose stores have all ended and which have finished, and those whose loads
        have ended."""
        for ended in self._transfers.take_ended():
            self._end(ended)
        sent = {request for request in self._finished if not self._stores_of[request]}
        self._finished -= sent
        for request in sent:
            del self._stores_of[request]
        loaded, self._loaded = self._loaded, set()
        return sent, loaded

    def take_failed_blocks(self) -> set[int]:
        """The engine's blocks whose loads failed, of the requests that were reported as loaded."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def wait_for_stores(self, requests: Iterable[str]) -> None:
        """Returns when no store of these is under way: their blocks are about to be written anew,
        and what the daemon had not copied by then would be cached with the wrong bytes."""
        if any(self._stores_of[request] for request in requests):
            self._transfers.drain()

    def _job(self, blocks: BlockList, is_load: bool) -> Job:
        self._next_job += 1
        self._lists[self._next_job] = blocks
        return Job(self._next_job, is_load, blocks.hashes)

    def _end(self, ended: EndedJob) -> None:
        blocks = self._lists.pop(ended.job.number)
        operation = "load" if ended.job.is_load else "store"
        copied = len(blocks.blocks) - len(ended.failed) - ended.skipped
        self.counts[operation, "copied"] += copied
        self.counts[operation, "skipped"] += ended.skipped
        for reason in ended.failed.values():
            self.counts[operation, reason] += 1
        if ended.job.is_load:
            self._loaded.add(blocks.request)
            self._failed_blocks.update(blocks.blocks[i] for i in ended.failed)
        else:
            self._stores_of[blocks.request] -= 1


