# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache on a GPU as memory that the daemon can open, and the order of its kernels.

The memory is whatever torch allocated: the daemon opens it by its CUDA IPC handle. What the daemon
copies is not ordered behind the engine's kernels by itself, so a transfer is begun only when the
kernels that were launched before it have ended.
"""

from __future__ import annotations

import collections
import ctypes
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..regions import RegionMemory

_IPC_HANDLE_BYTES = 64


class GpuMemory:
    """The allocation that holds a tensor. Made in the process that allocated it; keeps the tensor.

    Raises OSError if the driver cannot share it, as it cannot with memory from torch's expandable
    segments.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        start = tensor.untyped_storage().data_ptr()
        driver = ctypes.CDLL("libcuda.so.1")
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        _check(
            driver.cuMemGetAddressRange_v2(
                ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(start)
            ),
            "cuMemGetAddressRange",
        )
        handle = (ctypes.c_char * _IPC_HANDLE_BYTES)()
        _check(driver.cuIpcGetMemHandle(handle, base), "cuIpcGetMemHandle")
        self._handle = bytes(handle)
        self._bytes = size.value
        # Of the tensor in the allocation.
        self._offset = start - base.value
        self._uuid = gpu_uuid(tensor.device)

    def arguments(self, pieces: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        """What `attach_regions` needs for a region in the tensor's storage."""
        return {
            "memory": RegionMemory.CUDA_IPC,
            "ipc_handle": self._handle,
            "bytes": self._bytes,
            "pieces": [(self._offset + at, stride, size) for at, stride, size in pieces],
            "gpu_uuid": self._uuid,
        }


def gpu_uuid(device: torch.device) -> uuid.UUID:
    """The same in every process."""
    return uuid.UUID(str(torch.cuda.get_device_properties(device).uuid))


class AfterKernels:
    """Work that is begun, in the order in which it was added, once the kernels have ended that had
    been launched on the current stream when it was added. Of the worker's thread."""

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[Any, Callable[[], None]]] = collections.deque()

    def add(self, begin: Callable[[], None]) -> None:
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((event, begin))

    def begin_ready(self) -> None:
        """Never waits."""
        while self._waiting and self._waiting[0][0].query():
            self._waiting.popleft()[1]()


class StepTimer:
    """How long the kernels of steps take. Of the worker's thread; never waits."""

    def __init__(self) -> None:
        self._begun: tuple[int, Any] | None = None
        self._launched: collections.deque[tuple[int, Any, Any]] = collections.deque()

    def begin(self, tokens: int) -> None:
        """Before the kernels of a step with so many tokens are launched."""
        self._begun = (tokens, _recorded())

    def end(self) -> list[tuple[int, float]]:
        """After they were launched. The tokens and seconds of the steps that have ended."""
        if self._begun is not None:
            self._launched.append((*self._begun, _recorded()))
            self._begun = None
        ended = []
        while self._launched and self._launched[0][2].query():
            tokens, first, last = self._launched.popleft()
            ended.append((tokens, first.elapsed_time(last) / 1000))
        return ended


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _check(code: int, what: str) -> None:
    if code != 0:
        raise OSError(f"{what} failed with CUDA error {code}")
