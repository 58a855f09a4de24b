# SPDX-License-Identifier: Apache-2.0
"""A minimal inference engine: greedy answers of one sequence at a time, over the pool."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import torch
from decoder import Decoder
from kv_paths import KvPath

import kvtier


@dataclass(frozen=True)
class Answer:
    """What a prompt gave.

    logits: float32 [1 + continuation, vocabulary], after the prompt and after each token that
    followed it, which are in `followed_by`.
    open_ms, wait_ms, compute_ms: of first_token_ms, the time from the tokens to the first logits.
    block_sums: checksum of each full block that came from the cache, or of all if none did and all
    hits were to be loaded; by its number in the prompt.
    """

    prompt: list[int]
    logits: torch.Tensor
    followed_by: list[int]
    first_token_ms: float
    open_ms: float
    wait_ms: float
    compute_ms: float
    info: kvtier.SequenceInfo
    block_sums: dict[int, bytes]


class Engine:
    """On one pool. One thread."""

    def __init__(
        self, decoder: Decoder, pool: kvtier.Pool, path: KvPath, chunk_tokens: int
    ) -> None:
        """chunk_tokens: prompts are computed in parts that end at its multiples. A warm start at
        such a place does the very sums of a cold one, in the same order."""
        self._decoder = decoder
        self._pool = pool
        self._path = path
        self._chunk_tokens = chunk_tokens
        self._block_tokens = pool.model.record.block_tokens

    def answer(
        self,
        prompt: list[int],
        new_tokens: int,
        publish: bool = False,
        follow: list[int] | None = None,
        plan: kvtier.HitPlan = kvtier.HitPlan.ALL,
    ) -> Answer:
        """Continues the prompt greedily, or with the tokens of `follow`. publish: its blocks can be
        found by others. plan: which hits are loaded; BOTH_ENDS only where the pool is the engine's
        cache. Raises RuntimeError (the daemon is gone)."""
        started = time.perf_counter()
        sequence = self._pool.open_sequence(
            prompt, reserve_tokens=new_tokens, copy=self._copy, plan=plan
        )
        with sequence:
            if not sequence.available:
                raise RuntimeError("no daemon")
            opened = time.perf_counter()
            gap = self._compute_gap(sequence, prompt)
            while not sequence.wait():
                pass
            waited = time.perf_counter()
            info = sequence.info()
            ((first, end),) = sequence.compute_ranges()
            self._path.begin(sequence)
            logits = [self._prefill(prompt, first, end)]
            self._finish_queue()
            done = time.perf_counter()
            whole = plan is kvtier.HitPlan.ALL and info.cached_tokens == 0
            full = (end if whole else first) // self._block_tokens
            sums = self._block_sums(sequence, [i for i in range(full) if i not in gap])
            if publish:
                sequence.mark_computed(len(prompt))
            followed_by = self._continue(sequence, logits, new_tokens, follow)
            if not sequence.check():
                raise RuntimeError("the daemon went away")
        return Answer(
            prompt=prompt,
            logits=torch.stack(logits),
            followed_by=followed_by,
            first_token_ms=1e3 * (done - started),
            open_ms=1e3 * (opened - started),
            wait_ms=1e3 * (waited - opened),
            compute_ms=1e3 * (done - waited),
            info=info,
            block_sums=sums,
        )

    def _compute_gap(self, sequence: kvtier.Sequence, prompt: list[int]) -> range:
        """Computes the head of the prompt while its tail is loaded, if the daemon says so. Returns
        which blocks were computed."""
        ranges = sequence.compute_ranges()
        if len(ranges) < 2:
            return range(0)
        first, end = ranges[0]
        self._path.begin(sequence)
        self._prefill(prompt, first, end)
        self._finish_queue()
        sequence.mark_computed(end)
        return range(first // self._block_tokens, end // self._block_tokens)

    def _prefill(self, prompt: list[int], first: int, last: int) -> torch.Tensor:
        while True:
            end = min(last, (first // self._chunk_tokens + 1) * self._chunk_tokens)
            logits = self._path.forward(prompt[first:end], first)
            if end == last:
                return logits
            first = end

    def _continue(
        self,
        sequence: kvtier.Sequence,
        logits: list[torch.Tensor],
        count: int,
        follow: list[int] | None,
    ) -> list[int]:
        """Adds to `logits`; returns the tokens."""
        tokens: list[int] = []
        for i in range(count):
            token = int(logits[-1].argmax()) if follow is None else follow[i]
            position = len(sequence)
            sequence.append([token])
            logits.append(self._path.forward([token], position))
            tokens.append(token)
        self._finish_queue()
        return tokens

    def _copy(self, target_offset: int, source_offset: int, byte_count: int) -> None:
        """Copies within the pool, on its own device."""
        pool = self._pool.memory().torch_blocks().flatten().view(torch.uint8)
        source = pool[source_offset : source_offset + byte_count]
        pool[target_offset : target_offset + byte_count].copy_(source)
        self._finish_queue()

    def _block_sums(self, sequence: kvtier.Sequence, numbers: list[int]) -> dict[int, bytes]:
        table = sequence.block_table()[numbers]
        memory = sequence.memory()
        if memory.device_kind == kvtier.DeviceKind.CUDA:
            from kvtier import kernels

            ids = torch.from_numpy(table).to(self._decoder.device)
            rows = kernels.checksum_blocks(memory.torch_blocks(), ids).cpu().numpy()
            return dict(zip(numbers, (row.tobytes() for row in rows)))
        blocks = memory.block_bytes()
        sums = (hashlib.blake2b(blocks[i].tobytes()).digest() for i in table)
        return dict(zip(numbers, sums))

    def _finish_queue(self) -> None:
        if self._decoder.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.device)
