# SPDX-License-Identifier: Apache-2.0
"""Calls into libkvtier_kernels: the library, device and stream, workspace, and what a status
means."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _library as client_library
from .._cheader import Header
from ..errors import Status, error_of

if TYPE_CHECKING:
    import torch

LIBRARY_VARIABLE = "KVTIER_KERNELS_LIBRARY"
LIBRARY_NAME = "libkvtier_kernels.so"

#: Structures, constants and functions of the kernels' headers, by their names in C.
abi = Header(pathlib.Path(__file__).resolve().parent / "include" / "kernel_table.h")

_STATUS = {
    abi.KVT_KERNEL_INVALID_ARGUMENT: Status.INVALID_ARGUMENT,
    abi.KVT_KERNEL_UNSUPPORTED: Status.UNSUPPORTED,
    abi.KVT_KERNEL_WORKSPACE_TOO_SMALL: Status.RESOURCE_EXHAUSTED,
    abi.KVT_KERNEL_OUT_OF_MEMORY: Status.RESOURCE_EXHAUSTED,
    abi.KVT_KERNEL_LAUNCH_FAILED: Status.INTERNAL,
}


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with all functions declared; loaded by the first call. Any thread.

    Looked for at $KVTIER_KERNELS_LIBRARY (and then nowhere else), beside this package, beside
    $KVTIER_LIBRARY, and where the dynamic linker finds it.

    Raises LibraryNotFoundError, also if it is of another version.
    """
    library = client_library.load_first(
        _candidates(), abi, "libkvtier_kernels", LIBRARY_VARIABLE
    )
    check_version(library)
    return library


def check_version(library: Any) -> None:
    """Raises LibraryNotFoundError if the library's structures are laid out otherwise than here."""
    version = abi.KVT_KERNELS_ABI
    pointer = library.kvt_kernels_table(version)
    if not pointer:
        raise client_library.LibraryNotFoundError(
            f"{library._name} does not have version {version} of its interface"
        )
    table = pointer.contents
    sizes = {"kvt_kernel_table": table.table_bytes}
    for name, _ in table._fields_:
        if name.endswith("_params_bytes"):
            sizes["kvt_" + name[: -len("_bytes")]] = getattr(table, name)
    for name, size in sizes.items():
        here = ctypes.sizeof(abi.structures[name])
        if size != here:
            raise client_library.LibraryNotFoundError(
                f"{library._name}: {name} has {size} bytes there and {here} here"
            )


def _candidates() -> list[str]:
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        # A library that is named must not be replaced by another in silence.
        return [named]
    beside = [pathlib.Path(__file__).resolve().parent.parent]
    client = os.environ.get(client_library.LIBRARY_VARIABLE)
    if client:
        # A build leaves both libraries in one directory.
        beside.append(pathlib.Path(client).parent)
    paths = [directory / LIBRARY_NAME for directory in beside]
    return [str(path) for path in paths if path.exists()] + [LIBRARY_NAME]


@dataclass
class _Part:
    memory: torch.Tensor
    shape: tuple[int, ...]


class Workspace:
    """Device memory for `decode`, `decode_shared`, `mla_decode` and `prefill`, kept from call to
    call; it grows as they need it, until it is dropped.

    One serves one stream at a time, any number of layers and steps one after another. A captured
    CUDA graph holds on to the memory it was captured with: use the workspace for nothing else while
    the graph lives, after a first call with the largest lengths. One thread at a time.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, Any], _Part] = {}

    @property
    def byte_count(self) -> int:
        """Held now, on all devices."""
        return sum(part.memory.numel() for part in self._parts.values())

    def memory(
        self, kernel: str, byte_count: int, beside: torch.Tensor, shape: tuple[int, ...] = ()
    ) -> torch.Tensor:
        """uint8 [at least byte_count] on the device of `beside`, fit for `kernel`: zero at first,
        and again when `shape` differs from the last call's. On the current stream."""
        import torch

        key = (kernel, beside.device)
        part = self._parts.get(key)
        if part is None or part.memory.numel() < byte_count:
            memory = torch.zeros(byte_count, dtype=torch.uint8, device=beside.device)
            part = self._parts[key] = _Part(memory, shape)
        elif part.shape != shape:
            part.memory.zero_()
            part.shape = shape
        return part.memory


@contextlib.contextmanager
def on_device(tensor: torch.Tensor, stream: torch.cuda.Stream | None) -> Iterator[int]:
    """Makes the device of `tensor` and `stream` (None: as it is) the current ones, so that memory
    allocated within belongs to that stream, which is yielded as C takes it."""
    import torch

    if stream is None and tensor.device.index == torch.cuda.current_device():
        yield torch.cuda.current_stream().cuda_stream
        return
    with torch.cuda.device(tensor.device), torch.cuda.stream(stream):
        yield torch.cuda.current_stream().cuda_stream


# Refusals for which the library says which field it objected to, and what can be.
_DETAILED = (
    abi.KVT_KERNEL_INVALID_ARGUMENT,
    abi.KVT_KERNEL_UNSUPPORTED,
    abi.KVT_KERNEL_WORKSPACE_TOO_SMALL,
)


def _detail() -> str:
    """The objection of this thread's last refused call."""
    detail: bytes = load().kvt_kernel_last_error_detail()
    return detail.decode()


def check(name: str, status: int, detail: str | None = None) -> None:
    """Raises unless the kernel was queued: InvalidArgumentError, UnsupportedError (no such kernel
    is built, or not for this device), InternalError (CUDA refused). The text names the library's
    objection; `detail` is that of an earlier call."""
    if status != abi.KVT_KERNEL_OK:
        text: str = load().kvt_kernel_status_text(status).decode()
        if status in _DETAILED:
            detail = detail or _detail()
            text += f": {detail}" if detail else ""
        kind = _STATUS.get(status, Status.INTERNAL)
        if kind == Status.UNSUPPORTED:
            text += f"; {_device_text()}"
        raise error_of(kind, "kernel_refused", f"{name}: {text}")


def _device_text() -> str:
    """The device that this process computes on, and those that the kernels are built for."""
    torch = sys.modules.get("torch")
    found = "no GPU"
    if torch is not None and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        found = f"{torch.cuda.get_device_name()} of compute capability {major}.{minor}"
    return f"the device is {found}; kernels are built for 8.0 and later, MLA for 9.0 (Hopper)"


def workspace_bytes(name: str, params: Any, stream: int) -> int:
    """The workspace bytes that `name` needs for these parameters on the current device. Raises as
    `check`."""
    query = getattr(load(), f"{name}_workspace_bytes")
    needed: int = query(ctypes.byref(params))
    if needed == 0:
        # The size says only that they are refused; the call, which cannot run so, says how. The
        # call itself may object to the workspace that it was not given.
        detail = _detail()
        status = getattr(load(), name)(ctypes.byref(params), None, 0, stream)
        refused = status in (abi.KVT_KERNEL_INVALID_ARGUMENT, abi.KVT_KERNEL_LAUNCH_FAILED)
        check(name, status if refused else abi.KVT_KERNEL_UNSUPPORTED, detail)
    return needed


def launch(name: str, params: Any, stream: int, *more: Any) -> None:
    """Queues `name`(params, more.., stream). Raises as `check`."""
    check(name, getattr(load(), name)(ctypes.byref(params), *more, stream))


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
    needed = workspace_bytes(name, params, stream)
    memory = (workspace or Workspace()).memory(name, needed, beside, shape)
    launch(name, params, stream, memory.data_ptr(), memory.numel())
