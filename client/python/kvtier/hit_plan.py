# SPDX-License-Identifier: Apache-2.0
"""An engine's costs of computing, from which the daemon tells which hits are worth loading."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ComputeCost:
    """To compute n tokens behind m that are there takes, in microseconds,
    per_token_us * n + per_pair_us * n * (m + n / 2) + fixed_us. All zeros: not known."""

    per_token_us: float = 0.0
    per_pair_us: float = 0.0
    fixed_us: float = 0.0

    def ms(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """The time for so many new tokens behind cached ones; 0 for none."""
        if new_tokens <= 0:
            return 0.0
        pairs = new_tokens * (cached_tokens + new_tokens / 2)
        return (self.per_token_us * new_tokens + self.per_pair_us * pairs + self.fixed_us) / 1e3

    @classmethod
    def fit(cls, samples: Iterable[tuple[int, int, float]]) -> ComputeCost:
        """The cost that explains samples of (new_tokens, cached_tokens, ms) best, each weighed by
        how far it is off in proportion; no coefficient is negative. A few samples do, at least of
        short and long prompts, some of them behind cached tokens.

        Raises ValueError (there are none, or one is not positive and finite).
        """
        rows = [(n, m, 1e3 * ms) for n, m, ms in samples]
        if not rows or not all(n > 0 and m >= 0 and 0 < us < math.inf for n, m, us in rows):
            raise ValueError("samples are (new_tokens > 0, cached_tokens >= 0, ms > 0), one at least")
        terms = np.array([[n, n * (m + n / 2), 1.0] for n, m, _ in rows])
        terms /= np.array([us for _, _, us in rows])[:, None]
        best, least = np.zeros(3), np.inf
        # Picks the best solution with some coefficients at zero and none negative; on a tie that
        # with the fewest, and tokens before all else.
        choices = itertools.product((False, True), repeat=3)
        for used in sorted(choices, key=lambda one: (sum(one), not one[0])):
            chosen = np.flatnonzero(used)
            if chosen.size == 0:
                continue
            scale = np.abs(terms[:, chosen]).max(axis=0)
            ones = np.ones(len(rows))
            found = np.linalg.lstsq(terms[:, chosen] / scale, ones, rcond=None)[0] / scale
            error = float(((terms[:, chosen] @ found - 1.0) ** 2).sum())
            if (found >= 0).all() and error < least - 1e-12:
                best, least = np.zeros(3), error
                best[chosen] = found
        return cls(*map(float, best))
