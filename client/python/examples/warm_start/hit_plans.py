# SPDX-License-Identifier: Apache-2.0
"""The price of a hit: how long until the next token's logits when every hit is loaded, when hits are
loaded as far as that pays, and when a gap is computed while the rest is loaded.

The bar: from any tier and at any size no plan but "all" takes more than 1.05 times the less of
computing everything and loading everything.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from comparison import Comparison
from engine import Answer
from trial import TIERS, Trial

import kvtier

BAR = 1.05
PLANS = {"all": kvtier.HitPlan.ALL, "cut": kvtier.HitPlan.CUT, "both": kvtier.HitPlan.BOTH_ENDS}
_BLOCK_TOKENS = 16


@dataclass(frozen=True)
class PlanRow:
    """Answers to one prompt with a plan. cold_ms: without any hit; all_ms: with every hit, of the
    same tier. ideal_ms: with the cut or the gap that is best by what computing and loading took."""

    tier: str
    plan: str
    answers: list[Answer]
    comparison: Comparison
    cold_ms: float
    all_ms: float
    ideal_ms: float

    @property
    def ms(self) -> float:
        return float(statistics.median(answer.first_token_ms for answer in self.answers))

    @property
    def holds(self) -> bool:
        bar = BAR * min(self.cold_ms, self.all_ms)
        return self.comparison.holds and (self.plan == "all" or self.ms <= bar)

    def as_json(self) -> dict[str, Any]:
        info = self.answers[-1].info
        return {
            "tier": self.tier,
            "plan": self.plan,
            "prompt_tokens": info.tokens,
            "cached_tokens": info.cached_tokens,
            "first_token_ms": round(self.ms, 3),
            "first_token_ms_each": [round(one.first_token_ms, 3) for one in self.answers],
            "expected_ms": round(info.ready_ms, 3),
            "ideal_ms": round(self.ideal_ms, 3),
            "cold_ms": round(self.cold_ms, 3),
            "logits_error": self.comparison.error,
            "blocks_equal": self.comparison.blocks_equal,
            "holds": self.holds,
        }


class PlanTrial(Trial):
    """An engine whose pool is its cache, with a daemon of its own. `run` once."""

    def run(self, prompts: list[list[int]]) -> Iterator[PlanRow]:  # type: ignore[override]
        yield from super().run(prompts)  # type: ignore[misc]

    def _rows(self, prompts: list[list[int]]) -> Iterator[PlanRow]:  # type: ignore[override]
        """The first two prompts are published: one is measured, the other teaches the daemon what
        loading takes."""
        measured, teacher = prompts[:2]
        self._answer(measured)
        cold = [self._answer(prompt) for prompt in prompts]
        cold_ms = statistics.median(answer.first_token_ms for answer in cold)
        published = self._answer(measured, publish=True, follow=cold[0].followed_by)
        self._answer(teacher, publish=True)
        self._cost = self._measure_cost(prompts)
        self._pool.set_compute_cost(self._cost)
        for tier in TIERS:
            self._push_prompt(tier, teacher)
            self._answer(teacher)
            all_ms, ideal = 0.0, {"all": 0.0}
            for name, plan in PLANS.items():
                answers = []
                for _ in range(self._load.repeats):
                    self._push_prompt(tier, measured)
                    answers.append(
                        self._engine.answer(
                            measured, self._load.new_tokens, follow=published.followed_by, plan=plan
                        )
                    )
                row_ms = statistics.median(answer.first_token_ms for answer in answers)
                if name == "all":
                    all_ms = row_ms
                    ideal = self._ideals(answers)
                worst = self._worst(answers, published, published)
                yield PlanRow(tier, name, answers, worst, cold_ms, all_ms, ideal[name])

    def _measure_cost(self, prompts: list[list[int]]) -> kvtier.ComputeCost:
        """From cold prompts of several lengths, and from ends of a published one."""
        samples = []
        length = self._load.prompt_tokens
        for count in (length // 8, length // 4, length // 2, length):
            answer = self._engine.answer(prompts[2][-count:], 0)
            samples.append((count, 0, answer.compute_ms))
        for part in (2, 4, 8):
            kept = length - length // part
            answer = self._engine.answer(prompts[0][:kept] + prompts[2][kept:], 0)
            found = answer.info.cached_tokens
            samples.append((length - found, found, answer.compute_ms))
        return kvtier.ComputeCost.fit(samples)

    def _ideals(self, loaded: list[Answer]) -> dict[str, float]:
        """By what loading all of the prefix took, in proportion to the tokens."""
        wait_ms = statistics.median(answer.wait_ms for answer in loaded)
        all_ms = statistics.median(answer.first_token_ms for answer in loaded)
        tokens, cached = self._load.prompt_tokens, loaded[-1].info.cached_tokens
        fixed_ms = all_ms - wait_ms - self._cost.ms(tokens - cached, cached)
        cut = both = self._cost.ms(tokens)
        for end in range(_BLOCK_TOKENS, cached + 1, _BLOCK_TOKENS):
            load_ms, rest_ms = wait_ms * end / cached, self._cost.ms(tokens - end, end)
            cut = min(cut, load_ms + rest_ms)
        rest_ms = self._cost.ms(tokens - cached, cached)
        for gap in range(_BLOCK_TOKENS, cached, _BLOCK_TOKENS):
            load_ms = wait_ms * (cached - gap) / cached
            both = min(both, max(load_ms, self._cost.ms(gap)) + rest_ms)
        return {"all": all_ms, "cut": fixed_ms + cut, "both": fixed_ms + min(cut, both)}

    def _push_prompt(self, tier: str, prompt: list[int]) -> None:
        self._connection.flush()
        hashes = self._pool.hash_blocks(prompt)
        if tier == "pool":
            self._answer(prompt)
        else:
            self._daemon.push_to_host(hashes)
        if tier == "disk":
            self._daemon.push_to_disk(hashes)


_HEADINGS = ("tokens", "prefix in", "plan", "ms to logits", "expected", "ideal", "cold", "all", "cached", "KV bytes", "bar")


def table(rows: list[PlanRow]) -> str:
    """Medians, in milliseconds."""
    lines = [list(_HEADINGS)]
    for row in rows:
        info = row.answers[-1].info
        lines.append(
            [
                str(info.tokens),
                row.tier,
                row.plan,
                *(f"{ms:.1f}" for ms in (row.ms, info.ready_ms, row.ideal_ms, row.cold_ms, row.all_ms)),
                str(info.cached_tokens),
                "equal" if row.comparison.blocks_equal else "DIFFER",
                "-" if row.plan == "all" else "ok" if row.holds else "MISSED",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines
    )
