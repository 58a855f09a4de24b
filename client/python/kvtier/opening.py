"""Opening a sequence, with the right copy function for where the pool is."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _abi, _convert, _library
from ._convert import Tokens
from ._handle import Handle
from .blocks import DeviceKind, Retention
from .copier import Copier, CopyFunction, through_host
from .errors import Status, last_error
from .hashing import PromptIdentity, fill_identity
from .sequence import Sequence

if TYPE_CHECKING:
    from .pool import Pool

# A reconnection between looking at the pool and opening is rare; two in a row mean no daemon.
_TRIES = 2


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
) -> Sequence | None:
    """Does what Pool.open_sequence says."""
    array = _convert.token_array(tokens)
    for _ in range(_TRIES):
        copier, attachment = _choose_copier(pool, pool_handle, settings.copy)
        sequence = _open(pool, pool_handle, _options(settings, copier), array, copier)
        # This package's copier is for one attachment, which must be the sequence's.
        if sequence is None or attachment is None or sequence.info().attachment == attachment:
            return sequence
        sequence.close()
    return None


def _choose_copier(
    pool: Pool, pool_handle: Handle, copy: CopyFunction | None
) -> tuple[Copier | None, int | None]:
    """The copier, None if the library's own will do, and the attachment it is made for, None if it
    does for any."""
    if copy is not None:
        return Copier(copy), None
    info = pool.info()
    if info.device_kind == DeviceKind.HOST:
        return None, None
    return Copier(through_host(pool_handle, info.block_bytes, info.attachment)), info.attachment


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
) -> Sequence | None:
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
        return None
    if status != Status.OK:
        raise last_error() from (copier.take_error() if copier else None)
    handle = Handle("sequence", pointer.value, library.kvt_sequence_close, pool_handle)
    return Sequence(pool, handle, copier)
