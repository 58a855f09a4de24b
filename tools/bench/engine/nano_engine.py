# SPDX-License-Identifier: Apache-2.0
"""16 prompts of 900 to 915 tokens that share a long prefix, answered by the example engine without the
cache and by the same engine with it: time to the first token, and throughput.

    python3 tools/bench/engine/nano_engine.py                     # GPT-2's sizes, on the CPU
    python3 tools/bench/engine/nano_engine.py --model llama-8b    # on a GPU

Weights and prompts are random; nothing is downloaded. Needs torch, the package (PYTHONPATH=
client/python or installed), KVTIER_LIBRARY, and kvtierd (--kvtierd, which is started with a pool of
its own). Exits with 0 if all answers were the same with and without the cache, 1 if not, 77 if
something that it needs is missing. On a GPU, in bfloat16, other batches round differently: there the
answers that differ are only counted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine import Engine
    from model import Model

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "client/python/examples/nano_engine"
MISSING = 77
SHARED_TOKENS, SHORTEST_PROMPT, PROMPTS = 896, 900, 16


@dataclass(frozen=True)
class Run:
    """Sixteen requests that were submitted at once. tokens_per_s: of prompts and answers together.
    cached_tokens: of the prompts. other_answers: that differ from those without the cache."""

    name: str
    ttft_p50_ms: float
    ttft_max_ms: float
    seconds: float
    tokens_per_s: float
    cached_tokens: int
    computed_tokens: int
    preemptions: int
    other_answers: int


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="An engine with and without its prefix cache.")
    parser.add_argument("--model", choices=("gpt2", "llama-8b", "tiny"), default="gpt2")
    parser.add_argument("--device", help="default: cuda for llama-8b, else cpu")
    parser.add_argument("--new-tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--repeats", type=int, default=1, help="of each run, with other prompts")
    parser.add_argument("--pool-sequences", type=int, default=20, help="that fit into the pool")
    parser.add_argument("--step-tokens", type=int, default=2048, help="computed at once, at most")
    parser.add_argument("--kvtierd", default=os.environ.get("KVTIERD", "kvtierd"))
    parser.add_argument("--json", type=pathlib.Path, help="where to write all figures")
    return parser.parse_args()


def make_prompts(vocabulary: int, seed: int) -> list[list[int]]:
    """Prompts of 900 to 915 tokens, whose first 896 are the same for all seeds."""
    shared, own = random.Random(0), random.Random(seed)
    prefix = [shared.randrange(vocabulary) for _ in range(SHARED_TOKENS)]
    lengths = range(SHORTEST_PROMPT - SHARED_TOKENS, SHORTEST_PROMPT - SHARED_TOKENS + PROMPTS)
    return [prefix + [own.randrange(vocabulary) for _ in range(length)] for length in lengths]


class Benchmark:
    """One model, and a daemon that serves at `socket`."""

    def __init__(self, arguments: argparse.Namespace, model: Model, socket: str) -> None:
        self._arguments = arguments
        self._model = model
        self._socket = socket
        self._expected: dict[int, list[list[int]]] = {}

    def run(self) -> list[Run]:
        """Seed 0 makes the prefix known; the others are run without and with the cache."""
        seeds = range(1, 1 + self._arguments.repeats)
        return (
            self._on_new_engine("without the cache", seeds, cache=False)
            + self._on_new_engine("prefix not known yet", [0], cache=True)
            + self._on_new_engine("prefix known", seeds, cache=True)
        )

    def _on_new_engine(self, name: str, seeds: Any, cache: bool) -> list[Run]:
        from engine import Engine

        import kvtier

        client = f"nano-engine: {name}"
        timeout_ms = 60_000
        with kvtier.connect(
            self._socket, client_name=client, request_timeout_ms=timeout_ms
        ) as connection:
            step_tokens = self._arguments.step_tokens
            engine = Engine(self._model, connection, cache=cache, step_tokens=step_tokens)
            # Kernels are loaded and memory is allocated before the clock runs.
            engine.generate([[1] * 40, [2] * 40], 2)
            engine.prepare(PROMPTS, SHORTEST_PROMPT + PROMPTS + self._arguments.new_tokens)
            runs = [self._serve(engine, name, seed) for seed in seeds]
            engine.close()
        return runs

    def _serve(self, engine: Engine, name: str, seed: int) -> Run:
        computed = engine.computed_tokens
        prompts = make_prompts(self._model.geometry.vocabulary, seed)
        requests = engine.generate(prompts, self._arguments.new_tokens)
        expected = self._expected.setdefault(seed, [one.answer for one in requests])
        ttft_ms = [1e3 * (one.first_token_s - one.submitted_s) for one in requests]
        seconds = max(one.finished_s for one in requests) - requests[0].submitted_s
        run = Run(
            name=name,
            ttft_p50_ms=round(statistics.median(ttft_ms), 2),
            ttft_max_ms=round(max(ttft_ms), 2),
            seconds=round(seconds, 4),
            tokens_per_s=round(sum(len(one.tokens) for one in requests) / seconds, 1),
            cached_tokens=sum(one.cached_tokens for one in requests),
            computed_tokens=engine.computed_tokens - computed,
            preemptions=sum(one.preemptions for one in requests),
            other_answers=sum(one.answer != two for one, two in zip(requests, expected)),
        )
        print(
            f"{run.name:<22}{run.ttft_p50_ms:>11,.1f} ms{run.ttft_max_ms:>11,.1f} ms"
            f"{run.tokens_per_s:>12,.0f}{run.cached_tokens:>10,}{run.computed_tokens:>10,}"
            f"{run.other_answers:>8}",
            flush=True,
        )
        return run


def summarize(runs: list[Run]) -> dict[str, float]:
    """The engine with a known prefix against the one without the cache, medians of each."""

    def median(name: str, of: str) -> float:
        return statistics.median(getattr(run, of) for run in runs if run.name == name)

    without, known = "without the cache", "prefix known"
    lower = 1 - median(known, "ttft_p50_ms") / median(without, "ttft_p50_ms")
    faster = median(known, "tokens_per_s") / median(without, "tokens_per_s")
    return {"ttft_p50_lower_percent": round(100 * lower, 2), "throughput_times": round(faster, 2)}


def settings(arguments: argparse.Namespace, model: Model) -> list[str]:
    """Give the daemon a pool for so many sequences, and twice as much host memory."""
    blocks = arguments.pool_sequences * -(-(SHORTEST_PROMPT + PROMPTS + arguments.new_tokens) // 16)
    pool_bytes = max(blocks * model.record().layout().block_stride, 8 << 20)
    return [
        f"pool.device={'cuda:0' if model.device.type == 'cuda' else 'host'}",
        f"pool.bytes={pool_bytes}B",
        f"host.bytes={max(2 * pool_bytes, 512 << 20) >> 20}MiB",
        "disk.bytes=0B",
    ]


def main(arguments: argparse.Namespace) -> int:
    import torch
    from model import GEOMETRIES, Model

    from kvtier._private_daemon import PrivateDaemon

    default = "cuda" if arguments.model == "llama-8b" else "cpu"
    device = torch.device(arguments.device or default)
    on_gpu = device.type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("nano_engine: skipped: no GPU")
        return MISSING
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = Model(GEOMETRIES[arguments.model], device, dtype)
    where = torch.cuda.get_device_name(device) if on_gpu else "the CPU"
    threads = "" if on_gpu else f", {torch.get_num_threads()} threads"
    print(f"{arguments.model}, {str(dtype)[6:]}, random weights, on {where}{threads}; ", end="")
    print(f"{PROMPTS} prompts of 900 to 915 tokens, answers of {arguments.new_tokens}")
    heads = f"{'TTFT p50':>14}{'worst':>14}{'tokens/s':>12}{'cached':>10}{'computed':>10}"
    print(f"{'':<22}{heads}{'other':>8}")
    with tempfile.TemporaryDirectory(prefix="kvtier-nano-") as directory:
        daemon = PrivateDaemon(directory, settings(arguments, model), arguments.kvtierd)
        try:
            daemon.start()
            runs = Benchmark(arguments, model, daemon.socket).run()
        finally:
            daemon.kill()
    gains = summarize(runs)
    print(f"prefix known: TTFT p50 {gains['ttft_p50_lower_percent']} % lower", end=", ")
    print(f"throughput {gains['throughput_times']} times")
    holds = on_gpu or all(run.other_answers == 0 for run in runs)
    if arguments.json:
        document = {
            "schema": "kvtier.nano-engine/1",
            "model": arguments.model,
            "device": where,
            "dtype": str(dtype)[6:],
            "torch": torch.__version__,
            "new_tokens": arguments.new_tokens,
            "step_tokens": arguments.step_tokens,
            **gains,
            "holds": holds,
            "runs": [asdict(run) for run in runs],
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"nano_engine: {'ok' if holds else 'FAILED: answers differ'}")
    return 0 if holds else 1


def missing() -> str:
    """The first module that is needed and absent, or ""."""
    try:
        import torch

        import kvtier
    except ImportError as error:
        return str(error)
    del torch, kvtier
    return ""


if __name__ == "__main__":
    parsed = parse()
    sys.path.append(str(EXAMPLE))
    reason = missing()
    if reason:
        print(f"nano_engine: skipped: {reason}")
        sys.exit(MISSING)
    sys.exit(main(parsed))
