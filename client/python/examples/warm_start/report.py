# SPDX-License-Identifier: Apache-2.0
"""The table and the JSON of a run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from comparison import Comparison
from engine import Answer


@dataclass(frozen=True)
class Row:
    """Answers to prompts of one kind that found their prefix in one place.

    comparison: the worst against cold answers; of the cold row, against torch without the pool.
    """

    prefix_from: str
    prompt: str
    answers: list[Answer]
    comparison: Comparison

    def median(self, what: str) -> float:
        return float(statistics.median(getattr(answer, what) for answer in self.answers))

    def as_json(self) -> dict[str, Any]:
        info = self.answers[-1].info
        return {
            "prefix_from": self.prefix_from,
            "prompt": self.prompt,
            "prompt_tokens": info.tokens,
            "cached_tokens": info.cached_tokens,
            "cached_tokens_by_tier": {
                "pool": info.pool_tokens,
                "host": info.host_tokens,
                "disk": info.disk_tokens,
            },
            **{
                name: round(self.median(name), 3)
                for name in ("first_token_ms", "open_ms", "wait_ms", "compute_ms")
            },
            "first_token_ms_each": [round(one.first_token_ms, 3) for one in self.answers],
            "logits_error": self.comparison.error,
            "logits_tolerance": self.comparison.tolerance,
            "continuation_tokens": self.comparison.asked,
            "continuation_agrees": self.comparison.agreed,
            "blocks_equal": self.comparison.blocks_equal,
            "holds": self.comparison.holds,
        }


_HEADINGS = (
    "prefix from",
    "prompt",
    "ms to logits",
    "open",
    "wait",
    "compute",
    "cached",
    "logits differ by",
    "continuation",
    "KV bytes",
)


def table(rows: list[Row]) -> str:
    """Medians; the columns of times in milliseconds."""
    lines = [list(_HEADINGS)]
    for row in rows:
        info, comparison = row.answers[-1].info, row.comparison
        lines.append(
            [
                row.prefix_from,
                row.prompt,
                *(
                    f"{row.median(name):.1f}"
                    for name in ("first_token_ms", "open_ms", "wait_ms", "compute_ms")
                ),
                f"{info.cached_tokens} of {info.tokens}",
                f"{comparison.error:.1e}",
                comparison.continuation(),
                "equal" if comparison.blocks_equal else "DIFFER",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines
    )
