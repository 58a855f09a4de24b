# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiered offloading on a machine without a GPU, for tests.

vLLM refuses to make the worker that copies between GPU and host memory where there is no GPU; all
else of its offloading runs. This spec makes one that copies with torch, from one part of host
memory to another.
"""

import time

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuCopies(OffloadingWorker):
    """Copies at once; a job is finished when it was submitted. One cache group."""

    def __init__(self, kv_caches, blocks_per_chunk, region):
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._finished = []
        self._pairs = []  # of the engine's tensor and its columns of the host rows
        for cache in kv_caches.tensors:
            page_bytes = cache.page_size_bytes
            blocks = cache.tensor.view(torch.int8).view(-1, page_bytes)
            rows = region.create_next_worker_view(page_bytes * blocks_per_chunk)
            self._pairs.append((blocks, rows))

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def _copy(self, job_id, engine, host, to_host):
        began, copied = time.perf_counter(), 0
        skipped = engine.block_indices[0] % self._blocks_per_chunk
        for i, block in enumerate(engine.block_ids, start=skipped):
            row, part = host.block_ids[i // self._blocks_per_chunk], i % self._blocks_per_chunk
            for blocks, rows in self._pairs:
                page_bytes = blocks.shape[1]
                page = rows[int(row)][part * page_bytes : (part + 1) * page_bytes]
                if to_host:
                    page.copy_(blocks[int(block)])
                else:
                    blocks[int(block)].copy_(page)
                copied += page_bytes
        seconds = time.perf_counter() - began
        self._finished.append(TransferResult(job_id, True, copied, seconds))
        return True

    def get_finished(self):
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self._pairs.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CpuCopies(kv_caches, self.blocks_per_chunk, region)
        return self._worker
