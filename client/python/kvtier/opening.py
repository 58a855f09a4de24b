# SPDX-License-Identifier: Apache-2.0
"""Opening a sequence, and what stands for one without a daemon."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._library import abi
from ._native import Handle, Tokens
from .blocks import Blocks
from .errors import Status, error_of, invalid, last_error
from .hashing import PromptIdentity, identity_to_abi
from .memory import AttachedPool, PoolMemory
from .sequence import Copier, CopyFunction, Sequence, SequenceInfo, missed_info
from .types import Hint, HitPlan, Retention


@dataclass(frozen=True)
class SequenceSettings:
    """See Pool.open_sequence."""

    identity: PromptIdentity | None
    leave_tokens: int
    reserve_tokens: int
    retention: Retention
    copy: CopyFunction | None
    plan: HitPlan
    deadline_ms: int


def open_sequence(pool: AttachedPool, settings: SequenceSettings, tokens: Tokens) -> Sequence:
    """Does what Pool.open_sequence says."""
    array = _native.token_array(tokens)
    # Without a copy function, the library copies wherever the pool is.
    copier = None if settings.copy is None else Copier(settings.copy)
    return _open(pool, _options(settings, copier), array, copier)


def _options(settings: SequenceSettings, copier: Copier | None) -> Any:
    options = abi.kvt_sequence_options()
    _library.load().kvt_sequence_options_init(ctypes.byref(options))
    options.kept = identity_to_abi(settings.identity)
    options.identity = ctypes.addressof(options.kept)
    for name in ("leave_tokens", "reserve_tokens", "deadline_ms"):
        setattr(options, name, _native.unsigned(getattr(settings, name), 32, name))
    options.retention = settings.retention
    options.plan = settings.plan
    if copier is not None:
        options.copy = copier.thunk
    return options


def _open(pool: AttachedPool, options: Any, tokens: Any, copier: Copier | None) -> Sequence:
    library = _library.load()
    pointer = ctypes.c_void_p()
    status = library.kvt_sequence_open(
        pool.handle.get(),
        ctypes.byref(options),
        _native.address(tokens),
        tokens.size,
        ctypes.byref(pointer),
    )
    if status == Status.UNAVAILABLE:
        return MissedSequence(pool, tokens.size)
    if status != Status.OK:
        raise last_error() from (copier.take_error() if copier else None)
    handle = Handle("sequence", pointer.value, library.kvt_sequence_close, pool.handle)
    return Sequence(pool, handle, copier)


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
