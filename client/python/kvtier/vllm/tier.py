# SPDX-License-Identifier: Apache-2.0
"""KvtierTier: kvtierd as a secondary tier of vLLM's own offloading to host memory.

    "secondary_tiers": [{"type": "KvtierTier", "module_path": "kvtier.vllm.tier"}]

vLLM copies blocks from the GPU to its host memory, and from there hands them to this tier; on a
prefix hit the way back. The daemon reads and writes vLLM's host memory in place. All methods are
called by the scheduler's thread and none waits for the daemon, but `drain_jobs` and `shutdown`. For
vLLM 0.31 to 0.33; docs/engines/VLLM.md has the options.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import vllm
from vllm.v1.kv_offload import base as offload
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from .._epochs import unnamed_epoch
from .._host_view import HostView, NotSharedError, find_host_view
from .._link import Attachment, LinkState
from .._options import read_options
from . import identity as model_identity
from . import metrics
from .link import LookupLink, attach_regions
from .lookups import Lookups, Verdict
from .options import TIER_OPTIONS
from .rows import Chains, block_hash
from .transfers import EndedJob, Job, Transfers

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats,
    )

_VERDICTS = {
    Verdict.HIT: offload.LookupResult.HIT,
    Verdict.MISS: offload.LookupResult.MISS,
    Verdict.RETRY: offload.LookupResult.RETRY,
}


class KvtierTier(SecondaryTierManager):
    """options.py has the options. Raises ValueError for others; nothing else reaches vLLM."""

    medium: ClassVar[offload.Medium] = offload.Medium.STORAGE
    # One tier for host memory and disk of the daemon; vLLM has no name for that.
    if hasattr(SecondaryTierManager, "cache_hit_source"):
        cache_hit_source = SecondaryTierManager.cache_hit_source

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **given: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        options = read_options("KvtierTier", TIER_OPTIONS, given)
        if options["locality"] is not None:
            self.locality = offload.Locality(options["locality"])
        self._retention = options["retention"]
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._chains = Chains(offloading_spec)
        # Requests that are under way, and those of them with blocks of other weights.
        self._requests: set[str] = set()
        self._mixed: set[str] = set()
        self._weights = ""
        self._connections_told = 0
        self._connected_told: bool | None = None
        self._view: HostView | None = None
        pauses = [options[name] / 1000 for name in ("retry_min_ms", "retry_max_ms")]
        self._link = LookupLink(self._make_opener(options), self._receive, *pauses)
        self._transfers = Transfers(self._link)
        self._lookups = Lookups(
            self._link.ask,
            lambda: self._link.state,
            functools.partial(self._count, "lookup"),
            options["lookup_timeout_ms"] / 1000,
        )

    def lookup(self, key: bytes, req_context: Any) -> offload.LookupResult:
        return _VERDICTS[self._lookups.look_up(bytes(key), req_context.req_id)]

    def submit_store(self, job_metadata: TransferJob) -> None:
        job = Job(job_metadata.job_id, False, [bytes(key) for key in job_metadata.keys])
        if job_metadata.req_context.req_id in self._mixed:
            self._transfers.refuse(job)
            return
        rows = np.asarray(job_metadata.chunk_ids, dtype=np.uint32)
        self._transfers.store(
            job, rows, self._chains.store_rows(job.keys, job_metadata.req_context, self._retention)
        )

    def submit_load(self, job_metadata: TransferJob) -> None:
        job = Job(job_metadata.job_id, True, [bytes(key) for key in job_metadata.keys])
        rows = np.asarray(job_metadata.chunk_ids, dtype=np.uint32)
        self._transfers.load(job, rows, [block_hash(key) for key in job.keys])

    def get_finished_jobs(self) -> Iterable[JobResult]:
        return [self._result_of(ended) for ended in self._transfers.take_ended()]

    def on_new_request(self, req_context: Any) -> offload.RequestOffloadingContext:
        self._requests.add(req_context.req_id)
        return offload.RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._requests.discard(req_context.req_id)
        self._mixed.discard(req_context.req_id)
        self._lookups.forget(req_context.req_id)
        self._chains.forget(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """vLLM calls it when its caches are reset, as the weights may be others, and says nothing else
        of that to a tier. This engine finds none of the KV any more that was computed before."""
        self._transfers.drain()
        self._weights = unnamed_epoch()
        self._mixed |= self._requests
        self._transfers.turn()
        self._lookups.turn()
        self._link.reopen()

    def shutdown(self) -> None:
        self._link.close()
        if self._view is not None:
            self._view.close()
            self._view = None

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return metrics.definitions()

    def get_stats(self) -> OffloadingConnectorStats | None:
        connected = self._link.state is LinkState.READY
        if not self._counts and connected == self._connected_told:
            return None
        self._connected_told = connected
        connections = self._link.connections - self._connections_told
        self._connections_told += connections
        counts, self._counts = self._counts, collections.Counter()
        return metrics.stats(counts, connected, connections)

    def _make_opener(self, options: Mapping[str, Any]) -> Callable[[], Attachment | None]:
        """The arguments with which the link opens regions: it finds out here, where vLLM's
        configuration can be found, all that does not depend on the daemon."""
        spec, label = self._offloading_spec, options["identity"]
        try:
            engine = model_identity.find_engine_config()
            view = self._view = find_host_view(self._primary_kv_view)
            facts = model_identity.row_facts(
                spec, engine, view.row_bytes, vllm.__version__, label
            )
            group = model_identity.row_group(spec, view.row_bytes)
            whole = options["weights_digest"]
            self._weights = model_identity.loaded_weights(engine, label, whole) or unnamed_epoch()
        except (NotSharedError, ValueError, OSError, model_identity.UnknownModelError) as error:
            reason = error
            return lambda: _refuse(reason)

        def open_attachment() -> Attachment | None:
            root = model_identity.hash_root()
            if root is None:
                return None
            record = facts.record(root, self._weights, [group])
            memory = {
                "fd": view.fd,
                "bytes": view.file_bytes,
                "blocks": view.rows,
                "pieces": [(view.offset, view.row_stride, view.row_bytes)],
            }
            return attach_regions(options["socket"], [record], [memory])

        return open_attachment

    def _receive(self, answer: Any) -> None:
        self._lookups.receive(answer)

    def _result_of(self, ended: EndedJob) -> JobResult:
        job = ended.job
        operation = "load" if job.is_load else "store"
        copied = len(job.keys) - len(ended.failed) - ended.skipped
        self._count(operation, "copied", copied)
        self._count(operation, "skipped", ended.skipped)
        for reason in ended.failed.values():
            self._count(operation, reason)
        succeeded = None
        if job.is_load and ended.failed:
            self._lookups.refuse(ended.failed_keys())
            succeeded = ended.copied_keys() or None
        return JobResult(
            job_id=job.number,
            success=not ended.failed,
            successful_keys=succeeded,
            transfer_time=ended.seconds,
            transfer_bytes=copied * self.block_size_bytes,
        )

    def _count(self, operation: str, outcome: str, by: int = 1) -> None:
        if by:
            self._counts[operation, outcome] += by


def _refuse(reason: Exception) -> Attachment | None:
    raise RuntimeError(f"vLLM's rows cannot be passed on: {reason}")
