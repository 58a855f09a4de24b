# SPDX-License-Identifier: Apache-2.0
"""A pool's memory on a GPU, mapped into this process by libkvtier, and streams of any framework."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from . import _library
from ._native import Handle
from .errors import Status, check, error_of, invalid
from .model import ArraySpec


class DeviceMemory:
    """A pool's memory at an address of this process, for the kernels of this process.

    Mapped for as long as the pool is open or an array made here lives. Any thread.
    """

    def __init__(self, pool_handle: Handle) -> None:
        """Raises UnsupportedError (host memory; no driver), IoError."""
        mapping = _map(pool_handle)
        self._pool_handle = pool_handle
        #: The pool's, as in PoolInfo.
        self.generation: int = mapping.generation
        #: The GPU's number in this process.
        self.ordinal: int = mapping.ordinal

    def array(self, spec: ArraySpec, typestr: str) -> CudaArray:
        """Raises InvalidArgumentError "closed"; StaleHandleError (another pool has taken this one's
        place); UnsupportedError (the memory was given back)."""
        array = CudaArray(self._pool_handle, spec, typestr)
        # Only now that the memory is pinned is its address good for as long as the array.
        mapping = _map(self._pool_handle)
        if mapping.generation != self.generation:
            raise error_of(Status.STALE_HANDLE, "pool_replaced")
        array.place(mapping.base)
        return array


class CudaArray:
    """A strided array in GPU memory, for libraries that read __cuda_array_interface__.

    While it lives the memory stays mapped, also when the pool is closed. Kernels that use it must
    have ended before the last array of a closed pool goes.
    """

    def __init__(self, pool_handle: Handle, spec: ArraySpec, typestr: str) -> None:
        pool_handle.pin()
        weakref.finalize(self, pool_handle.unpin).atexit = False
        self._address = 0
        self._spec = spec
        self._typestr = typestr

    def place(self, pool_address: int) -> None:
        """Says where the pool is; before it is handed out."""
        self._address = pool_address + self._spec.offset

    @property
    def shape(self) -> tuple[int, ...]:
        return self._spec.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return self._spec.strides

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self._spec.shape,
            "strides": self._spec.strides,
            "typestr": self._typestr,
            "data": (self._address, False),
            # Nothing to wait for: loads are waited for by Pool and Sequence.
            "stream": None,
        }


def _map(pool_handle: Handle) -> Any:
    """The current kvt_device_mapping; mapped if it was not."""
    mapping = _library.sized(_library.abi.kvt_device_mapping)
    check(_library.load().kvt_pool_map_device(pool_handle.get(), ctypes.byref(mapping)))
    return mapping


def stream_pointer(stream: object) -> int:
    """A stream of any framework as a cudaStream_t: torch's `cuda_stream`, CuPy's `ptr`, an int."""
    for name in ("cuda_stream", "ptr"):
        value = getattr(stream, name, None)
        if isinstance(value, int):
            return value
    if isinstance(stream, int):
        return stream
    raise invalid("bad_stream", f"{type(stream).__name__} is not a CUDA stream")
