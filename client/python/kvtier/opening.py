# SPDX-License-Identifier: Apache-2.0
"""Opening a sequence, and what stands for one without a daemon."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._library import abi
from ._native import Handle, Tokens
from .blocks import Blocks
from .errors import Status, check, error_of, invalid
from .hashing import PromptIdentity, identity_to_abi
from .memory import AttachedPool, PoolMemory
from .sequence import Sequence, SequenceInfo, missed_info
from .types import Hint, HitPlan, Retention


def open_sequence(
    pool: AttachedPool,
    tokens: Tokens,
    identity: PromptIdentity | None,
    retention: Retention,
    plan: HitPlan,
    **numbers: int,
) -> Sequence:
    """Does what Pool.open_sequence says. numbers: the other fields of a kvt_sequence_options."""
    array = _native.token_array(tokens)
    library = _library.load()
    options = abi.kvt_sequence_options()
    library.kvt_sequence_options_init(ctypes.byref(options))
    converted = identity_to_abi(identity)
    options.identity = ctypes.addressof(converted)
    for name, value in numbers.items():
        setattr(options, name, _native.unsigned(value, 32, name))
    options.retention, options.plan = retention, plan
    pointer = ctypes.c_void_p()
    status = library.kvt_sequence_open(
        pool.handle.get(),
        ctypes.byref(options),
        _native.address(array),
        array.size,
        ctypes.byref(pointer),
    )
    if status == Status.UNAVAILABLE:
        return MissedSequence(pool, array.size)
    check(status)
    handle = Handle("sequence", pointer.value, library.kvt_sequence_close, pool.handle)
    return Sequence(pool, handle)


class MissedSequence(Sequence):
    """Returned by Pool.open_sequence without a daemon; see Sequence.available."""

    def __init__(self, pool: AttachedPool, tokens: int) -> None:
        self._pool = pool
        self._tokens = tokens
        self._computed_tokens = 0
        self._open = True

    @property
    def available(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return not self._open

    def close(self) -> None:
        self._open = False

    def info(self) -> SequenceInfo:
        self._require_open()
        return missed_info(self._tokens, self._computed_tokens, attachment=0)

    def wait(self, timeout_ms: int | None = None) -> bool:
        _native.timeout(timeout_ms)
        self._require_open()
        return True

    def check(self) -> bool:
        self._require_open()
        return True

    def memory(self) -> PoolMemory:
        self._require_open()
        raise error_of(Status.UNAVAILABLE, "no_daemon", "the sequence has no blocks")

    def block_table(self) -> npt.NDArray[np.int32]:
        self._require_open()
        return np.zeros(0, dtype=np.int32)

    def block_handles(self, count: int | None = None) -> Blocks:
        self._require_open()
        if count:
            raise invalid("too_many_blocks", f"{count} of 0")
        return Blocks()

    def slot_mapping(self, first: int = 0, count: int | None = None) -> npt.NDArray[np.int64]:
        self._require_open()
        _native.unsigned(first, 63, "first")
        if first + (count or 0) > self._tokens:
            raise invalid("beyond_sequence", f"{first} + {count} of {self._tokens} tokens")
        return np.zeros(0, dtype=np.int64)

    def hint(self, hint: Hint, returns_in_ms: int = 0) -> int:
        self._require_open()
        _native.unsigned(returns_in_ms, 63, "returns_in_ms")
        return 0

    def append(self, tokens: Tokens) -> None:
        self._require_open()
        self._tokens += _native.token_array(tokens).size

    def mark_computed(self, tokens: int) -> bool:
        self._require_open()
        if not 0 <= tokens <= self._tokens:
            raise invalid("too_many_tokens", f"{tokens} of {self._tokens}")
        self._computed_tokens = max(self._computed_tokens, tokens)
        return True

    def finish(self) -> bool:
        self._require_open()
        if self._computed_tokens != self._tokens:
            raise error_of(Status.WRONG_STATE, "tokens_not_computed")
        return True

    def fork(self) -> Sequence:
        self._require_open()
        fork = MissedSequence(self._pool, self._tokens)
        fork._computed_tokens = self._computed_tokens
        return fork

    def _require_open(self) -> None:
        if not self._open:
            raise invalid("closed", "the sequence is closed")
