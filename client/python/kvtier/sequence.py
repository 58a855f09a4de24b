# SPDX-License-Identifier: Apache-2.0
"""The blocks of one growing sequence of tokens.

Its life in an engine:

    sequence = pool.open_sequence(prompt)  # one round trip: hash, find, reserve
    sequence.wait()                        # until the found blocks are in the pool
    # compute tokens sequence.cached_tokens.. into their slots
    sequence.mark_computed(len(prompt))    # others can find the full blocks now
    sequence.append([token])               # compute it into its slot, and so on
    sequence.finish()                      # the last, partial block too
    sequence.close()
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._library import abi
from ._native import Handle, Owner, Tokens, address
from .blocks import Blocks, new_block_array
from .errors import Status, check
from .memory import AttachedPool, PoolMemory
from .types import Hint, Miss


@dataclass(frozen=True)
class SequenceInfo:
    """How a sequence stands.

    tokens: so far. cached_tokens: of the first ones, came from the cache and need not be computed.
    computed_tokens: at least cached_tokens. blocks: in the block table; more than the tokens need
    if some are reserved. pool_tokens, host_tokens, disk_tokens: where the cached ones were found.
    attachment: PoolInfo.attachment when it was opened. ready: False if `wait` is due. miss: why the
    cached prefix ended, NONE if all asked for was found. load_ms, ready_ms: for one with a plan or
    a deadline, the daemon's forecast when it was opened: until the prefix is loaded, and until the
    rest is computed as well.
    """

    tokens: int
    cached_tokens: int
    computed_tokens: int
    blocks: int
    pool_tokens: int
    host_tokens: int
    disk_tokens: int
    attachment: int
    ready: bool
    miss: Miss
    load_ms: float
    ready_ms: float


def missed_info(tokens: int, computed_tokens: int, attachment: int) -> SequenceInfo:
    """The info of a sequence without blocks."""
    return SequenceInfo(
        tokens=tokens,
        cached_tokens=0,
        computed_tokens=computed_tokens,
        blocks=0,
        pool_tokens=0,
        host_tokens=0,
        disk_tokens=0,
        attachment=attachment,
        ready=True,
        miss=Miss.UNAVAILABLE,
        load_ms=0.0,
        ready_ms=0.0,
    )


class Sequence(Owner):
    """Made by Pool.open_sequence and `fork`. One thread at a time; different sequences are
    independent.

    The blocks and slots of tokens from `cached_tokens` on are always private blocks of this
    sequence, so an engine may write there; a cached block that would be written is copied first.

    A sequence that was opened without a daemon is a miss, `available` False: it counts tokens, but
    has no cached tokens and no blocks, its block table and slot mapping are empty, and the tokens
    that it is to publish go nowhere. `check` is True of it, for there is nothing to lose; `memory`
    raises UnavailableError. It stays a miss: open another one once the daemon is back.

    When the connection is lost for good, so is the sequence, and a call that finds that makes it a
    miss like those: `check`, `mark_computed` and `finish` return False, `wait` True. Its memory
    stays readable, but may be replaced by others: an engine that has computed with cached tokens
    trusts the result only after one of those three was True. `append` and `fork`, which need new
    blocks, raise StaleHandleError "connection_lost".
    """

    def __init__(self, pool: AttachedPool, handle: Handle) -> None:
        # The pool may not be collected while this is in use.
        super().__init__(handle)
        self._pool = pool
        self._memory: PoolMemory | None = None
        self._lost = False

    @property
    def available(self) -> bool:
        """False: it was opened without a daemon, or a call found it lost, and there are no blocks
        to compute into."""
        return not self._lost

    def info(self) -> SequenceInfo:
        """How it stands now. No round trip."""
        info = _library.sized(abi.kvt_sequence_info)
        self._call("kvt_sequence_get_info", ctypes.byref(info))
        if self._lost:
            return missed_info(info.tokens, 0, info.attachment)
        return SequenceInfo(
            tokens=info.tokens,
            cached_tokens=info.cached_tokens,
            computed_tokens=info.computed_tokens,
            blocks=info.blocks,
            pool_tokens=info.pool_tokens,
            host_tokens=info.host_tokens,
            disk_tokens=info.disk_tokens,
            attachment=info.attachment,
            ready=bool(info.ready),
            miss=Miss(info.miss),
            load_ms=info.load_us / 1e3,
            ready_ms=info.ready_us / 1e3,
        )

    def __len__(self) -> int:
        """Tokens so far."""
        return self.info().tokens

    @property
    def cached_tokens(self) -> int:
        """The number of first tokens that came from the cache. May shrink in `wait`."""
        return self.info().cached_tokens

    def close(self) -> None:
        """Gives its blocks back. Idempotent."""
        self._handle.close()

    def wait(self, timeout_ms: int | None = None) -> bool:
        """Waits on the host until the cached prefix is in the pool. False: the time is up.

        Blocks that could not be loaded are dropped: `cached_tokens` shrinks, private blocks take
        the place of the lost ones. After True the cached prefix is usable and the block table final
        for the tokens so far; of a lost sequence both are empty. timeout_ms: 0 does not wait, None
        is the connection's request_timeout_ms. Raises ResourceExhaustedError (call again or close);
        IoError (the copy failed).
        """
        status = self._status("kvt_sequence_wait", _native.timeout(timeout_ms))
        if status == Status.TIMEOUT:
            return False
        self._holds(status)
        return True

    def check(self) -> bool:
        """True while everything the sequence holds is protected by its references. No round
        trip."""
        return self._published("kvt_sequence_check")

    def memory(self) -> PoolMemory:
        """The memory that this sequence's block table and slots belong to.

        Raises StaleHandleError once the connection it was opened on is gone; its earlier results
        stay valid memory.
        """
        if self._memory is None:
            self._memory = self._pool.memory_of(self.info().attachment)
        return self._memory

    def block_table(self) -> npt.NDArray[np.int32]:
        """The pool block of each logical block, int32 [blocks]. Raises WrongStateError (a wait is
        due)."""
        blocks = self.info().blocks
        if self._lost:
            return np.empty(0, dtype=np.int32)
        table: npt.NDArray[np.int32] = np.empty(blocks, dtype=np.int32)
        count = ctypes.c_size_t()
        self._call("kvt_sequence_block_table", address(table), blocks, ctypes.byref(count))
        return table[: count.value]

    def block_handles(self, count: int | None = None) -> Blocks:
        """The handles of the first `count` logical blocks (None: all), for Workspace.attend. Raises
        WrongStateError (a wait is due), InvalidArgumentError (there are fewer)."""
        if count is None:
            count = self.info().blocks
        _native.unsigned(count, 31, "count")
        if self._lost and count == 0:
            return Blocks()
        blocks = new_block_array(count)
        self._call("kvt_sequence_blocks", address(blocks), count)
        return Blocks(blocks)

    def slot_mapping(self, first: int = 0, count: int | None = None) -> npt.NDArray[np.int64]:
        """block_index * block_tokens + offset of tokens [first, first + count), int64 [count].

        count: None means all the rest. Raises InvalidArgumentError (beyond the sequence),
        WrongStateError (a wait is due).
        """
        if count is None:
            count = max(len(self) - first, 0)
        _native.unsigned(first, 63, "first")
        _native.unsigned(count, 31, "count")
        if self._lost:
            return np.empty(0, dtype=np.int64)
        slots: npt.NDArray[np.int64] = np.empty(count, dtype=np.int64)
        self._call("kvt_sequence_slot_mapping", first, count, address(slots))
        return slots

    def append(self, tokens: Tokens) -> None:
        """Adds tokens and the blocks they need. On failure the sequence is as before.

        Raises ResourceExhaustedError, StaleHandleError, WrongStateError (a wait is due).
        """
        array = _native.token_array(tokens)
        self._call("kvt_sequence_append", address(array), array.size)

    def mark_computed(self, tokens: int) -> bool:
        """Says that the KV of the first `tokens` tokens is completely written, and commits the
        blocks this fills. Never goes back. On a GPU: wait for the stream first.

        False: the sequence is lost, no process gets the blocks, and tokens computed with cached
        ones do not count. Raises InvalidArgumentError (more than there are), WrongStateError (a
        wait is due).
        """
        _native.unsigned(tokens, 64, "tokens")
        return self._published("kvt_sequence_mark_computed", tokens)

    def finish(self) -> bool:
        """Commits the partial block at the end of the computed tokens, so that it too can be found.

        The sequence stays usable: appending copies that block first. False: as of `mark_computed`.
        Raises WrongStateError (a wait is due; "tokens_not_computed": there are tokens beyond the
        computed ones).
        """
        return self._published("kvt_sequence_finish")

    def hint(self, hint: Hint, returns_in_ms: int = 0) -> int:
        """Gives the daemon a hint about this sequence, before or after its blocks are complete: see
        Pool.hint. It concerns the blocks that were found or committed so far; returns how many took
        it, 0 without a daemon. Raises InvalidArgumentError."""
        _native.unsigned(returns_in_ms, 63, "returns_in_ms")
        taken = ctypes.c_uint32()
        done = self._published("kvt_sequence_hint", hint, returns_in_ms, ctypes.byref(taken))
        return taken.value if done else 0

    def fork(self) -> Sequence:
        """A second sequence with the same tokens: committed blocks are shared, private ones copied.
        Both are independent from then on.

        Raises ResourceExhaustedError, StaleHandleError, WrongStateError (a wait is due).
        """
        fork = ctypes.c_void_p()
        self._call("kvt_sequence_fork", ctypes.byref(fork))
        result = Sequence(self._pool, self._handle.sibling(fork.value))
        result._memory = self._memory
        return result

    def _published(self, function: str, *arguments: Any) -> bool:
        """False if a call found the sequence lost. Raises its other errors."""
        return self._holds(self._status(function, *arguments))

    def _holds(self, status: int) -> bool:
        """Notes what a call told of the sequence. False: it is lost. Raises other errors."""
        if status == Status.STALE_HANDLE:
            self._lost = True
            return False
        check(status)
        return True
