# SPDX-License-Identifier: Apache-2.0
"""Calls into libkvtier_kernels: device and stream, workspace, and what a status means."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import Status, error_of
from . import _abi, _library
from .workspace import Workspace

if TYPE_CHECKING:
    import torch

_STATUS = {
    _abi.INVALID_ARGUMENT: Status.INVALID_ARGUMENT,
    _abi.UNSUPPORTED: Status.UNSUPPORTED,
    _abi.WORKSPACE_TOO_SMALL: Status.RESOURCE_EXHAUSTED,
    _abi.LAUNCH_FAILED: Status.INTERNAL,
}


@contextlib.contextmanager
def on_device(tensor: torch.Tensor, stream: torch.cuda.Stream | None) -> Iterator[int]:
    """Makes the device of `tensor` and `stream` (None: as it is) the current ones, so that what is
    allocated within belongs to that stream, which is yielded as C takes it."""
    import torch

    if stream is None and tensor.device.index == torch.cuda.current_device():
        yield torch.cuda.current_stream().cuda_stream
        return
    with torch.cuda.device(tensor.device), torch.cuda.stream(stream):
        yield torch.cuda.current_stream().cuda_stream


def check(name: str, status: int) -> None:
    """Raises unless the kernel was queued: InvalidArgumentError, UnsupportedError (no such kernel
    is built, or not for this device), InternalError (CUDA refused)."""
    if status != _abi.OK:
        text: bytes = _library.load().kvt_kernel_status_text(status)
        kind = _STATUS.get(status, Status.INTERNAL)
        raise error_of(kind, "kernel_refused", f"{name}: {text.decode()}")


def workspace_bytes(name: str, params: Any) -> int:
    """What `name` needs for these parameters on the current device. Raises UnsupportedError."""
    query = getattr(_library.load(), f"{name}_workspace_bytes")
    needed: int = query(ctypes.byref(params))
    if needed == 0:
        check(name, _abi.UNSUPPORTED)
    return needed


def launch(name: str, params: Any, stream: int, *more: Any) -> None:
    """Queues `name`(params, more.., stream). Raises as `check`."""
    check(name, getattr(_library.load(), name)(ctypes.byref(params), *more, stream))


def launch_with_workspace(
    name: str,
    params: Any,
    stream: int,
    workspace: Workspace | None,
    beside: torch.Tensor,
    shape: tuple[int, ...] = (),
) -> None:
    """As `launch`, with the workspace that the parameters need, on the device of `beside`; None:
    one for this call. See Workspace.memory for `shape`."""
    needed = workspace_bytes(name, params)
    memory = (workspace or Workspace()).memory(name, needed, beside, shape)
    launch(name, params, stream, memory.data_ptr(), memory.numel())
