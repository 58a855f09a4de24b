# SPDX-License-Identifier: Apache-2.0
"""Whole blocks in a GPU's memory: copies between layouts, fills, checksums; and the merge of
partial attention results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import invalid
from . import _launch, _tensors
from ._launch import abi

if TYPE_CHECKING:
    import torch

_KEY_AND_VALUE = 2
_CHECKSUM_BYTES = 16
_MERGED_DTYPES = ("float32", "bfloat16", "float16")
_MERGE_STEP = 8


class LayerTensors:
    """A KV cache of one key and one value tensor for each layer, as many engines have it.

    layers: (key, value) for each, all [blocks, tokens, heads, dim] of one dtype, on one GPU and of
    equal strides; heads and tokens may be swapped in memory. Make it once: the addresses are copied
    to the GPU. Raises InvalidArgumentError.
    """

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        import torch

        if not layers:
            raise invalid("bad_layers", "there is none")
        self.layers = list(layers)
        first = self.layers[0][0]
        _tensors.check(first, "layers", (None,) * 4, None)
        self.strides = _tensors.strides(first, "layers")
        for tensor in (tensor for layer in self.layers for tensor in layer):
            names = (_tensors.dtype_name(first),)
            _tensors.check(tensor, "layers", tuple(first.shape), names, first)
            if _tensors.strides(tensor, "layers") != self.strides:
                raise invalid("bad_layers", "their strides differ")
        addresses = [tensor.data_ptr() for layer in self.layers for tensor in layer]
        self.bases = torch.tensor(addresses, dtype=torch.int64, device=first.device)


class _Side(NamedTuple):
    """One end of a copy."""

    layout: Any
    beside: torch.Tensor
    shape: tuple[int, ...]  # layers, tokens, heads, dim
    blocks: int


def copy_blocks(
    source: torch.Tensor | LayerTensors,
    destination: torch.Tensor | LayerTensors,
    source_blocks: torch.Tensor | None = None,
    destination_blocks: torch.Tensor | None = None,
    *,
    blocks: int | None = None,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Copies block source_blocks[i] of one cache to block destination_blocks[i] of another, or of
    the same: copy-on-write, a gather from the pool into an engine's tensors, a scatter back.

    source, destination: all layers of a cache, [blocks, layers, 2, tokens, heads, dim] as
        `pool.memory().torch_blocks()` has them, or LayerTensors; of one dtype, the rows of a head a
        multiple of 16 bytes.
    source_blocks, destination_blocks: int32 [blocks]; None: 0, 1, 2, ..; a pair with a negative
        number is skipped. No destination may overlap another or a source.
    blocks: how many; None: as many as the lists have, or without lists as the smaller cache has.

    Raises InvalidArgumentError, UnsupportedError.
    """
    here, there = _side(source, "source"), _side(destination, "destination")
    if here.shape != there.shape or here.beside.dtype != there.beside.dtype:
        raise invalid(
            "bad_destination",
            f"blocks of {there.beside.dtype} {there.shape}, those of source: "
            f"{here.beside.dtype} {here.shape}",
        )
    lists = (("source_blocks", source_blocks), ("destination_blocks", destination_blocks))
    counts = {_list_size(ids, name, here.beside) for name, ids in lists if ids is not None}
    if len(counts) > 1:
        raise invalid("bad_destination_blocks", f"the lists have {sorted(counts)} entries")
    most = counts.pop() if counts else min(here.blocks, there.blocks)
    count = most if blocks is None else _tensors.whole(blocks, "blocks", 0, most)
    layers, tokens, heads, dim = here.shape
    params = abi.kvt_copy_blocks_params(
        here.layout,
        there.layout,
        _tensors.address(source_blocks),
        _tensors.address(destination_blocks),
        count,
        layers,
        tokens,
        heads,
        dim * here.beside.element_size(),
    )
    with _launch.on_device(here.beside, stream) as handle:
        if count > 0:
            _launch.launch("kvt_copy_blocks", params, handle)


def fill_blocks(
    blocks: torch.Tensor,
    pattern: int,
    block_ids: torch.Tensor | None = None,
    *,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Fills blocks with a repeated 32-bit pattern.

    blocks: [blocks, ..], each block contiguous, of a multiple of 16 bytes. pattern: 0 to 2**32 - 1.
    block_ids: int32 [any]; None: all; negative ones are skipped. Raises InvalidArgumentError.
    """
    _tensors.whole(pattern, "pattern", 0, 2**32 - 1)
    params = _block_list(blocks, block_ids)
    with _launch.on_device(blocks, stream) as handle:
        if params.blocks > 0:
            _launch.launch("kvt_fill_blocks", params, handle, pattern)


def checksum_blocks(
    blocks: torch.Tensor,
    block_ids: torch.Tensor | None = None,
    *,
    output: torch.Tensor | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Canonical xxh3-128 of each block's bytes, uint8 [count, 16]: the value of
    CommitEntry.checksum, and of the tiers below.

    blocks: [blocks, ..], each block contiguous, of a multiple of 64 bytes, 256 at least.
    block_ids: int32 [count]; None: all; of negative ones the output is left as it was (0 if it is
        made here). Raises InvalidArgumentError.
    """
    params = _block_list(blocks, block_ids)
    with _launch.on_device(blocks, stream) as handle:
        shape = (params.blocks, _CHECKSUM_BYTES)
        if output is None:
            import torch

            output = torch.zeros(shape, dtype=torch.uint8, device=blocks.device)
        _tensors.check(output, "output", shape, ("uint8",), blocks)
        if not output.is_contiguous():
            raise invalid("bad_output", "it is not contiguous")
        if params.blocks > 0:
            _launch.launch("kvt_checksum_blocks", params, handle, output.data_ptr())
    return output


def merge_lse(
    partials: torch.Tensor,
    partial_lse: torch.Tensor,
    output: torch.Tensor,
    *,
    lse: torch.Tensor | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Merges partial attention results over disjoint sets of keys into the one over all of them.
    Returns output.

    partials: [parts, tokens, heads, dim], a part contiguous; output: [tokens, heads, dim]; both
        float32, bfloat16 or float16; dim a multiple of 8.
    partial_lse: float32 [parts, tokens, heads], a part contiguous, natural logarithm; -inf: the
        part is ignored.
    lse: float32 [tokens, heads], contiguous, written if given.

    Raises InvalidArgumentError.
    """
    _tensors.check(partials, "partials", (None,) * 4, _MERGED_DTYPES)
    parts, tokens, heads, dim = partials.shape
    _tensors.check(partial_lse, "partial_lse", (parts, tokens, heads), ("float32",), partials)
    _tensors.check(output, "output", (tokens, heads, dim), _MERGED_DTYPES, partials)
    if parts == 0 or dim % _MERGE_STEP != 0:
        raise invalid("bad_partials", f"{parts} parts of rows of {dim}")
    if not (partials[0].is_contiguous() and partial_lse[0].is_contiguous()):
        raise invalid("bad_partials", "a part is not contiguous")
    _tensors.check_lse(lse, tokens, heads, partials)
    strides = _tensors.strides(output, "output")
    params = abi.kvt_merge_lse_params(
        partials=partials.data_ptr(),
        partial_lse=partial_lse.data_ptr(),
        output=output.data_ptr(),
        lse=_tensors.address(lse),
        partial_dtype=_tensors.dtype_number(partials),
        output_dtype=_tensors.dtype_number(output),
        parts=parts,
        tokens=tokens,
        heads=heads,
        head_dim=dim,
        part_stride=_tensors.strides(partials, "partials")[0],
        lse_part_stride=partial_lse.stride()[0],
        output_token_stride=strides[0],
        output_head_stride=strides[1],
    )
    with _launch.on_device(partials, stream) as handle:
        if tokens * heads > 0:
            _launch.launch("kvt_merge_lse", params, handle)
    return output


def _side(cache: torch.Tensor | LayerTensors, name: str) -> _Side:
    """Strides in bytes. Raises InvalidArgumentError."""
    if isinstance(cache, LayerTensors):
        key = cache.layers[0][0]
        size = key.element_size()
        block, token, head, _ = (stride * size for stride in cache.strides)
        layout = abi.kvt_block_layout(None, cache.bases.data_ptr(), block, 0, 0, token, head)
        blocks, *rest = key.shape
        shape = (len(cache.layers), *rest)
    else:
        key = cache
        _tensors.check(cache, name, (None, None, _KEY_AND_VALUE, None, None, None), None)
        byte_strides = [stride * key.element_size() for stride in _tensors.strides(cache, name)]
        layout = abi.kvt_block_layout(cache.data_ptr(), None, *byte_strides[:-1])
        blocks, layers, _, *rest = cache.shape
        shape = (layers, *rest)
    if shape[-1] * key.element_size() % _tensors.ALIGNMENT_BYTES != 0:
        raise invalid(f"bad_{name}", f"rows of {shape[-1] * key.element_size()} bytes")
    return _Side(layout, key, shape, blocks)


def _list_size(ids: torch.Tensor, name: str, beside: torch.Tensor) -> int:
    _tensors.check_list(ids, name, None, "int32", beside)
    return int(ids.shape[0])


def _block_list(blocks: torch.Tensor, block_ids: torch.Tensor | None) -> Any:
    _tensors.check(blocks, "blocks", (None,) * max(len(blocks.shape), 2), None)
    block_bytes = math.prod(blocks.shape[1:]) * blocks.element_size()
    if blocks.shape[0] > 0 and not blocks[0].is_contiguous():
        raise invalid("bad_blocks", "a block is not contiguous")
    stride_bytes = block_bytes
    if blocks.shape[0] > 1:
        stride_bytes = blocks.stride()[0] * blocks.element_size()
    if (blocks.data_ptr() | stride_bytes) % _tensors.ALIGNMENT_BYTES != 0 or block_bytes == 0:
        raise invalid("bad_blocks", f"{block_bytes} bytes every {stride_bytes}, aligned to 16")
    count = blocks.shape[0] if block_ids is None else _list_size(block_ids, "block_ids", blocks)
    return abi.kvt_block_list(
        base=blocks.data_ptr(),
        block_stride=stride_bytes,
        block_bytes=block_bytes,
        block_ids=_tensors.address(block_ids),
        blocks=count,
    )
