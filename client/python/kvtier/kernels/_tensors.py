# SPDX-License-Identifier: Apache-2.0
"""A tensor's description for the kernels, and the checks before it.

Only attributes and methods that every torch version has are used, so that nothing here imports it.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from ..errors import Status, UnsupportedError, invalid
from ._launch import abi

if TYPE_CHECKING:
    import torch

#: Sizes that a tensor must have; None: any.
Shape = Sequence[Optional[int]]

# Bytes that pointers and strides are multiples of.
ALIGNMENT_BYTES = 16

_NEEDED_DEVICE = (
    "a GPU: the kernels are built for CUDA (compute capability 8.0 and later, MLA for Hopper's 9.0)"
)


SIXTEEN_BIT = ("bfloat16", "float16")
# The numbers of kvt_dtype.
_NUMBERS: dict[str, int] = {
    "bfloat16": abi.KVT_BF16,
    "float16": abi.KVT_FP16,
    "float8_e4m3fn": abi.KVT_FP8_E4M3,
    "float32": abi.KVT_FP32,
}


def dtype_name(tensor: torch.Tensor) -> str:
    """ "bfloat16" and the like."""
    return _name(tensor.dtype)


# Calls are made for each layer of each step, and texts are slow.
@functools.cache
def _name(dtype: object) -> str:
    return str(dtype).rpartition(".")[2]


def dtype_number(tensor: torch.Tensor) -> int:
    """The number of the dtype of a tensor whose dtype was checked."""
    return _NUMBERS[dtype_name(tensor)]


def check(
    tensor: torch.Tensor,
    name: str,
    shape: Shape,
    dtypes: Sequence[str],
    beside: torch.Tensor | None = None,
) -> None:
    """Raises InvalidArgumentError "bad_NAME" unless `tensor` is on a GPU (on that of `beside`), of
    one of the dtypes and of the shape."""
    sizes = tuple(tensor.shape)
    fits = sizes == shape or (
        len(sizes) == len(shape)
        and all(wanted is None or size == wanted for size, wanted in zip(sizes, shape))
    )
    there = tensor.is_cuda and (beside is None or tensor.device == beside.device)
    if fits and there and dtype_name(tensor) in dtypes:
        return
    wanted_shape = ", ".join("any" if size is None else str(size) for size in shape)
    device = _NEEDED_DEVICE if beside is None or not beside.is_cuda else beside.device
    raise invalid(
        f"bad_{name}",
        f"{name} is {dtype_name(tensor)} {list(sizes)} on {tensor.device}, "
        f"not {' or '.join(dtypes)} [{wanted_shape}] on {device}",
    )


def check_device(tensor: torch.Tensor, name: str) -> None:
    """Raises InvalidArgumentError "bad_NAME" unless `tensor` is on a GPU; before its device is
    made the current one."""
    if not tensor.is_cuda:
        raise invalid(f"bad_{name}", f"{name} is on {tensor.device}, not on {_NEEDED_DEVICE}")


def check_list(
    tensor: torch.Tensor, name: str, size: int, dtype: str, beside: torch.Tensor
) -> None:
    """As `check`, for a contiguous list of `size` elements."""
    check(tensor, name, (size,), (dtype,), beside)
    if tensor.shape[0] > 1 and tensor.stride()[0] != 1:
        raise invalid(f"bad_{name}", f"{name} is not contiguous: stride {tensor.stride()[0]}")


def check_lse(lse: torch.Tensor | None, rows: int, heads: int, beside: torch.Tensor) -> None:
    """Raises InvalidArgumentError unless it is None or float32 [rows, heads], contiguous."""
    if lse is None:
        return
    check(lse, "lse", (rows, heads), ("float32",), beside)
    if not lse.is_contiguous():
        raise invalid("bad_lse", "it is not contiguous")


def strides(tensor: torch.Tensor, name: str) -> tuple[int, ...]:
    """Strides in elements, those of dimensions of size 1, which say nothing, as if contiguous.

    Raises InvalidArgumentError "bad_NAME" unless the innermost dimension is contiguous, and the
    address and all other strides are positive multiples of 16 bytes.
    """
    sizes, result = tuple(tensor.shape), tuple(tensor.stride())
    if 1 in sizes:
        result = _without_dimensions_of_one(sizes, result)
    if result[-1] != 1:
        raise invalid(f"bad_{name}", f"{name}'s last dimension is not contiguous: {result}")
    size = tensor.element_size()
    for stride in result[:-1]:
        if stride <= 0 or stride * size % ALIGNMENT_BYTES != 0:
            in_bytes = [stride * size for stride in result[:-1]]
            raise invalid(
                f"bad_{name}", f"{name}'s strides are {in_bytes} bytes, not multiples of 16"
            )
    if tensor.data_ptr() % ALIGNMENT_BYTES != 0:
        raise invalid(f"bad_{name}", f"{name} starts at {tensor.data_ptr():#x}, not aligned to 16")
    return result


def _without_dimensions_of_one(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in such dimensions as if all within were contiguous."""
    result = list(strides)
    for i in reversed(range(len(sizes))):
        if sizes[i] == 1:
            result[i] = 1 if i == len(sizes) - 1 else result[i + 1] * sizes[i + 1]
    return tuple(result)


def real(value: float, name: str, *, zero: bool = False) -> float:
    """`value`, for a float32. Raises InvalidArgumentError "bad_NAME" unless it is finite and above
    0, or 0 where `zero` says that 0 can be."""
    as_float32 = ctypes.c_float(value).value
    if not (as_float32 > 0 or zero and as_float32 == 0) or math.isinf(as_float32):
        allowed = "0 or a finite number above it" if zero else "a finite number above 0"
        raise invalid(f"bad_{name}", f"{name} is {value}, not {allowed}")
    return value


def split(tokens: int) -> int:
    """`tokens` of split_tokens. Raises InvalidArgumentError "bad_split_tokens"."""
    least: int = abi.KVT_DECODE_MIN_SPLIT
    if tokens != 0 and (tokens < least or tokens & (tokens - 1) != 0):
        raise invalid(
            "bad_split_tokens", f"split_tokens is {tokens}, not 0 or a power of two from {least} on"
        )
    return whole(tokens, "split_tokens")


def unsupported(field: str, given: object, built: str) -> UnsupportedError:
    """For a value that makes sense, but that no kernel is built for: reason
    "unsupported_FIELD"."""
    return UnsupportedError(
        Status.UNSUPPORTED, f"unsupported_{field}", f"{field} is {given}, built: {built}"
    )


def address(tensor: torch.Tensor | None) -> int | None:
    """The address of the first element; None for no tensor."""
    return None if tensor is None else tensor.data_ptr()


def whole(value: int, name: str, low: int = 0, high: int = 2**31 - 1) -> int:
    """`value`, for an int32. Raises InvalidArgumentError "bad_NAME"."""
    if not low <= value <= high:
        raise invalid(f"bad_{name}", f"{value}, {low} to {high} can be")
    return value
