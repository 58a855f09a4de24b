# SPDX-License-Identifier: Apache-2.0
"""Memory that torch allocated on a GPU as a region's: the daemon opens it by its CUDA IPC handle.
The daemon's copies are not ordered behind the engine's kernels by themselves."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .connection import Connection
from .errors import invalid
from .regions import RegionMemory

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
        # The tensor's offset in the allocation.
        self._offset = start - base.value
        self._uuid = gpu_uuid(tensor.device)

    def arguments(self, pieces: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        """The memory for `region_arguments`, for a region in the tensor's storage."""
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


def region_arguments(connection: Connection, memory: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of Connection.open_region, where `memory` may have a GPU's `gpu_uuid` instead
    of `device`. One round trip then. Raises InvalidArgumentError "unknown_gpu"."""
    arguments = dict(memory)
    uuid_of_gpu = arguments.pop("gpu_uuid", None)
    if uuid_of_gpu is not None:
        known = [device.uuid for device in connection.devices()]
        if uuid_of_gpu not in known:
            raise invalid(
                "unknown_gpu",
                f"the daemon does not serve the GPU {uuid_of_gpu}: set its pool.device to "
                '"all", or name that GPU there; kvtierd --version tells whether it was built '
                "with CUDA",
            )
        arguments["device"] = known.index(uuid_of_gpu)
    return arguments


def _check(code: int, what: str) -> None:
    if code != 0:
        raise OSError(f"{what} failed with CUDA error {code}")
