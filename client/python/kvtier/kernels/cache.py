# SPDX-License-Identifier: Apache-2.0
"""The input of attention: one layer of a paged KV cache, and which blocks of it a sequence uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import invalid
from . import _tensors
from ._launch import abi

if TYPE_CHECKING:
    import torch

_CACHE_DTYPES = ("bfloat16", "float16", "float8_e4m3fn")
_LEAST_PAGE, _LARGEST_PAGE = 16, 256


class PagedKv:
    """One layer of a paged KV cache in place, for the kernels of this package.

    key, value: [blocks, page_tokens, kv_heads, head_dim], bfloat16, float16 or float8_e4m3fn, of
    equal strides; `pool.torch_layer(i)` has them. page_tokens: a power of two from 16 to 256.

    key_scales, value_scales: the factors that turn a float8 cache's values into the real ones,
    float32: one value, or [kv_heads], or [blocks, page_tokens, kv_heads]. None: 1.

    Make it once for each layer and use it for every step. Raises InvalidArgumentError.
    """

    def __init__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_scales: torch.Tensor | None = None,
        value_scales: torch.Tensor | None = None,
    ) -> None:
        _tensors.check(key, "key", (None,) * 4, _CACHE_DTYPES)
        self.key = key
        self.value = value
        # The kernels are given their addresses.
        self.key_scales = key_scales
        self.value_scales = value_scales
        blocks, page_tokens, kv_heads, head_dim = key.shape
        check_page(page_tokens, "key")
        strides = _tensors.strides(key, "key")
        _tensors.check(value, "value", tuple(key.shape), (_tensors.dtype_name(key),), key)
        if _tensors.strides(value, "value") != strides:
            raise invalid("bad_value", f"strides {tuple(value.stride())}, those of key: {strides}")
        self.abi = abi.kvt_paged_kv(
            key=key.data_ptr(),
            value=value.data_ptr(),
            dtype=_tensors.dtype_number(key),
            kv_heads=kv_heads,
            head_dim=head_dim,
            page_tokens=page_tokens,
            block_stride=strides[0],
            token_stride=strides[1],
            head_stride=strides[2],
            key_scales=self._scales(key_scales, "key_scales"),
            value_scales=self._scales(value_scales, "value_scales"),
        )

    @property
    def kv_heads(self) -> int:
        return int(self.key.shape[2])

    @property
    def head_dim(self) -> int:
        return int(self.key.shape[3])

    @property
    def page_tokens(self) -> int:
        return int(self.key.shape[1])

    @property
    def is_fp8(self) -> bool:
        return _tensors.dtype_name(self.key) == "float8_e4m3fn"

    @property
    def has_scales_by_token(self) -> bool:
        """Whether keys and values have a scale for each token and head."""
        both = (self.key_scales, self.value_scales)
        return all(scales is not None and len(scales.shape) == 3 for scales in both)

    def _scales(self, scales: torch.Tensor | None, name: str) -> Any:
        if scales is None:
            return abi.kvt_scales()
        if not self.is_fp8:
            raise invalid(f"bad_{name}", f"scales for a {_tensors.dtype_name(self.key)} cache")
        blocks, page_tokens, kv_heads, _ = self.key.shape
        shapes: dict[int, tuple[int, ...]] = {1: (kv_heads,), 3: (blocks, page_tokens, kv_heads)}
        dimensions = len(scales.shape)
        if scales.numel() == 1 and dimensions < 2:
            _tensors.check(scales, name, tuple(scales.shape), ("float32",), self.key)
            return abi.kvt_scales(values=scales.data_ptr())
        if dimensions not in shapes:
            raise invalid(f"bad_{name}", f"{dimensions} dimensions, 0, 1 or 3 can be")
        _tensors.check(scales, name, shapes[dimensions], ("float32",), self.key)
        block, token, head = ((0, 0) + tuple(scales.stride()))[-3:]
        return abi.kvt_scales(scales.data_ptr(), block, token, head)


class SequenceTables:
    """Which blocks each sequence of a batch uses, and how many cached tokens it has.

    block_table: int32 [sequences, entries]; entry i of a row is the block of tokens
        [i * page_tokens, (i + 1) * page_tokens); entries past the length are not read.
    kv_lengths: int32 [sequences], the step's own tokens included; 0: an empty sequence.
    max_kv_length: no length is larger; kernels plan for it. None: as many as a row can name.

    The tensors are read on the device when the work runs. Raises InvalidArgumentError.
    """

    def __init__(
        self,
        block_table: torch.Tensor,
        kv_lengths: torch.Tensor,
        max_kv_length: int | None = None,
    ) -> None:
        _tensors.check(block_table, "block_table", (None, None), ("int32",))
        sequences, entries = block_table.shape
        _tensors.check_list(kv_lengths, "kv_lengths", sequences, "int32", block_table)
        if entries > 1 and block_table.stride()[1] != 1:
            raise invalid("bad_block_table", "its rows are not contiguous")
        self.block_table = block_table
        self.kv_lengths = kv_lengths
        self.max_kv_length = max_kv_length
        # For a cache's pages and device; the layers of a step are all alike.
        self._abi: dict[tuple[int, object], Any] = {}

    def __len__(self) -> int:
        """Sequences."""
        return int(self.block_table.shape[0])

    def abi(self, page_tokens: int, device: object) -> Any:
        """For C, with such a cache. Raises InvalidArgumentError (rows too short for max_kv_length;
        the cache is on another device)."""
        kind = (page_tokens, device)
        if kind not in self._abi:
            self._abi[kind] = self._describe(*kind)
        return self._abi[kind]

    def _describe(self, page_tokens: int, device: object) -> Any:
        if self.block_table.device != device:
            raise invalid("bad_block_table", f"on {self.block_table.device}, the cache on {device}")
        most = self.block_table.shape[1] * page_tokens
        longest = most if self.max_kv_length is None else self.max_kv_length
        return abi.kvt_sequences(
            block_table=self.block_table.data_ptr(),
            kv_lengths=self.kv_lengths.data_ptr(),
            table_stride=self.block_table.stride()[0],
            sequences=len(self),
            max_kv_length=_tensors.whole(longest, "max_kv_length", 0, most),
        )


def check_page(tokens: int, name: str) -> None:
    """Raises InvalidArgumentError unless pages can have so many tokens."""
    if not _LEAST_PAGE <= tokens <= _LARGEST_PAGE or tokens & (tokens - 1) != 0:
        raise invalid(f"bad_{name}", f"pages of {tokens} tokens, not 16, 32, 64, 128 or 256")
