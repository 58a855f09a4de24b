# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for torch tensors on a GPU, for code that only asks about tensors."""

from __future__ import annotations

import math
from typing import Any

ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float32": 4, "int32": 4}
ITEM_SIZES.update({"int64": 8, "uint8": 1})


class FakeTensor:
    """Has the shape, strides (None: contiguous) and address of a tensor, and no elements."""

    def __init__(
        self,
        *shape: int,
        dtype: str = "bfloat16",
        strides: tuple[int, ...] | None = None,
        address: int = 0x7000_0000_0000,
        device: str = "cuda:0",
    ) -> None:
        self.shape = shape
        self.dtype = f"torch.{dtype}"
        self.device = device
        self.is_cuda = device.startswith("cuda")
        self._strides = contiguous(shape) if strides is None else strides
        self._address = address

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def data_ptr(self) -> int:
        return self._address

    def element_size(self) -> int:
        return ITEM_SIZES[self.dtype.removeprefix("torch.")]

    def numel(self) -> int:
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        return self._strides == contiguous(self.shape)

    def new_empty(self, shape: tuple[int, ...]) -> FakeTensor:
        return FakeTensor(*shape, dtype=self.dtype.removeprefix("torch."), address=0x7F00_0000_0000)

    def __getitem__(self, index: int) -> FakeTensor:
        assert isinstance(index, int)
        name = self.dtype.removeprefix("torch.")
        return FakeTensor(*self.shape[1:], dtype=name, strides=self._strides[1:])


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[Any] = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])
