# SPDX-License-Identifier: Apache-2.0
"""Attention over a paged KV cache: decode, decode with shared prefixes, prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import invalid
from . import _launch, _tensors
from ._launch import Workspace, abi
from .cache import PagedKv, SequenceTables

if TYPE_CHECKING:
    import torch

_HEAD_DIMS = (64, 128, 256)
# Query heads for each KV head.
_LARGEST_DECODE_GROUP = 16
_LARGEST_PREFILL_GROUP = 64


def decode(
    query: torch.Tensor,
    cache: PagedKv,
    tables: SequenceTables,
    *,
    softmax_scale: float | None = None,
    soft_cap: float = 0.0,
    window_tokens: int = 0,
    sinks: torch.Tensor | None = None,
    split_tokens: int = 0,
    tables_settled: bool = False,
    output: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Attention of one query token for each sequence. Returns output, as query.

    query: [sequences, q_heads, head_dim], bfloat16 or float16, of the cache's dtype unless that is
        float8. q_heads: 1 to 16 times kv_heads; head_dim 64, 128 or 256.
    softmax_scale: None: 1 / sqrt(head_dim). soft_cap: 0: none; else score = cap * tanh(score /
        cap). window_tokens: 0: all; else only the last so many keys are seen.
    sinks: float32 [q_heads], logits that take weight but have no value.
    split_tokens: 0: the fastest way. A power of two from 256 on: a sequence's result is the same to
        the bit in any batch.
    tables_settled: promises that block table and lengths were written before the work ahead of this
        on the stream began, as is so from a step's second layer on.
    output: as query, written in place. lse: float32 [sequences, q_heads], contiguous, written if
        given: log of the sum of exponentials, -inf for an empty sequence, whose output is 0.
    workspace: None: one for this call. stream: None: torch's current one.

    Raises InvalidArgumentError, UnsupportedError; see `Workspace` for CUDA graphs.
    """
    _tensors.check_device(query, "query")
    with _launch.on_device(query, stream) as handle:
        result = _output(query, output)
        params = _decode_params(query, result, cache, tables, softmax_scale, lse, sinks)
        params.soft_cap = _tensors.real(soft_cap, "soft_cap", zero=True)
        params.window_tokens = _tensors.whole(window_tokens, "window_tokens")
        params.split_tokens = _tensors.split(split_tokens)
        params.tables_settled = tables_settled
        if len(tables) > 0:
            _launch.launch_with_workspace("kvt_decode", params, handle, workspace, query)
    return result


def decode_shared(
    query: torch.Tensor,
    cache: PagedKv,
    tables: SequenceTables,
    prefixes: SequenceTables,
    members: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """As `decode`, for sequences that share prefixes, whose blocks are read once for all of them.

    tables: of the sequences' own tokens alone, those after the prefix, which ends at a block's end.
    prefixes: tables and lengths of the prefixes. members: int32 [prefixes + 1]: prefix p is that of
        the sequences members[p] to members[p + 1] - 1; members[0] is 0, the last one the number of
        sequences. A sequence without a prefix gets one of length 0.
    """
    _tensors.check_device(query, "query")
    with _launch.on_device(query, stream) as handle:
        result = _output(query, output)
        own = _decode_params(query, result, cache, tables, softmax_scale, lse, sinks)
        own.soft_cap = _tensors.real(soft_cap, "soft_cap", zero=True)
        _tensors.check_list(members, "members", len(prefixes) + 1, "int32", query)
        params = abi.kvt_decode_shared_params(
            own, prefixes.abi(cache.page_tokens, cache.key.device), members.data_ptr()
        )
        if len(tables) > 0:
            kv = (cache.abi.dtype, cache.kv_heads, cache.head_dim)
            counts = (len(tables), len(prefixes), own.q_heads)
            lengths = (own.sequences.max_kv_length, params.prefixes.max_kv_length)
            _launch.launch_with_workspace(
                "kvt_decode_shared", params, handle, workspace, query, kv + counts + lengths
            )
    return result


def prefill(
    query: torch.Tensor,
    cache: PagedKv,
    tables: SequenceTables,
    query_starts: torch.Tensor,
    *,
    causal: bool = True,
    softmax_scale: float | None = None,
    soft_cap: float = 0.0,
    window_tokens: int = 0,
    sinks: torch.Tensor | None = None,
    splits: int = 0,
    tables_settled: bool = False,
    output: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Attention of several query tokens for each sequence (chunked prefill). Returns output, as
    query. Their keys and values are in the cache already, and count in kv_lengths.

    query: [query_tokens, q_heads, head_dim]; q_heads: 1 to 64 times kv_heads, else as for `decode`.
    query_starts: int32 [sequences + 1]: sequence s has the query tokens query_starts[s] to
        query_starts[s + 1] - 1, which are its last ones.
    causal: each token sees the keys up to its own position; False: all keys, e.g. of a shared
        prefix. splits: 0: as many parts as fill the device; 1 to 64: so many.
    tables_settled: as for `decode`, of query_starts too.
    lse: float32 [query_tokens, q_heads], contiguous.

    The other parameters and errors are as for `decode`.
    """
    _tensors.check_device(query, "query")
    with _launch.on_device(query, stream) as handle:
        result = _output(query, output)
        starts = len(tables) + 1
        _tensors.check_list(query_starts, "query_starts", starts, "int32", query)
        strides = _query_strides(query, result, cache, _LARGEST_PREFILL_GROUP)
        params = abi.kvt_prefill_params(
            **_common(query, result, cache, tables, softmax_scale, lse, sinks),
            query_token_stride=strides[0],
            query_head_stride=strides[1],
            output_token_stride=strides[2],
            output_head_stride=strides[3],
            query_starts=query_starts.data_ptr(),
            query_tokens=query.shape[0],
            soft_cap=_tensors.real(soft_cap, "soft_cap", zero=True),
            window_tokens=_tensors.whole(window_tokens, "window_tokens"),
            causal=causal,
            splits=_tensors.whole(splits, "splits", 0, abi.KVT_PREFILL_MAX_SPLITS),
            tables_settled=tables_settled,
        )
        if query.shape[0] > 0 and len(tables) > 0:
            _launch.launch_with_workspace("kvt_prefill", params, handle, workspace, query)
    return result


def _output(query: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
    """Where results go; checked. Raises InvalidArgumentError."""
    _tensors.check(query, "query", (None, None, None), _tensors.SIXTEEN_BIT)
    if output is None:
        return query.new_empty(tuple(query.shape))
    _tensors.check(output, "output", tuple(query.shape), (_tensors.dtype_name(query),), query)
    return output


def _query_strides(
    query: torch.Tensor, output: torch.Tensor, cache: PagedKv, largest_group: int
) -> tuple[int, int, int, int]:
    """Rows and heads of the query, then of the output. Raises InvalidArgumentError;
    UnsupportedError: no kernel is built for such heads."""
    if query.device != cache.key.device:
        raise invalid("bad_query", f"on {query.device}, the cache is on {cache.key.device}")
    heads, dim = query.shape[1:]
    if dim != cache.head_dim or heads == 0 or heads % cache.kv_heads != 0:
        raise invalid(
            "bad_query",
            f"{heads} heads of {dim} over a cache with {cache.kv_heads} of {cache.head_dim}",
        )
    if not cache.is_fp8 and _tensors.dtype_name(query) != _tensors.dtype_name(cache.key):
        raise invalid(
            "bad_query",
            f"{_tensors.dtype_name(query)} over a {_tensors.dtype_name(cache.key)} cache",
        )
    if dim not in _HEAD_DIMS:
        raise _tensors.unsupported("head_dim", dim, ", ".join(map(str, _HEAD_DIMS)))
    if heads > largest_group * cache.kv_heads:
        given = f"{heads} over {cache.kv_heads} KV heads"
        raise _tensors.unsupported("q_heads", given, f"1 to {largest_group} for each KV head")
    own, results = _tensors.strides(query, "query"), _tensors.strides(output, "output")
    return own[0], own[1], results[0], results[1]


def _common(
    query: torch.Tensor,
    output: torch.Tensor,
    cache: PagedKv,
    tables: SequenceTables,
    softmax_scale: float | None,
    lse: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> dict[str, Any]:
    """The fields that decode and prefill have both. Raises InvalidArgumentError."""
    rows, heads = query.shape[:2]
    _tensors.check_lse(lse, rows, heads, query)
    if sinks is not None:
        _tensors.check_list(sinks, "sinks", heads, "float32", query)
    scale = cache.head_dim**-0.5 if softmax_scale is None else softmax_scale
    return {
        "query": query.data_ptr(),
        "output": output.data_ptr(),
        "lse": _tensors.address(lse),
        "query_dtype": _tensors.dtype_number(query),
        "q_heads": heads,
        "kv": cache.abi,
        "sequences": tables.abi(cache.page_tokens, cache.key.device),
        "softmax_scale": _tensors.real(scale, "softmax_scale"),
        "sinks": _tensors.address(sinks),
    }


def _decode_params(
    query: torch.Tensor,
    output: torch.Tensor,
    cache: PagedKv,
    tables: SequenceTables,
    softmax_scale: float | None,
    lse: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> Any:
    if query.shape[0] != len(tables):
        raise invalid("bad_query", f"{query.shape[0]} rows for {len(tables)} sequences")
    strides = _query_strides(query, output, cache, _LARGEST_DECODE_GROUP)
    pairs, most = len(tables) * cache.kv_heads, abi.KVT_DECODE_MAX_PAIRS
    if pairs > most:
        given = f"{len(tables)} with {cache.kv_heads} KV heads"
        raise _tensors.unsupported("sequences", given, f"{most} pairs of sequence and KV head")
    return abi.kvt_decode_params(
        **_common(query, output, cache, tables, softmax_scale, lse, sinks),
        query_sequence_stride=strides[0],
        query_head_stride=strides[1],
        output_sequence_stride=strides[2],
        output_head_stride=strides[3],
    )
