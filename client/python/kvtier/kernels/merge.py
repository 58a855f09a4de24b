# SPDX-License-Identifier: Apache-2.0
"""The merge of partial attention results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import invalid
from . import _launch, _tensors
from ._launch import abi

if TYPE_CHECKING:
    import torch

_MERGED_DTYPES = ("float32", "bfloat16", "float16")
_MERGE_STEP = 8


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
