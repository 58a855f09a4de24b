#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times what torch offers for the cells that kvtier-kernel-bench has timed, beside it.

    kernels/bench/torch_peers.py kernel-bench.json [--seconds 60] [--filter decode]

Scaled dot product attention (its flash and its cuDNN backend) and varlen_attn, where torch has it,
over dense bf16 keys and values: torch has no pages. The protocol is the bench's: buffer sets in
rotation so that L2 is cold, a CUDA graph of launches, medians of replays. Adds to the file a list
`peers` of

    {"peer": "sdpa_cudnn", "kernel": "decode", "batch": .., "q_len": .., "context": ..,
     "q_heads": .., "kv_heads": .., "head_dim": .., "us": .., "gbps": .., "tflops": ..}

and `torch`, its version. A backend that refuses a cell, or whose result is not the first one's, has
no entry there. Exit: 0 done, 1 no GPU, 2 usage.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # older than 2.10
    varlen_attn = None

# As in bench_harness.cc.
COLD_BYTES = 512 << 20
MOST_ROTATIONS = 256
GRAPH_US = 2000
FEWEST_LAUNCHES = 32
CASE_US = 100_000
REPLAYS = (5, 50)

MOST_BYTES = 12 << 30  # of a cell's keys and values, all sets
TOLERANCE = 1e-2  # relative to the first peer's result; bf16 rounds at 4e-3

Peer = Callable[[int], torch.Tensor]  # of a buffer set


@dataclass(frozen=True)
class Cell:
    kernel: str
    batch: int
    q_len: int
    context: int
    q_heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        return 4 * self.batch * self.context * self.kv_heads * self.head_dim

    @property
    def pairs(self) -> int:
        """Counts the pairs of a query and a key that it sees, for each head."""
        unseen = self.q_len * (self.q_len - 1) // 2
        return self.batch * (self.q_len * self.context - unseen)

    @property
    def rotations(self) -> int:
        return min(max(-(-COLD_BYTES // self.kv_bytes), 2), MOST_ROTATIONS)


def cells_of(results: list[dict], text: str) -> Iterator[Cell]:
    """The shapes of plain bf16 decode and prefill, each once, in the bench's order."""
    seen = set()
    for result in results:
        plain = result["variant"] == "" and result["kv_dtype"] == "bf16"
        if not plain or result["kernel"] not in ("decode", "prefill"):
            continue
        cell = Cell(**{name: result[name] for name in Cell.__dataclass_fields__})
        if cell not in seen and text in cell.kernel:
            seen.add(cell)
            yield cell


class Buffers:
    """Keys, values and queries of a cell, [sets, tokens, heads, head_dim]."""

    def __init__(self, cell: Cell) -> None:
        def random(tokens: int, heads: int) -> torch.Tensor:
            shape = (cell.rotations, cell.batch * tokens, heads, cell.head_dim)
            return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

        self.query = random(cell.q_len, cell.q_heads)
        self.key = random(cell.context, cell.kv_heads)
        self.value = random(cell.context, cell.kv_heads)


def sdpa_peer(cell: Cell, buffers: Buffers, backend: SDPBackend) -> Peer:
    def batched(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (cell.batch, -1)).transpose(1, 2)

    def launch(rotation: int) -> torch.Tensor:
        with sdpa_kernel(backend):
            output = scaled_dot_product_attention(
                batched(buffers.query[rotation]),
                batched(buffers.key[rotation]),
                batched(buffers.value[rotation]),
                is_causal=cell.q_len > 1,
                enable_gqa=cell.q_heads != cell.kv_heads,
            )
        return output.transpose(1, 2).flatten(0, 1)

    return launch


def varlen_peer(cell: Cell, buffers: Buffers) -> Peer:
    """Causal as the kernels are: a sequence's queries are its last tokens."""
    known = inspect.signature(varlen_attn).parameters
    options: dict[str, object] = {}
    if cell.q_len > 1:  # a single query sees all keys anyway, and is faster without
        options = {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    if "enable_gqa" in known:
        options["enable_gqa"] = cell.q_heads != cell.kv_heads

    def starts(tokens: int) -> torch.Tensor:
        ends = torch.arange(cell.batch + 1, dtype=torch.int32, device="cuda")
        return ends * tokens

    queries, keys = starts(cell.q_len), starts(cell.context)

    def launch(rotation: int) -> torch.Tensor:
        return varlen_attn(
            buffers.query[rotation],
            buffers.key[rotation],
            buffers.value[rotation],
            queries,
            keys,
            cell.q_len,
            cell.context,
            **options,
        )

    return launch


def peers_of(cell: Cell, buffers: Buffers) -> dict[str, Peer]:
    peers = {}
    # Its causal mask begins at the first key, so that it serves one query, or all.
    if cell.q_len in (1, cell.context):
        peers["sdpa_cudnn"] = sdpa_peer(cell, buffers, SDPBackend.CUDNN_ATTENTION)
        peers["sdpa_flash"] = sdpa_peer(cell, buffers, SDPBackend.FLASH_ATTENTION)
    if varlen_attn is not None:
        peers["varlen_attn"] = varlen_peer(cell, buffers)
    return peers


class Graph:
    """`launches` launches that cycle through the buffer sets."""

    def __init__(self, launches: int, rotations: int, peer: Peer) -> None:
        self._launches = launches
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for i in range(launches):
                peer(i % rotations)

    def replay(self) -> float:
        """Microseconds of one launch."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000 / self._launches


def median_us(rotations: int, peer: Peer) -> float:
    warm_up = Graph(rotations, rotations, peer)
    warm_up.replay()
    once = warm_up.replay()
    launches = rotations
    while launches < FEWEST_LAUNCHES and launches * once < GRAPH_US:
        launches += rotations
    graph = Graph(launches, rotations, peer)
    replays = min(max(int(CASE_US / (once * launches)), REPLAYS[0]), REPLAYS[1])
    return statistics.median(graph.replay() for _ in range(replays))


def entry(cell: Cell, name: str, us: float) -> dict:
    flops = 4 * cell.pairs * cell.q_heads * cell.head_dim
    rates = {"us": us, "gbps": cell.kv_bytes / us / 1e3, "tflops": flops / us / 1e6}
    rounded = {rate: float(f"{value:.6g}") for rate, value in rates.items()}
    return {"peer": name, **vars(cell), **rounded}


def time_cell(cell: Cell) -> list[dict]:
    if cell.kv_bytes * cell.rotations > MOST_BYTES:
        return []
    buffers = Buffers(cell)
    first = None
    entries = []
    for name, peer in peers_of(cell, buffers).items():
        try:
            output = peer(0).float()
            first = output if first is None else first
            if (output - first).norm() > TOLERANCE * first.norm():
                print(f"{name}: another result for {cell}", file=sys.stderr)
                continue
            entries.append(entry(cell, name, median_us(cell.rotations, peer)))
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            print(f"{name}: not for {cell}: {reason}", file=sys.stderr)
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", help="the benchmark's output; the peers are added to it")
    parser.add_argument("--seconds", type=float, default=60, help="begin no cell after so many")
    parser.add_argument("--filter", default="", help="only kernels with it; others' peers stay")
    arguments = parser.parse_args()
    with open(arguments.json, encoding="utf-8") as file:
        run = json.load(file)
    if not torch.cuda.is_available():
        print("torch_peers: torch sees no GPU", file=sys.stderr)
        return 1
    begin = time.monotonic()
    peers = [peer for peer in run.get("peers", []) if arguments.filter not in peer["kernel"]]
    for cell in cells_of(run["results"], arguments.filter):
        if time.monotonic() - begin > arguments.seconds:
            print(f"torch_peers: {arguments.seconds:g} s are over before {cell}", file=sys.stderr)
            break
        for result in time_cell(cell):
            peers.append(result)
            print(
                f"{result['peer']:<12} {cell.kernel:<7} b{cell.batch:<4}q{cell.q_len:<6}"
                f"ctx{cell.context:<7}{cell.q_heads}/{cell.kv_heads} d{cell.head_dim:<4}"
                f"{result['us']:10.2f} us {result['gbps']:6.0f} GB/s {result['tflops']:6.1f} TF",
                flush=True,
            )
        # Written after each cell, so that a run that is stopped early keeps its measurements.
        run["peers"], run["torch"] = peers, torch.__version__
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(as_text(run))
    return 0


def as_text(run: dict) -> str:
    """One line for each result, as the bench writes it."""
    lists = ("results", "peers")
    head = {name: value for name, value in run.items() if name not in lists}
    parts = [json.dumps(head, separators=(",", ":"))[:-1]]
    for name in lists:
        lines = ",\n".join(json.dumps(line, separators=(",", ":")) for line in run.get(name, []))
        parts.append(f'"{name}":[\n{lines}\n]')
    return ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    sys.exit(main())
