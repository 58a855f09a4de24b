# SPDX-License-Identifier: Apache-2.0
"""Cold and warm starts of one engine, tier by tier."""

from __future__ import annotations

import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from comparison import Comparison, compare, distance
from decoder import Decoder
from engine import Answer, Engine
from kv_paths import CopyingPath, InPlacePath, KvPath
from private_daemon import PrivateDaemon
from report import Row

import kvtier

PATHS: dict[str, Callable[[Decoder], KvPath]] = {"in-place": InPlacePath, "copy": CopyingPath}
TIERS = ("pool", "host", "disk")


@dataclass(frozen=True)
class Load:
    """prompt_tokens: of each prompt; its first shared_tokens are the same in all of them.
    chunk_tokens: see Engine; shared_tokens should be a multiple."""

    prompt_tokens: int
    shared_tokens: int
    chunk_tokens: int
    new_tokens: int
    repeats: int


def make_prompts(load: Load, vocabulary: int) -> list[list[int]]:
    """One for each tier, and one in front that is published."""
    source = random.Random(7)
    shared = [source.randrange(vocabulary) for _ in range(load.shared_tokens)]
    own = load.prompt_tokens - load.shared_tokens
    return [
        shared + [source.randrange(vocabulary) for _ in range(own)] for _ in range(1 + len(TIERS))
    ]


class Yardstick:
    """The model without kvtier: what is right, and how much the dtype leaves open."""

    def __init__(self, decoder: Decoder, prompts: list[list[int]], load: Load) -> None:
        self._decoder = decoder
        #: Logits after each prompt, and the median time to them.
        self.expected, self.ms = self._time(prompts)
        prompt = prompts[0]
        #: The same prompt computed in two parts instead of at once.
        self.floor = max(
            distance(self._in_two(prompt, split), self.expected[0])
            for split in (load.shared_tokens, load.prompt_tokens - 1)
        )
        self.tolerance = 2 * self.floor + torch.finfo(decoder.dtype).eps
        other = prompt[load.prompt_tokens // 2 :: -1] + prompt[load.prompt_tokens // 2 + 1 :]
        #: The same last half after another first half.
        self.control = distance(decoder.forward(other, 0, decoder.new_cache()), self.expected[0])

    def _in_two(self, prompt: list[int], split: int) -> torch.Tensor:
        cache = self._decoder.new_cache()
        self._decoder.forward(prompt[:split], 0, cache)
        return self._decoder.forward(prompt[split:], split, cache)

    def _time(self, prompts: list[list[int]]) -> tuple[list[torch.Tensor], float]:
        logits, times_ms = [], []
        # The first one warms up.
        for prompt in prompts[:1] + prompts:
            started = time.perf_counter()
            logits.append(self._decoder.forward(prompt, 0, self._decoder.new_cache()))
            if self._decoder.device.type == "cuda":
                torch.cuda.synchronize(self._decoder.device)
            times_ms.append(1e3 * (time.perf_counter() - started))
        return logits[1:], statistics.median(times_ms[1:])


class Trial:
    """One engine with a daemon of its own. `run` once."""

    def __init__(
        self,
        decoder: Decoder,
        mode: str,
        yardstick: Yardstick,
        load: Load,
        daemon_program: str,
        parent: pathlib.Path | None,
    ) -> None:
        self._decoder = decoder
        self._mode = mode
        self._yardstick = yardstick
        self._load = load
        self._daemon_program = daemon_program
        self._parent = parent

    def run(self, prompts: list[list[int]]) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(prefix="kvtier-engine-", dir=self._parent) as directory:
            self._daemon = PrivateDaemon(
                self._daemon_program, pathlib.Path(directory), self._settings()
            )
            try:
                self._daemon.start()
                self._open_engine()
                yield from self._rows(prompts)
                self._connection.close()
            finally:
                self._daemon.kill()

    def _rows(self, prompts: list[list[int]]) -> Iterator[Row]:
        # The first answer warms the engine up.
        self._answer(prompts[0])
        cold = [self._answer(prompt) for prompt in prompts]
        published = self._answer(prompts[0], publish=True, follow=cold[0].followed_by)
        yield Row("nowhere", "cold", cold, self._against_torch(cold))
        yield Row("nowhere", "again", [published], self._worst([published], cold[0], cold[0]))
        for tier, question in zip(TIERS, range(1, len(prompts))):
            yield self._row(tier, "repeated", prompts[0], published, published)
            yield self._row(tier, "shared", prompts[question], cold[question], published)

    def _row(
        self, tier: str, kind: str, prompt: list[int], expected: Answer, published: Answer
    ) -> Row:
        """Answers to a prompt whose blocks were published as a part of `published`."""
        answers = []
        for _ in range(self._load.repeats):
            self._push_to(tier, published.prompt)
            answers.append(self._answer(prompt, follow=expected.followed_by))
            self._require(answers[-1], tier, kind)
        return Row(tier, kind, answers, self._worst(answers, expected, published))

    def _answer(
        self, prompt: list[int], publish: bool = False, follow: list[int] | None = None
    ) -> Answer:
        return self._engine.answer(prompt, self._load.new_tokens, publish, follow)

    def _against_torch(self, cold: list[Answer]) -> Comparison:
        errors = [distance(a.logits[0], b) for a, b in zip(cold, self._yardstick.expected)]
        return Comparison(max(errors), self._yardstick.tolerance, 0, 0, True)

    def _worst(self, answers: list[Answer], expected: Answer, published: Answer) -> Comparison:
        tolerance = self._yardstick.tolerance
        sums = published.block_sums
        found = [compare(answer, expected, tolerance, sums) for answer in answers]
        return min(found, key=lambda one: (one.holds, -one.error))

    def _require(self, answer: Answer, tier: str, kind: str) -> None:
        """Raises RuntimeError unless the prefix came from where it was meant to."""
        expected = self._load.shared_tokens
        if kind == "repeated":
            expected = self._load.prompt_tokens - 1
        found = getattr(answer.info, f"{tier}_tokens")
        if found < expected or answer.info.cached_tokens < expected:
            raise RuntimeError(f"{found} of {expected} tokens came from {tier}: {answer.info}")

    def _push_to(self, tier: str, prompt: list[int]) -> None:
        """Leaves the prompt's blocks in this tier and those below."""
        # What is still held cannot be pushed out.
        self._connection.flush()
        if tier == "host":
            self._daemon.push_to_host(self._pool.hash_blocks(prompt))
        elif tier == "disk":
            self._daemon.drain()
            # A GPU's memory can be had by the next daemon when nothing here holds it.
            self._connection.close()
            del self._engine, self._pool, self._connection
            self._decoder.attend = None
            self._daemon.kill()
            self._daemon.start()
            self._open_engine()

    def _open_engine(self) -> None:
        self._connection = kvtier.connect(
            self._daemon.socket, client_name="warm start", request_timeout_ms=60_000
        )
        model = self._connection.register_model(self._decoder.record(self._mode))
        self._pool = self._connection.attach(model)
        path = PATHS[self._mode](self._decoder)
        self._engine = Engine(self._decoder, self._pool, path, self._load.chunk_tokens)

    def _settings(self) -> dict[str, str]:
        """A pool for three prompts at once, twice as much host memory, four times as much disk."""
        layout = self._decoder.record(self._mode).layout()
        prompt_blocks = -(-(self._load.prompt_tokens + self._load.new_tokens) // 16)
        slab = max(64 << 20, 4 * layout.block_stride)
        pool = 3 * prompt_blocks * layout.block_stride
        tier = -(-2 * pool // slab) * slab + 4 * slab
        device = f"cuda:{self._decoder.device.index or 0}"
        return {
            "pool.device": device if self._decoder.device.type == "cuda" else "host",
            "pool.bytes": f"{max(pool, 8 << 20)}B",
            "host.bytes": f"{tier}B",
            "disk.bytes": f"{2 * tier}B",
            "cache.slab_bytes": f"{slab}B",
        }
