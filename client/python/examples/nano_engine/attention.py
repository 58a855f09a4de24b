# SPDX-License-Identifier: Apache-2.0
"""Attention of one step's tokens over the daemon's pool, which is read and written in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from model import Model
from torch.nn import functional

import kvtier

Call = Callable[[], torch.Tensor]
# Steps of more tokens keep a GPU busy for longer than the host takes to launch them.
REPEATED_TOKENS = 512


@dataclass(frozen=True)
class Chunk:
    """Tokens [first, first + len(tokens)) of a sequence: all of its blocks, and their slots."""

    first: int
    tokens: list[int]
    table: np.ndarray[Any, np.dtype[np.int32]]
    slots: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)


class StepInputs:
    """The input of a step of so many tokens of so many sequences, in one piece of memory that stays
    where it is: a step costs one copy to the device, and may be repeated as a CUDA graph."""

    def __init__(self, tokens: int, sequences: int, blocks: int, device: torch.device) -> None:
        sizes = [2 * tokens, tokens, tokens, sequences + 1, sequences, sequences * blocks]
        self._here = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._there = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._filled = [part.numpy() for part in self._here.split(sizes)]
        slots, self.tokens, self.positions, *rest = self._there.split(sizes)
        self.starts, self.lengths, table = rest
        self.slots, self.table = slots.view(torch.int64), table.view(sequences, blocks)
        self.fill([])

    def fill(self, chunks: list[Chunk]) -> None:
        """Once the step before has ended. Sequences beyond these are empty, and tokens beyond
        theirs are written nowhere."""
        slots, tokens, positions, starts, lengths, table = self._filled
        slots, table = slots.view(np.int64), table.reshape(len(lengths), -1)
        slots.fill(-1)
        lengths.fill(0)
        begin = 0
        for row, chunk in enumerate(chunks):
            end = begin + len(chunk.tokens)
            slots[begin:end], tokens[begin:end] = chunk.slots, chunk.tokens
            positions[begin:end] = np.arange(chunk.first, chunk.end)
            starts[row + 1], lengths[row] = end, chunk.end
            table[row, : len(chunk.table)] = chunk.table
            begin = end
        starts[len(chunks) + 1 :] = begin
        self._there.copy_(self._here, non_blocking=True)


class KernelAttention:
    """By libkvtier_kernels, on one memory of the pool, in a GPU. `use` gives the tokens of the
    next calls; `attend` then writes a layer's keys and values to their slots, and attends."""

    def __init__(self, memory: kvtier.PoolMemory, layers: int, rope_table: torch.Tensor) -> None:
        from kvtier import kernels

        self._kernels, self._rope_table = kernels, rope_table
        views = [memory.torch_layer(layer) for layer in range(layers)]
        self._caches = [kernels.PagedKv(view.k, view.v) for view in views]
        self._once = kernels.Workspace()

    def use(self, inputs: StepInputs, one_each: bool, repeated: bool) -> Any:
        """one_each: of each sequence one token. Returns what must live as long as a step is
        repeated."""
        kernels = self._kernels
        self._tables = kernels.SequenceTables(inputs.table, inputs.lengths)
        self._slots, self._starts = inputs.slots, None if one_each else inputs.starts
        self._rope = kernels.Rope(kernels.RopeStyle.NEOX, inputs.positions, self._rope_table)
        self._workspace = kernels.Workspace() if repeated else self._once
        return self._workspace

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        kernels, cache = self._kernels, self._caches[layer]
        kernels.kv_write(key, value, cache, self._slots, rope=self._rope, query=query)
        common: Any = {"workspace": self._workspace, "tables_settled": layer > 0}
        if self._starts is None:
            return kernels.decode(query, cache, self._tables, **common)
        return kernels.prefill(query, cache, self._tables, self._starts, **common)


class TorchAttention:
    """The same by torch, in host memory: each sequence's keys and values are gathered."""

    def __init__(self, memory: kvtier.PoolMemory, layers: int, rope_table: torch.Tensor) -> None:
        self._views = [memory.torch_layer(layer) for layer in range(layers)]
        self._rope_table = rope_table

    def use(self, inputs: StepInputs, one_each: bool, repeated: bool) -> None:
        self._inputs = inputs

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        view, inputs = self._views[layer], self._inputs
        turns = self._rope_table[inputs.positions][:, None].chunk(2, dim=-1)
        there = inputs.slots >= 0
        page = view.k.shape[1]
        place = inputs.slots[there] // page, inputs.slots[there] % page
        view.k[place], view.v[place] = _turn(key, *turns)[there], value[there]
        queries, mixed = _turn(query, *turns), torch.zeros_like(query)
        starts = inputs.starts.tolist()
        for row, (begin, end) in enumerate(zip(starts, starts[1:])):
            if begin < end:
                length = int(inputs.lengths[row])
                mixed[begin:end] = _mix(queries[begin:end], view, inputs.table[row], length)
        return mixed


def _turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.float().chunk(2, dim=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(turned, dim=-1).to(heads.dtype)


def _mix(
    query: torch.Tensor, view: kvtier.KvView[torch.Tensor], table: torch.Tensor, end: int
) -> torch.Tensor:
    blocks = table[: -(-end // view.k.shape[1])]
    keys, values = (part[blocks].flatten(0, 1)[:end].transpose(0, 1) for part in (view.k, view.v))
    visible = torch.ones(len(query), end, dtype=torch.bool).tril(end - len(query))
    mixed = functional.scaled_dot_product_attention(
        query.transpose(0, 1), keys, values, attn_mask=visible, enable_gqa=True
    )
    return mixed.transpose(0, 1)


class Steps:
    """Computes steps of one model with the attention over one memory. Short ones are repeated as
    CUDA graphs, which the host launches as one, of powers of two of all sizes.

    capture: makes a function that repeats the given one; None: nothing is repeated."""

    def __init__(self, model: Model, attention: Any, capture: Any) -> None:
        self._model, self._attention, self._capture = model, attention, capture
        self._repeated: dict[tuple[int, ...], tuple[StepInputs, Call, Any]] = {}

    def run(self, chunks: list[Chunk]) -> list[int]:
        """The most likely token after each chunk."""
        tokens = sum(len(chunk.tokens) for chunk in chunks)
        sizes = tokens, len(chunks), max(len(chunk.table) for chunk in chunks)
        if self._capture is None or tokens > REPEATED_TOKENS:
            inputs = StepInputs(*sizes, self._model.device)
            inputs.fill(chunks)
            self._attention.use(inputs, one_each=False, repeated=False)
            return self._forward(inputs).tolist()
        inputs, again, _ = self._step(*sizes)
        inputs.fill(chunks)
        return again()[: len(chunks)].tolist()

    def prepare(self, sequences: int, blocks: int) -> None:
        """Captures what steps of so many sequences of so many blocks can be."""
        tokens = sequences
        while self._capture is not None and tokens <= REPEATED_TOKENS:
            self._step(tokens, sequences, blocks)
            tokens = 1 << tokens.bit_length()

    def _step(self, tokens: int, sequences: int, blocks: int) -> tuple[StepInputs, Call, Any]:
        """Captured when it is first needed, for at least these sizes."""
        one_each = tokens == sequences
        sizes = [1 << (size - 1).bit_length() for size in (tokens, sequences, blocks)]
        if (step := self._repeated.get((one_each, *sizes))) is None:
            inputs = StepInputs(*sizes, self._model.device)
            kept = self._attention.use(inputs, one_each, repeated=True)
            step = inputs, self._capture(lambda: self._forward(inputs)), kept
            self._repeated[(one_each, *sizes)] = step
        return step

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        return self._model.forward(inputs.tokens, self._attention.attend, inputs.starts[1:] - 1)


def cuda_graph(call: Call) -> Call:
    """Captures the call as a CUDA graph, after one call that allocates all memory it keeps."""
    ahead, current = torch.cuda.Stream(), torch.cuda.current_stream()
    ahead.wait_stream(current)
    with torch.cuda.stream(ahead):
        call()
    current.wait_stream(ahead)
    graph = torch.cuda.CUDAGraph()
    # Other threads of the process may use the GPU meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay
