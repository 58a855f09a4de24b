# SPDX-License-Identifier: Apache-2.0
"""Opening a sequence, with the right copy function for where the pool is."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _abi, _convert, _library
from ._convert import Tokens
from ._handle import Handle
from .blocks import Retention
from .copier import Copier, CopyFunction
from .errors import Status, last_error
from .hashing import PromptIdentity, fill_identity
from .sequence import MissedSequence, Sequence

if TYPE_CHECKING:
    from .pool import Pool


@dataclass(frozen=True)
class SequenceSettings:
    """See Pool.open_sequence."""

    identity: PromptIdentity | None
    leave_tokens: int
    reserve_tokens: int
    retention: Retention
    copy: CopyFunction | None


def open_sequence(
    pool: Pool, pool_handle: Handle, settings: SequenceSettings, tokens: Tokens
) -> Sequence:
    """Does what Pool.open_sequence says."""
    array = _convert.token_array(tokens)
    # Without a copy function, the library copies wherever the pool is.
    copier = None if settings.copy is None else Copier(settings.copy)
    return _open(pool, pool_handle, _options(settings, copier), array, copier)


def _options(settings: SequenceSettings, copier: Copier | None) -> Any:
    options = _abi.SequenceOptions()
    _library.load().kvt_sequence_options_init(ctypes.byref(options))
    fill_identity(options, settings.identity)
    for name in ("leave_tokens", "reserve_tokens"):
        setattr(options, name, _convert.unsigned(getattr(settings, name), 32, name))
    options.retention = settings.retention
    if copier is not None:
        options.copy = copier.thunk
    return options


def _open(
    pool: Pool, pool_handle: Handle, options: Any, tokens: Any, copier: Copier | None
) -> Sequence:
    library = _library.load()
    pointer = ctypes.c_void_p()
    status = library.kvt_sequence_open(
        pool_handle.get(),
        ctypes.byref(options),
        _convert.address(tokens),
        tokens.size,
        ctypes.byref(pointer),
    )
    if status == Status.UNAVAILABLE:
        return MissedSequence(pool, tokens.size)
    if status != Status.OK:
        raise last_error() from (copier.take_error() if copier else None)
    handle = Handle("sequence", pointer.value, library.kvt_sequence_close, pool_handle)
    return Sequence(pool, handle, copier)
