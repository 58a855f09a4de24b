# SPDX-License-Identifier: Apache-2.0
"""An inference engine whose only KV memory is the daemon's pool.

Continuous batching: each step computes one token of every sequence that has its prompt, and as many
prompt tokens as fit beside them. Block tables, the prefix cache, eviction and preemption are
kvtier's: the engine opens sequences, computes into their slots and reports that. A
preempted sequence is closed; its blocks stay cached, and the daemon moves them to host memory or
disk when the pool needs space. When it is opened again, the engine computes only the tokens that
are not cached.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from attention import Chunk, KernelAttention, Steps, TorchAttention, cuda_graph
from model import Model

import kvtier


@dataclass(eq=False)
class Request:
    """One prompt and its answer; the engine writes it.

    tokens: the prompt, then the answer so far. cached_tokens: of the prompt, found in the cache
    when the request was first admitted. Times are those of time.perf_counter, in seconds.
    """

    tokens: list[int]
    prompt_tokens: int
    new_tokens: int
    submitted_s: float
    hashes: list[bytes]
    first_token_s: float = 0.0
    finished_s: float = 0.0
    cached_tokens: int = -1
    preemptions: int = 0
    sequence: kvtier.Sequence | None = field(default=None, repr=False)
    is_loaded: bool = False  # the cached blocks are in the pool
    computed: int = 0  # tokens whose KV is in the pool, or on its way there

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return len(self.tokens) == self.prompt_tokens + self.new_tokens

    def close_sequence(self) -> None:
        if self.sequence is not None:
            self.sequence.close()
        self.sequence, self.is_loaded, self.computed = None, False, 0


class Engine:
    """One model on one pool. One thread. Other engines, in other processes, may use the same pool.

    cache: False: no prefix is found and none is published, to compare with. step_tokens: computed
    in one step, at most. patience_s: how long nothing may go on, because the pool is full or there
    is no daemon, before `step` raises TimeoutError.
    """

    def __init__(
        self,
        model: Model,
        connection: kvtier.Connection,
        *,
        pool_bytes: int = 0,
        cache: bool = True,
        max_sequences: int = 64,
        step_tokens: int = 2048,
        patience_s: float = 30.0,
    ) -> None:
        self._model = model
        known = connection.register_model(model.record())
        self._pool = connection.attach(known, pool_bytes=pool_bytes)
        self._cache, self._patience_s = cache, patience_s
        self._max_sequences, self._step_tokens = max_sequences, step_tokens
        self._rope_table = model.rope_table()
        self._memory: kvtier.PoolMemory | None = None
        self._steps: Steps | None = None
        self._waiting: list[Request] = []
        self._running: list[Request] = []  # in the order of their arrival
        self._is_crowded = False  # a request was preempted, and none has finished since
        self._refusal = ""
        self._last_progress_s = time.perf_counter()
        self.computed_tokens = 0

    def close(self) -> None:
        """Gives the pool back. Requests that are not finished stay so."""
        self._requeue_all()
        self._pool.close()

    def submit(self, prompt: Sequence[int], new_tokens: int) -> Request:
        """Raises ValueError if no pool of this size could ever hold it."""
        info = self._pool.info()
        blocks = -(-(len(prompt) + new_tokens) // info.block_tokens)
        if not prompt or new_tokens < 1 or blocks > info.blocks:
            raise ValueError(f"{len(prompt)} and {new_tokens} tokens, {info.blocks} blocks")
        hashes = self._pool.hash_blocks(prompt) if self._cache else []
        request = Request(list(prompt), len(prompt), new_tokens, time.perf_counter(), hashes)
        if not self._waiting + self._running:
            self._last_progress_s = request.submitted_s
        self._waiting.append(request)
        return request

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Request]:
        """Answers all prompts, which are submitted at once. Raises as `submit` and `step`."""
        requests = [self.submit(prompt, new_tokens) for prompt in prompts]
        while not all(request.is_finished for request in requests):
            self.step()
        return requests

    def prepare(self, sequences: int, tokens: int) -> None:
        """Makes what steps of so many sequences of so many tokens need, once others have run."""
        if self._steps is not None:
            self._steps.prepare(sequences, -(-tokens // self._pool.group.block_tokens))

    def step(self) -> list[Request]:
        """Computes one batch; returns the requests that it finished. Raises TimeoutError."""
        lost = False
        try:
            self._admit()
            batch = self._schedule()
            if batch:
                tokens = self._compute(batch)
                # Results count only if the blocks were this engine's until the end.
                if all(request.sequence.check() for request, _ in batch if request.sequence):
                    return self._take(batch, tokens)
                lost = True
        except (kvtier.StaleHandleError, kvtier.UnavailableError) as error:
            lost, self._refusal = True, str(error)
        if lost:  # outside `except`, where the error keeps the step's tensors alive
            self._requeue_all()
        self._pause()
        return []

    def _admit(self) -> None:
        """Opens waiting requests while the pool takes them."""
        while self._waiting and len(self._running) < self._max_sequences:
            request = self._waiting[0]
            crowded = self._is_crowded and self._running
            if crowded or self._will_be_cached(request) or not self._open(request):
                return
            self._running.append(self._waiting.pop(0))

    def _will_be_cached(self, request: Request) -> bool:
        """Whether a running request is about to compute blocks that this one needs, too."""
        for other in self._running:
            shared = 0
            while request.hashes[shared : shared + 1] == other.hashes[shared : shared + 1] != []:
                shared += 1
            if shared * self._pool.group.block_tokens > other.computed:
                return True
        return False

    def _open(self, request: Request) -> bool:
        """False: the pool is full, or there is no daemon."""
        salt = None if self._cache else kvtier.PromptIdentity(cache_salt=uuid.uuid4().hex)
        try:
            sequence = self._pool.open_sequence(request.tokens, identity=salt)
        except kvtier.ResourceExhaustedError as error:
            self._refusal = str(error)
            return False
        if sequence.available:
            request.sequence, request.computed = sequence, sequence.cached_tokens
            return True
        self._refusal = "there is no daemon"
        sequence.close()
        return False

    def _schedule(self) -> list[tuple[Request, int]]:
        """Requests and how many of their tokens to compute, those with one token first."""
        running = list(self._running)  # preemption takes the last ones away
        ready = [one for one in running if one.sequence is not None and self._make_ready(one)]
        batch: list[tuple[Request, int]] = []
        budget = self._step_tokens
        # A long prompt does not hold up those that have theirs.
        for request in sorted(ready, key=lambda one: len(one.tokens) - one.computed > 1):
            if (count := min(budget, len(request.tokens) - request.computed)) > 0:
                batch.append((request, count))
                budget -= count
        return batch

    def _make_ready(self, request: Request) -> bool:
        """Whether the request has blocks for all its tokens, with the cached ones in them. For
        that the youngest request is preempted, which may be this one."""
        sequence: Any = request.sequence
        try:
            if not request.is_loaded:
                if not sequence.wait(0):
                    return False
                request.is_loaded, request.computed = True, sequence.cached_tokens
                if request.cached_tokens < 0:
                    request.cached_tokens = request.computed
            if len(sequence) < len(request.tokens):
                sequence.append(request.tokens[len(sequence) :])
            return True
        except kvtier.ResourceExhaustedError as error:
            # Blocks of the preempted request may have to be stored elsewhere before they are free;
            # the next step tries again.
            self._refusal = str(error)
            self._preempt(self._running[-1])
            return False

    def _preempt(self, request: Request) -> None:
        request.preemptions += 1
        self._is_crowded = True
        request.close_sequence()
        self._running.remove(request)
        self._waiting.insert(0, request)

    def _requeue_all(self) -> None:
        """The daemon was lost, and with it all blocks but those on disk, which are found again."""
        for request in self._running:
            request.close_sequence()
        self._waiting[:0] = self._running
        self._running.clear()
        # A restarted daemon can have a GPU's memory only when nothing here holds it.
        self._steps = self._memory = None
        with contextlib.suppress(kvtier.WrongStateError):
            self._pool.unmap_device()

    def _pause(self) -> None:
        """Nothing could be computed: blocks are being loaded or stored, or there is no daemon."""
        if time.perf_counter() - self._last_progress_s > self._patience_s:
            raise TimeoutError(f"nothing went on for {self._patience_s:g} s: {self._refusal}")
        time.sleep(0.001)

    def _compute(self, batch: list[tuple[Request, int]]) -> list[int]:
        """The next token of each request; it means nothing if some of its tokens are left."""
        chunks = []
        for request, count in batch:
            sequence, first = cast(Any, request.sequence), request.computed
            tokens = request.tokens[first : first + count]
            slots = sequence.slot_mapping(first, count)
            chunks.append(Chunk(first, tokens, sequence.block_table(), slots))
            self.computed_tokens += count
            memory = sequence.memory()
        # The list is there when the device has done all of the step.
        return self._steps_over(memory).run(chunks)

    def _steps_over(self, memory: kvtier.PoolMemory) -> Steps:
        """Made anew when the pool is another, after a restart of the daemon."""
        if self._steps is None or memory is not self._memory:
            on_gpu = memory.device_kind == kvtier.DeviceKind.CUDA
            kind = KernelAttention if on_gpu else TorchAttention
            attention = kind(memory, self._model.geometry.layers, self._rope_table)
            self._memory = memory
            self._steps = Steps(self._model, attention, cuda_graph if on_gpu else None)
        return self._steps

    def _take(self, batch: list[tuple[Request, int]], tokens: list[int]) -> list[Request]:
        """Adds the tokens, publishes the blocks, and returns the finished requests."""
        now_s = self._last_progress_s = time.perf_counter()
        for (request, count), token in zip(batch, tokens):
            request.computed += count
            if request.computed == len(request.tokens):
                request.tokens.append(token)
                request.first_token_s = request.first_token_s or now_s
            # A daemon that is lost now is noticed by the next step.
            if self._cache and request.sequence is not None:
                request.sequence.mark_computed(request.computed)
        finished = [request for request, _ in batch if request.is_finished]
        for request in finished:
            request.finished_s = now_s
            request.close_sequence()
            self._running.remove(request)
            self._is_crowded = False
        return finished
