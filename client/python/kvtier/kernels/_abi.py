# SPDX-License-Identifier: Apache-2.0
"""The C ABI of libkvtier_kernels, as declared in kernels/include/kvtier/.

Structures carry the names and the order of the headers' fields; `PROTOTYPES` has every function.
Nothing here is loaded or called: see `_library`.
"""

from __future__ import annotations

from ctypes import (
    Structure,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from typing import Any

# KVT_KERNELS_ABI of kernel_table.h: what the structures here are laid out for.
VERSION = 1

OK = 0
INVALID_ARGUMENT = 1
UNSUPPORTED = 2
WORKSPACE_TOO_SMALL = 3
LAUNCH_FAILED = 4


class Scales(Structure):
    _fields_ = [
        ("values", c_void_p),
        ("block_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
    ]


class PagedKv(Structure):
    _fields_ = [
        ("key", c_void_p),
        ("value", c_void_p),
        ("dtype", c_int),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("page_tokens", c_int32),
        ("block_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("key_scales", Scales),
        ("value_scales", Scales),
    ]


class Sequences(Structure):
    _fields_ = [
        ("block_table", c_void_p),
        ("kv_lengths", c_void_p),
        ("table_stride", c_int64),
        ("sequences", c_int32),
        ("max_kv_length", c_int32),
    ]


class DecodeParams(Structure):
    _fields_ = [
        ("query", c_void_p),
        ("output", c_void_p),
        ("lse", c_void_p),
        ("query_dtype", c_int),
        ("q_heads", c_int32),
        ("query_sequence_stride", c_int64),
        ("query_head_stride", c_int64),
        ("output_sequence_stride", c_int64),
        ("output_head_stride", c_int64),
        ("kv", PagedKv),
        ("sequences", Sequences),
        ("softmax_scale", c_float),
        ("soft_cap", c_float),
        ("window_tokens", c_int32),
        ("sinks", c_void_p),
        ("split_tokens", c_int32),
        ("tables_settled", c_int32),
    ]


class DecodeSharedParams(Structure):
    _fields_ = [("own", DecodeParams), ("prefixes", Sequences), ("members", c_void_p)]


class PrefillParams(Structure):
    _fields_ = [
        ("query", c_void_p),
        ("output", c_void_p),
        ("lse", c_void_p),
        ("query_dtype", c_int),
        ("q_heads", c_int32),
        ("query_token_stride", c_int64),
        ("query_head_stride", c_int64),
        ("output_token_stride", c_int64),
        ("output_head_stride", c_int64),
        ("kv", PagedKv),
        ("sequences", Sequences),
        ("query_starts", c_void_p),
        ("query_tokens", c_int32),
        ("softmax_scale", c_float),
        ("soft_cap", c_float),
        ("window_tokens", c_int32),
        ("causal", c_int32),
        ("sinks", c_void_p),
        ("splits", c_int32),
        ("tables_settled", c_int32),
        ("tokens_behind", c_void_p),
    ]


class MlaDecodeParams(Structure):
    _fields_ = [
        ("query", c_void_p),
        ("output", c_void_p),
        ("lse", c_void_p),
        ("dtype", c_int),
        ("q_heads", c_int32),
        ("query_sequence_stride", c_int64),
        ("query_head_stride", c_int64),
        ("output_sequence_stride", c_int64),
        ("output_head_stride", c_int64),
        ("latent", c_void_p),
        ("block_stride", c_int64),
        ("token_stride", c_int64),
        ("page_tokens", c_int32),
        ("latent_dtype", c_int),
        ("latent_scales", Scales),
        ("sequences", Sequences),
        ("softmax_scale", c_float),
        ("split_tokens", c_int32),
        ("tables_settled", c_int32),
    ]


class Rope(Structure):
    _fields_ = [
        ("style", c_int),
        ("rotary_dim", c_int32),
        ("positions", c_void_p),
        ("cos_sin", c_void_p),
    ]


class KvWriteParams(Structure):
    _fields_ = [
        ("key", c_void_p),
        ("value", c_void_p),
        ("query", c_void_p),
        ("query_output", c_void_p),
        ("dtype", c_int),
        ("tokens", c_int32),
        ("query_heads", c_int32),
        ("key_token_stride", c_int64),
        ("key_head_stride", c_int64),
        ("value_token_stride", c_int64),
        ("value_head_stride", c_int64),
        ("query_token_stride", c_int64),
        ("query_head_stride", c_int64),
        ("query_output_token_stride", c_int64),
        ("query_output_head_stride", c_int64),
        ("slot_mapping", c_void_p),
        ("rope", Rope),
        ("cache", PagedKv),
        ("dynamic_scales", c_int32),
        ("tables_settled", c_int32),
    ]


class BlockLayout(Structure):
    _fields_ = [
        ("base", c_void_p),
        ("slice_bases", c_void_p),
        ("block_stride", c_int64),
        ("layer_stride", c_int64),
        ("kv_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
    ]


class CopyBlocksParams(Structure):
    _fields_ = [
        ("source", BlockLayout),
        ("destination", BlockLayout),
        ("source_blocks", c_void_p),
        ("destination_blocks", c_void_p),
        ("blocks", c_int32),
        ("layers", c_int32),
        ("tokens", c_int32),
        ("heads", c_int32),
        ("head_bytes", c_int32),
    ]


class BlockList(Structure):
    _fields_ = [
        ("base", c_void_p),
        ("block_stride", c_int64),
        ("block_bytes", c_int64),
        ("block_ids", c_void_p),
        ("blocks", c_int32),
    ]


class MergeLseParams(Structure):
    _fields_ = [
        ("partials", c_void_p),
        ("partial_lse", c_void_p),
        ("output", c_void_p),
        ("lse", c_void_p),
        ("partial_dtype", c_int),
        ("output_dtype", c_int),
        ("parts", c_int32),
        ("tokens", c_int32),
        ("heads", c_int32),
        ("head_dim", c_int32),
        ("part_stride", c_int64),
        ("lse_part_stride", c_int64),
        ("output_token_stride", c_int64),
        ("output_head_stride", c_int64),
    ]


# Pointers to parameter structures are c_void_p, which takes byref().
_PARAMS = c_void_p
_WORKSPACE = c_void_p
_STREAM = c_void_p

PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "kvt_kernels_table": (c_void_p, [c_uint32]),
    "kvt_kernel_status_text": (c_char_p, [c_int]),
    "kvt_decode_workspace_bytes": (c_size_t, [_PARAMS]),
    "kvt_decode": (c_int, [_PARAMS, _WORKSPACE, c_size_t, _STREAM]),
    "kvt_decode_shared_workspace_bytes": (c_size_t, [_PARAMS]),
    "kvt_decode_shared": (c_int, [_PARAMS, _WORKSPACE, c_size_t, _STREAM]),
    "kvt_prefill_workspace_bytes": (c_size_t, [_PARAMS]),
    "kvt_prefill": (c_int, [_PARAMS, _WORKSPACE, c_size_t, _STREAM]),
    "kvt_mla_decode_workspace_bytes": (c_size_t, [_PARAMS]),
    "kvt_mla_decode": (c_int, [_PARAMS, _WORKSPACE, c_size_t, _STREAM]),
    "kvt_kv_write": (c_int, [_PARAMS, _STREAM]),
    "kvt_copy_blocks": (c_int, [_PARAMS, _STREAM]),
    "kvt_fill_blocks": (c_int, [_PARAMS, c_uint32, _STREAM]),
    "kvt_checksum_blocks": (c_int, [_PARAMS, c_void_p, _STREAM]),
    "kvt_merge_lse": (c_int, [_PARAMS, _STREAM]),
}
