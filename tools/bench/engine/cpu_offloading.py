# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiered offloading on a machine without a GPU.

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
    """Copies at once; a job is finished when it was submitted."""

    def __init__(self, kv_caches, blocks_per_chunk, region):
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._finished = []
        pairs = []  # of the engine's tensor and its columns of the host rows
        for cache in kv_caches.tensors:
            page_bytes = cache.page_size_bytes
            blocks = cache.tensor.view(torch.int8).view(-1, page_bytes)
            pairs.append((blocks, region.create_next_worker_view(page_bytes * blocks_per_chunk)))
        self._pairs_of_group = [
            [(*pairs[ref.tensor_idx], ref.page_size_bytes) for ref in refs]
            for refs in kv_caches.group_data_refs
        ]

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def _copy(self, job_id, engine, host, to_host):
        began, copied = time.perf_counter(), 0
        blocks, rows = iter(engine.block_ids), iter(host.block_ids)
        for pairs, size, first in zip(
            self._pairs_of_group, engine.group_sizes, engine.block_indices
        ):
            # The first block of a group may lie within a chunk; each chunk is one row.
            for i in range(first, first + size):
                part = i % self._blocks_per_chunk
                if part == 0 or i == first:
                    row = int(next(rows))
                block = int(next(blocks))
                copied += sum(self._copy_page(*pair, block, row, part, to_host) for pair in pairs)
        seconds = time.perf_counter() - began
        self._finished.append(TransferResult(job_id, True, copied, seconds))
        return True

    @staticmethod
    def _copy_page(blocks, rows, page_bytes, block, row, part, to_host):
        begin = part * blocks.shape[1]
        page, host_page = blocks[block, :page_bytes], rows[row, begin : begin + page_bytes]
        if to_host:
            host_page.copy_(page)
        else:
            page.copy_(host_page)
        return page_bytes

    def get_finished(self):
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self._pairs_of_group.clear()
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
