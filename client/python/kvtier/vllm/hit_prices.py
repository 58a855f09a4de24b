# SPDX-License-Identifier: Apache-2.0
"""Whether blocks that are on a disk are worth loading, by what computing and loading took before.

Blocks in memory always are: the bus is far faster than any model computes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

#: Steps with fewer tokens than these say little of what a prompt's tokens cost.
MIN_STEP_TOKENS = 256
#: The tokens loaded from disk to learn their cost, and how long it is believed if computing costs less.
TRIAL_TOKENS, BELIEVED_S = 256, 60.0

# As many tokens more as last seemed to take so long: the end of a load is seen with a step's, and the
# rest of the step must not count for much.
_TRIAL_S = 0.1

# How much of its weight a measurement keeps when the next one comes.
_KEPT = 0.7


class _Price:
    """Seconds for a token. A measurement weighs as much as it has tokens, because what a step or a
    load costs whatever its size would make long prompts seem dear after short ones."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + seconds

    def of(self, tokens: int) -> float | None:
        return None if self._tokens == 0 else tokens * self._seconds / self._tokens


class HitPrices:
    """Belongs to the scheduler's thread. Both prices are in seconds for a token; None: not known.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._compute, self._disk = _Price(), _Price()
        self._disk_known_until = 0.0

    def computed(self, tokens: int, seconds: float) -> None:
        """A step has computed so many tokens of prompts."""
        if tokens >= MIN_STEP_TOKENS:
            self._compute.add(tokens, seconds)

    def loaded_from_disk(self, tokens: int, seconds: float) -> None:
        """A load of blocks on disk has ended."""
        if tokens > 0:
            self._disk.add(tokens, seconds)
            self._disk_known_until = self._clock() + BELIEVED_S

    def compute_s(self, tokens: int) -> float | None:
        """How long computing so many tokens takes; None if that is not known."""
        return self._compute.of(tokens)

    def disk_s(self, tokens: int) -> float | None:
        """How long loading so many tokens from disk takes; None if that is not known, or was long ago
        and longer than computing them: no load would tell that it is not any more."""
        disk_s, compute_s = self._disk.of(tokens), self.compute_s(tokens)
        is_fast = disk_s is not None and compute_s is not None and disk_s < compute_s
        return disk_s if is_fast or self._clock() < self._disk_known_until else None

    def saved_s(self, blocks: int, on_disk: int, block_tokens: int) -> float:
        """How much less loading so many blocks takes than computing them, if `on_disk` of them
        are on disk; infinite if a price is not known."""
        compute_s = self.compute_s(blocks * block_tokens)
        disk_s = self.disk_s(on_disk * block_tokens)
        return math.inf if compute_s is None or disk_s is None else compute_s - disk_s

    def worthwhile_blocks(
        self, on_disk: Sequence[bool], block_tokens: int, spare_s: float = 0.0
    ) -> int:
        """How many of a prefix's blocks to load, the others to be computed: the number for which
        both together take the least time. on_disk: of each block. spare_s: how much later than
        loading from disk computing could begin; negative if loading would have to wait."""
        if True not in on_disk:
            return len(on_disk)
        compute_block_s, disk_block_s = self.compute_s(block_tokens), self.disk_s(block_tokens)
        if compute_block_s is None or disk_block_s is None:
            return self._trial(on_disk, block_tokens)
        computed_s, disk_s, most_s, best = 0.0, 0.0, 0.0, 0
        for number, is_on_disk in enumerate(on_disk, 1):
            computed_s += compute_block_s
            if is_on_disk:
                disk_s += disk_block_s
            late_s = max(0.0, disk_s - spare_s) if disk_s else 0.0
            if computed_s - late_s >= most_s:
                most_s, best = computed_s - late_s, number
        return best

    def _trial(self, on_disk: Sequence[bool], block_tokens: int) -> int:
        tokens, last_s = 0, self._disk.of(1)
        most = max(TRIAL_TOKENS, _TRIAL_S / last_s if last_s else 0)
        for number, is_on_disk in enumerate(on_disk):
            tokens += block_tokens if is_on_disk else 0
            if tokens > most and number > 0:
                return number
        return len(on_disk)


class HostStepTimer:
    """How long steps take that are computed on the CPU. As gpu_order.StepTimer."""

    def __init__(self) -> None:
        self._begun: tuple[int, float] | None = None

    def begin(self, tokens: int) -> None:
        self._begun = (tokens, time.perf_counter())

    def end(self) -> list[tuple[int, float]]:
        if self._begun is None:
            return []
        (tokens, began), self._begun = self._begun, None
        return [(tokens, time.perf_counter() - began)]
