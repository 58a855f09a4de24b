# SPDX-License-Identifier: Apache-2.0
"""Python values in the forms that C takes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from .errors import invalid

HASH_BYTES = 32

#: Token ids: any sequence of integers from 0 to 2**32 - 1; arrays of uint32 are used as they are.
Tokens = Union[Sequence[int], "npt.NDArray[Any]"]
#: Block hashes: 32 bytes each, or all of them in one bytes object.
Hashes = Union[bytes, Iterable[bytes]]


def token_array(tokens: Tokens) -> npt.NDArray[np.uint32]:
    """`tokens` as uint32 [count], copied only if need be. Raises InvalidArgumentError."""
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise invalid("bad_tokens", f"{array.ndim} dimensions instead of 1")
    if array.size == 0:
        return np.zeros(0, dtype=np.uint32)
    if array.dtype != np.uint32:
        if array.dtype.kind not in "iu":
            raise invalid("bad_tokens", f"{array.dtype} instead of integers")
        if array.min() < 0 or array.max() > 0xFFFFFFFF:
            raise invalid("bad_tokens", f"{array.min()} to {array.max()}, 0 to 2**32 - 1 can be")
    return np.ascontiguousarray(array, dtype=np.uint32)


def hash_bytes(hashes: Hashes) -> bytes:
    """All hashes one behind the other. Raises InvalidArgumentError unless each has 32 bytes."""
    if isinstance(hashes, (bytes, bytearray, memoryview)):
        joined = bytes(hashes)
        if len(joined) % HASH_BYTES != 0:
            raise invalid("bad_hash", f"{len(joined)} bytes are not a multiple of {HASH_BYTES}")
        return joined
    return b"".join([one_hash(value) for value in hashes])


def one_hash(value: bytes) -> bytes:
    """One hash. Raises InvalidArgumentError unless it has 32 bytes."""
    if len(value) != HASH_BYTES:
        raise invalid("bad_hash", f"{len(value)} bytes instead of {HASH_BYTES}")
    return value


def split_hashes(joined: bytes) -> list[bytes]:
    return [joined[i : i + HASH_BYTES] for i in range(0, len(joined), HASH_BYTES)]


def text(value: str | None, what: str) -> bytes | None:
    """UTF-8 for a C string. Raises InvalidArgumentError for NUL, which would cut it there."""
    if value is None:
        return None
    if "\0" in value:
        raise invalid("nul_in_text", what)
    return value.encode("utf-8")


def unsigned(value: int, bits: int, what: str) -> int:
    """`value`, which C takes with so many bits. Raises InvalidArgumentError: ctypes would cut it
    instead."""
    if not 0 <= value < 1 << bits:
        raise invalid(f"bad_{what}", str(value))
    return value


def address(array: npt.NDArray[Any]) -> int | None:
    """Of an array's first element; None if it has none."""
    return array.ctypes.data if array.size else None


def timeout(timeout_ms: int | None) -> int:
    """None is the connection's default. Raises InvalidArgumentError."""
    if timeout_ms is None:
        return -1
    return unsigned(timeout_ms, 63, "timeout_ms")


def pointer(data: bytes) -> int | None:
    """Address of bytes that are only read, for a struct's field; the caller keeps `data`."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value if data else None
