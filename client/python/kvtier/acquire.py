# SPDX-License-Identifier: Apache-2.0
"""What an acquire brought, and giving it back."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .blocks import Block, Hit, Load, LoadProgress, Miss

if TYPE_CHECKING:
    from .pool import Pool


class AcquireResult:
    """The longest cached prefix, and private blocks to fill.

    Whoever acquires releases: by `release`, by Pool.release with the blocks, or by using the result
    in a `with` statement, which releases what it still holds at its end. The garbage collector does
    not. One thread at a time.

    hits: in order, one reference each. new_blocks: the private blocks asked for; none without a
    daemon. hashes: of the full blocks asked for, 32 bytes each. partial_block: which of the
    partial blocks offered is the last hit, or None. load: for Pool.wait; None: all hits are usable
    now. miss: why the block after the hits was not served.
    """

    def __init__(
        self,
        pool: Pool,
        hashes: list[bytes],
        hits: list[Hit],
        new_blocks: list[Block],
        partial_block: int | None,
        load: Load | None,
        miss: Miss,
    ) -> None:
        self._pool = pool
        self.hashes = hashes
        self.hits = hits
        self.new_blocks = new_blocks
        self.partial_block = partial_block
        self.load = load
        self.miss = miss

    @property
    def available(self) -> bool:
        """False: there is no daemon, and there are neither hits nor private blocks."""
        return self.miss != Miss.UNAVAILABLE

    @property
    def cached_tokens(self) -> int:
        """Tokens in the hits."""
        return sum(hit.tokens for hit in self.hits)

    @property
    def blocks(self) -> list[Block]:
        """All blocks held: the hits and then the private ones."""
        return [hit.block for hit in self.hits] + self.new_blocks

    def block_table(self) -> npt.NDArray[np.int32]:
        """Pool indices of all blocks held, int32 [hits + new blocks]."""
        return np.array([block.index for block in self.blocks], dtype=np.int32)

    def wait(self, up_to: int | None = None, timeout_ms: int | None = None) -> LoadProgress:
        """Waits until the first `up_to` hits (None: all) are usable or the load has finished.

        Hits that could not be loaded are then taken out of `hits` and released; after the loss of
        the connection nothing is held any more. When the time is up, what is so far is returned.
        Raises as Pool.wait.
        """
        if self.load is None:
            return LoadProgress(len(self.hits), True, Miss.NONE)
        progress = self._pool.wait(self.load, up_to, timeout_ms)
        if progress.miss == Miss.UNAVAILABLE:
            # The blocks went with the connection, the private ones too.
            self.hits, self.new_blocks, self.partial_block, self.miss = [], [], None, progress.miss
        elif progress.finished and progress.ready < len(self.hits):
            lost = self.hits[progress.ready :]
            del self.hits[progress.ready :]
            self.partial_block = None
            self.miss = progress.miss
            self._pool.release([hit.block for hit in lost])
        return progress

    def release(self) -> None:
        """Gives everything back that is still held. Never fails for want of a daemon."""
        blocks = self.blocks
        self.hits = []
        self.new_blocks = []
        if blocks and not self._pool.closed:
            self._pool.release(blocks)

    def __enter__(self) -> AcquireResult:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
