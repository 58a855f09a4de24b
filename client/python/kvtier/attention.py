# SPDX-License-Identifier: Apache-2.0
"""Attention computed by the daemon, for processes that launch no kernels of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._library import abi
from ._native import Handle, Owner, address
from .blocks import AnyBlocks, block_array
from .errors import Status, check, error_of
from .memory import AttachedPool
from .types import DeviceKind, DType


class AttendSequence(NamedTuple):
    """The last `query_tokens` of `kv_tokens` cached tokens ask."""

    query_tokens: int
    kv_tokens: int


class Workspace(Owner):
    """Memory shared with the daemon, on a pool's device: queries go in, results come out. Made by
    Pool.open_workspace; any number of threads may use it at once, if their ranges differ.

    It ends with the connection as it stood when it was made: then `attend` raises UnavailableError,
    and another one must be opened.
    """

    def __init__(self, pool: AttachedPool, byte_count: int) -> None:
        """See Pool.open_workspace."""
        library = _library.load()
        _native.unsigned(byte_count, 64, "byte_count")
        pointer = ctypes.c_void_p()
        check(library.kvt_workspace_open(pool.handle.get(), byte_count, ctypes.byref(pointer)))
        super().__init__(
            Handle("workspace", pointer.value, library.kvt_workspace_close, pool.handle)
        )
        # The pool must not be collected, and thereby closed, while the workspace is in use.
        self._pool = pool

    def close(self) -> None:
        """Unmaps it. Not while another thread or an array over it is in use."""
        self._handle.close()

    def _info(self) -> Any:
        info = _library.sized(abi.kvt_workspace_info)
        self._call("kvt_workspace_get_info", ctypes.byref(info))
        return info

    @property
    def byte_count(self) -> int:
        """At least the requested size."""
        return int(self._info().bytes)

    @property
    def device_address(self) -> int:
        """Where it is for kernels of this process. Raises UnsupportedError (host memory)."""
        info = self._info()
        if info.device_kind == DeviceKind.HOST:
            raise error_of(Status.UNSUPPORTED, "host_memory", "the workspace is not on a GPU")
        return int(info.device_base)

    def array(self, offset: int, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
        """A part of it in place as a numpy array, which keeps the workspace; valid until `close`, also
        of the pool or the connection. See DType.numpy.

        Raises UnsupportedError (on a GPU), InvalidArgumentError (outside of it).
        """
        info = self._info()
        if info.base is None:
            raise error_of(Status.UNSUPPORTED, "not_host_memory", "the workspace is on a GPU")
        count = int(np.prod(shape, dtype=np.int64))
        if offset < 0 or count < 0 or offset + count * dtype.itemsize > info.bytes:
            raise error_of(Status.INVALID_ARGUMENT, "bad_range", f"{offset}, {shape}")
        buffer = _native.memory_at(info.base + offset, count * dtype.itemsize, self)
        return np.ndarray(shape, dtype.numpy, memoryview(buffer))

    def attend(
        self,
        layer: int,
        sequences: Iterable[tuple[int, int]],
        blocks: AnyBlocks,
        *,
        q_heads: int,
        softmax_scale: float,
        query_dtype: DType,
        query_offset: int = 0,
        output_offset: int,
        lse_offset: int | None = None,
        soft_cap: float = 0.0,
        window_tokens: int = 0,
        key_scales: Iterable[float] | None = None,
        value_scales: Iterable[float] | None = None,
        timeout_ms: int | None = None,
    ) -> int:
        """Causal attention of one layer over blocks that this process holds; waits for it.

        sequences: (query_tokens, kv_tokens) each. blocks: of all sequences, one after another, as
        many as kv_tokens need; Sequence.block_handles gives them. Offsets are multiples of 16:
        queries and output are [tokens, q_heads, head_dim] of query_dtype, one sequence after
        another, log-sum-exps [tokens, q_heads] of float32. Keys and values of all kv_tokens must
        have been written (on a GPU: the stream has been waited for).

        key_scales, value_scales: the factors of an fp8 cache's numbers: one for each KV head, or
        one for all of them; None: 1.

        Returns the nanoseconds that it took. Raises UnsupportedError, InvalidArgumentError,
        NotOwnerError, StaleHandleError, WrongStateError (a block's load has not reached it),
        LimitExceededError (too much for one call), UnavailableError, IoError, TimedOutError.
        """
        lengths = np.asarray(list(sequences), dtype=np.uint32).reshape(-1, 2)
        handles = block_array(blocks)
        request = _library.sized(abi.kvt_attend_request)
        request.layer = _native.unsigned(layer, 32, "layer")
        request.q_heads = _native.unsigned(q_heads, 32, "q_heads")
        request.softmax_scale = softmax_scale
        request.soft_cap = soft_cap
        request.window_tokens = _native.unsigned(window_tokens, 32, "window_tokens")
        request.query_dtype = query_dtype
        request.query_offset = _native.unsigned(query_offset, 64, "query_offset")
        request.output_offset = _native.unsigned(output_offset, 64, "output_offset")
        request.lse_offset = (
            abi.KVT_NO_LSE if lse_offset is None else _native.unsigned(lse_offset, 64, "lse_offset")
        )
        request.sequences = address(lengths)
        request.sequence_count = len(lengths)
        request.blocks = address(handles)
        request.block_count = len(handles)
        keys, values = _numbers(key_scales), _numbers(value_scales)
        request.key_scales, request.key_scale_count = address(keys), len(keys)
        request.value_scales, request.value_scale_count = address(values), len(values)
        compute_ns = ctypes.c_uint64()
        self._call(
            "kvt_attend",
            ctypes.byref(request),
            _native.timeout(timeout_ms),
            ctypes.byref(compute_ns),
        )
        return compute_ns.value


def _numbers(scales: Iterable[float] | None) -> npt.NDArray[np.float32]:
    """None: no numbers. An array's truth is not asked for, since it may have none."""
    return np.asarray([] if scales is None else list(scales), dtype=np.float32)
