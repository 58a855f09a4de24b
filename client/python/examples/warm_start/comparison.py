# SPDX-License-Identifier: Apache-2.0
"""Whether two answers are the same to what a dtype can tell apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from engine import Answer


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Of two vectors, relative to the expected one's length."""
    return float((got - expected).norm() / expected.norm())


@dataclass(frozen=True)
class Comparison:
    """error: the largest distance of the logits, over all steps. agreed: of `asked` continuing
    tokens, so many would have been chosen by both. blocks_equal: blocks that came from the cache
    have the bytes that were computed.

    Where errors are tolerable but tokens differ, the two best logits were closer than the dtype
    tells apart; random weights, unlike trained ones, often leave them so.
    """

    error: float
    tolerance: float
    agreed: int
    asked: int
    blocks_equal: bool

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance and self.blocks_equal

    def continuation(self) -> str:
        return f"{self.agreed}/{self.asked}" if self.asked > 0 else "-"


def compare(
    got: Answer, expected: Answer, tolerance: float, block_sums: dict[int, bytes]
) -> Comparison:
    """`got` followed the tokens of `expected`. block_sums: of the blocks that were published, by
    their numbers in the prompt."""
    steps = list(zip(got.logits, expected.logits))
    asked = len(expected.followed_by)
    return Comparison(
        error=max(distance(a, b) for a, b in steps),
        tolerance=tolerance,
        agreed=sum(bool(a.argmax() == b.argmax()) for a, b in steps[:asked]),
        asked=asked,
        blocks_equal=all(block_sums.get(i) == one for i, one in got.block_sums.items()),
    )
