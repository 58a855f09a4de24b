# SPDX-License-Identifier: Apache-2.0
"""A pool as it is attached to this process, and its memory as arrays: numpy for host memory,
__cuda_array_interface__ for a GPU's, torch for both. Nothing is copied."""

from __future__ import annotations

import ctypes
import mmap
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._library import abi
from ._native import Handle, Owner
from .cuda import CudaArray, DeviceMemory
from .errors import Status, error_of
from .model import ArraySpec, KvGroup, KvView, Model, ViewPlan
from .types import Block, DeviceKind, DType

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
    the daemon is gone; their contents are the caller's only while it holds the blocks. Only private
    blocks may be written. Any thread.
    """

    def __init__(self, model: Model, group: int, info: PoolInfo, pool_handle: Handle) -> None:
        """Raises IoError; StaleHandleError "connection_lost" (the pool is another by now)."""
        self._group = model.record.all_groups()[group]
        self._info = info
        self._plan = ViewPlan(self._group, model.record.layout(group), info.blocks)
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
        """The pool's; see PoolInfo."""
        return self._info.generation

    @property
    def device_kind(self) -> DeviceKind:
        return self._info.device_kind

    @property
    def dtype(self) -> DType:
        """The type of all elements; numpy shows bfloat16 as uint16 and float8 as uint8."""
        return self._group.dtype

    def layer(self, layer: int) -> KvView[npt.NDArray[Any]]:
        """K and V of one layer as numpy arrays, [blocks, tokens, heads, dim], strided.

        Raises InvalidArgumentError (no such layer), UnsupportedError (not host memory).
        """
        return KvView(self._numpy(self._plan.k(layer)), self._numpy(self._plan.v(layer)))

    def layer_scales(self, layer: int) -> KvView[npt.NDArray[np.float32]]:
        """The scales that lie beside the K and V of one layer, one for each token and head, as
        numpy arrays, float32 [blocks, tokens, heads], strided: of a record with scale_bytes=8.

        Raises as `layer`; also UnsupportedError "no_scales_by_token" (the record has others).
        """
        plan = self._plan.scales(layer)
        return KvView(self._numpy(plan.k, np.float32), self._numpy(plan.v, np.float32))

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

    def torch_scales(self, layer: int) -> KvView[torch.Tensor]:
        """`layer_scales` as torch tensors in place, on the CPU or on the pool's GPU: what
        `kernels.PagedKv` takes as key_scales and value_scales.

        Raises InvalidArgumentError, ImportError, UnsupportedError "no_scales_by_token".
        """
        import torch

        plan = self._plan.scales(layer)
        if self._gpu is None:
            arrays = self.layer_scales(layer)
            return KvView(torch.from_numpy(arrays.k), torch.from_numpy(arrays.v))
        device = torch.device("cuda", self._gpu.ordinal)
        k, v = self._gpu.array(plan.k, "<f4"), self._gpu.array(plan.v, "<f4")
        return KvView(torch.as_tensor(k, device=device), torch.as_tensor(v, device=device))

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

    def _numpy(self, spec: ArraySpec, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """None: of the dtype of the elements."""
        buffer = self._host_buffer()
        kind = self.dtype.numpy if dtype is None else dtype
        return np.ndarray(spec.shape, kind, buffer, spec.offset, spec.strides)

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


class AttachedPool(Owner):
    """The memory side of a Pool, which is what sequences and workspaces need of it. Any thread."""

    def __init__(self, handle: Handle, model: Model, group: int) -> None:
        super().__init__(handle)
        self._model = model
        self._group = group
        self._block_bytes = model.record.layout(group).block_stride
        self._memory_lock = threading.Lock()
        self._memory: PoolMemory | None = None

    @property
    def model(self) -> Model:
        return self._model

    @property
    def group(self) -> KvGroup:
        """The group of the model's layers whose blocks these are."""
        return self._model.record.all_groups()[self._group]

    def close(self) -> None:
        """Closes its sequences and gives back all that the connection holds in the pool, unless
        another Pool of it is attached to the same one; on a GPU once its last array is gone. Arrays
        made from it stay valid memory, whose contents are others' from now on: no thread and no
        kernel may write there. Not while another thread uses it. Idempotent."""
        self._handle.close()

    def info(self) -> PoolInfo:
        """The current attachment; attaches again after a reconnection. Without a daemon: the last
        one."""
        info = _library.sized(abi.kvt_pool_info)
        self._call("kvt_pool_get_info", ctypes.byref(info))
        return PoolInfo(
            base=info.base,
            bytes=info.bytes,
            block_bytes=info.block_bytes,
            blocks=info.blocks,
            block_tokens=info.block_tokens,
            generation=info.generation,
            attachment=info.attachment,
            fd=info.fd,
            device_kind=DeviceKind(info.device_kind),
        )

    def memory(self) -> PoolMemory:
        """The pool's memory as arrays.

        The same object until the daemon is replaced; afterwards arrays made from earlier objects
        show the old pool's memory, and new ones must be made. Raises IoError, UnsupportedError (GPU
        memory, and no driver here).
        """
        return self.memory_of(None)

    def layer(self, layer: int) -> KvView[npt.NDArray[Any]]:
        """K and V of one layer as numpy arrays in place: PoolMemory.layer of `memory()`."""
        return self.memory().layer(layer)

    def torch_layer(self, layer: int) -> KvView[torch.Tensor]:
        """K and V of one layer as torch tensors in place: PoolMemory.torch_layer of `memory()`."""
        return self.memory().torch_layer(layer)

    def read(self, block: Block, offset: int = 0, byte_count: int | None = None) -> bytes:
        """Copies a part of a block (None: all from `offset` on) to host memory, whatever the
        device, and waits for it. For tools and checks, not for the hot path.

        Raises StaleHandleError, InvalidArgumentError (outside the pool or the block), IoError,
        UnsupportedError (GPU memory, and no driver here).
        """
        if byte_count is None:
            byte_count = max(self._block_bytes - offset, 0)
        _native.unsigned(offset, 64, "offset")
        _native.unsigned(byte_count, 32, "byte_count")
        data = ctypes.create_string_buffer(byte_count)
        self._call("kvt_pool_read", abi.kvt_block(*block), offset, data, byte_count)
        return data.raw

    def write(self, block: Block, data: bytes, offset: int = 0) -> None:
        """Copies bytes into a private block, whatever the device, and waits for it. For tools and
        checks. Raises as `read`."""
        _native.unsigned(offset, 64, "offset")
        self._call("kvt_pool_write", abi.kvt_block(*block), offset, data, len(data))

    def unmap_device(self) -> None:
        """Gives a GPU pool's memory back, of all generations; without it a restarted daemon cannot
        have that memory while this process holds it. The pool of a restarted daemon can be mapped
        again. Does nothing for host memory.

        Raises WrongStateError "in_use" while tensors or other arrays over it live.
        """
        with self._memory_lock:
            self._handle.call_unpinned(self._library.kvt_pool_unmap_device)
            self._memory = None

    def memory_of(self, attachment: int | None) -> PoolMemory:
        """The memory of this attachment, which must be the latest; None: of the latest. Raises as
        `memory`; StaleHandleError if it is not."""
        with self._memory_lock:
            # Under the lock, since the thread that has it may close an earlier pool's descriptor.
            info = self.info()
            if attachment not in (None, info.attachment):
                raise error_of(Status.STALE_HANDLE, "connection_lost")
            if self._memory is None or self._memory.generation != info.generation:
                self._memory = PoolMemory(self._model, self._group, info, self._handle)
                if info.device_kind == DeviceKind.HOST:
                    # Arrays over an earlier pool have a mapping of their own.
                    self._library.kvt_pool_drop_stale_mappings(self._handle.get())
            return self._memory


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
