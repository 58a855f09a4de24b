# SPDX-License-Identifier: Apache-2.0
"""A pool's memory as arrays: numpy for host memory, __cuda_array_interface__ for a GPU's, torch for
both. Nothing is copied."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._handle import Handle
from .blocks import DeviceKind
from .cuda import CudaArray, DeviceMemory
from .errors import Status, error_of
from .model import DType, Model
from .views import ArraySpec, KvView, ViewPlan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PoolInfo:
    """A pool as this process is attached to it; without a daemon, as it was.

    bytes: of the whole pool; block i starts at i * block_bytes. base: where libkvtier mapped it,
    None unless it is host memory. generation: differs between any two pools ever created on this
    host. attachment: changes at every reconnection. fd: of the memory, owned by the pool.
    """

    base: int | None
    bytes: int
    block_bytes: int
    blocks: int
    block_tokens: int
    generation: int
    attachment: int
    fd: int
    device_kind: DeviceKind


class PoolMemory:
    """The memory of a pool, of one generation of it.

    Arrays made from it are valid memory for as long as they live, also after the pool was closed or
    the daemon is gone; what is in them is the caller's only while he holds the blocks. Only private
    blocks may be written. Any thread.
    """

    def __init__(self, model: Model, info: PoolInfo, pool_handle: Handle) -> None:
        """Raises IoError; StaleHandleError "connection_lost" (the pool is another by now)."""
        self._model = model
        self._info = info
        self._plan = ViewPlan(model.record, model.layout, info.blocks)
        self._host: mmap.mmap | None = None
        self._gpu: DeviceMemory | None = None
        if info.device_kind == DeviceKind.HOST:
            self._host = _map(info)
        else:
            self._gpu = DeviceMemory(pool_handle)
            if self._gpu.generation != info.generation:
                raise error_of(Status.STALE_HANDLE, "connection_lost")

    @property
    def generation(self) -> int:
        """Of the pool; see PoolInfo."""
        return self._info.generation

    @property
    def device_kind(self) -> DeviceKind:
        return self._info.device_kind

    @property
    def dtype(self) -> DType:
        """Of all elements; numpy shows bfloat16 as uint16 and float8 as uint8."""
        return self._model.record.dtype

    def layer(self, layer: int) -> KvView[npt.NDArray[Any]]:
        """K and V of one layer as numpy arrays, [blocks, tokens, heads, dim], strided.

        Raises InvalidArgumentError (no such layer), UnsupportedError (not host memory).
        """
        return KvView(self._numpy(self._plan.k(layer)), self._numpy(self._plan.v(layer)))

    def layer_kv(self, layer: int) -> npt.NDArray[Any]:
        """K and V of one layer as one numpy array, [blocks, 2, tokens, heads, dim], strided.

        Raises as `layer`; also UnsupportedError if K and V heads differ in size.
        """
        return self._numpy(self._plan.kv(layer))

    def block_bytes(self) -> npt.NDArray[np.uint8]:
        """All blocks as bytes, uint8 [blocks, block_bytes]. Raises UnsupportedError (not host
        memory)."""
        shape = (self._info.blocks, self._info.block_bytes)
        array: npt.NDArray[np.uint8] = np.ndarray(shape, np.uint8, self._host_buffer())
        return array

    def cuda_layer(self, layer: int) -> KvView[CudaArray]:
        """K and V of one layer as objects with __cuda_array_interface__, for CuPy and others.

        [blocks, tokens, heads, dim], strided; bfloat16 shows as int16, float8 as uint8. Raises
        InvalidArgumentError (no such layer; the pool is closed), UnsupportedError (host memory).
        """
        return KvView(self._cuda(self._plan.k(layer)), self._cuda(self._plan.v(layer)))

    def torch_layer(self, layer: int) -> KvView[torch.Tensor]:
        """K and V of one layer as torch tensors in place, [blocks, tokens, heads, dim], strided.

        On the CPU or on the pool's GPU. Raises InvalidArgumentError, ImportError.
        """
        return KvView(self._torch(self._plan.k(layer)), self._torch(self._plan.v(layer)))

    def torch_layer_kv(self, layer: int) -> torch.Tensor:
        """K and V of one layer as one torch tensor, [blocks, 2, tokens, heads, dim], strided.

        Raises as `torch_layer`; also UnsupportedError if K and V heads differ in size.
        """
        return self._torch(self._plan.kv(layer))

    def torch_blocks(self) -> torch.Tensor:
        """The whole pool as one torch tensor, [blocks, layers, 2, tokens, heads, dim]: all of a
        block's KV side by side. Raises as `torch_layer_kv`."""
        return self._torch(self._plan.blocks())

    def _host_buffer(self) -> mmap.mmap:
        if self._host is None:
            raise error_of(Status.UNSUPPORTED, "not_host_memory", "the pool is on a GPU")
        return self._host

    def _numpy(self, spec: ArraySpec) -> npt.NDArray[Any]:
        buffer = self._host_buffer()
        return np.ndarray(spec.shape, self.dtype.numpy, buffer, spec.offset, spec.strides)

    def _cuda(self, spec: ArraySpec) -> CudaArray:
        if self._gpu is None:
            raise error_of(Status.UNSUPPORTED, "host_memory", "the pool is not on a GPU")
        return self._gpu.array(spec, _interface_type(self.dtype))

    def _torch(self, spec: ArraySpec) -> torch.Tensor:
        import torch

        if self._gpu is not None:
            device = torch.device("cuda", self._gpu.ordinal)
            tensor = torch.as_tensor(self._cuda(spec), device=device)
        else:
            array = self._numpy(spec)
            # Not every torch takes uint16; the bits are the same.
            tensor = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array)
        return tensor.view(getattr(torch, self.dtype.torch_name))


def _map(info: PoolInfo) -> mmap.mmap:
    """A mapping beside libkvtier's own: it lives as long as the arrays over it, whatever is
    closed. Raises IoError."""
    try:
        return mmap.mmap(info.fd, info.bytes, flags=mmap.MAP_SHARED)
    except (OSError, ValueError) as error:
        raise error_of(Status.IO_ERROR, "pool_map_failed", str(error)) from error


def _interface_type(dtype: DType) -> str:
    """The array interface's name of a dtype, or of integers of its size."""
    native = np.dtype(np.int16 if dtype == DType.BFLOAT16 else dtype.numpy)
    return str(native.str)
