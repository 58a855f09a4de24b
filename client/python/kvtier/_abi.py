# SPDX-License-Identifier: Apache-2.0
"""The C ABI of libkvtier, as declared in client/include/kvtier/kvtier.h and client/include/kvtier/kvtier_sequence.h.

Structures carry the names and the order of the header's fields; `PROTOTYPES` has every function.
Nothing here is loaded or called: see `_library`.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

DEFAULT_TIMEOUT = -1
NO_PARTIAL_BLOCK = 0xFFFFFFFF

Hash = c_uint8 * 32


class Error(Structure):
    _fields_ = [("code", c_int32), ("reason", c_char_p), ("context", c_char_p)]


class Block(Structure):
    _fields_ = [("index", c_uint32), ("generation", c_uint32), ("attachment", c_uint64)]


class Load(Structure):
    _fields_ = [("id", c_uint64), ("attachment", c_uint64)]


class ConnectOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("client_name", c_char_p),
        ("connect_timeout_ms", c_int64),
        ("request_timeout_ms", c_int64),
        ("reconnect_min_ms", c_int64),
        ("reconnect_max_ms", c_int64),
        ("wait_for_daemon", c_int32),
    ]


class Stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("blocks_asked", c_uint64),
        ("blocks_pool", c_uint64),
        ("blocks_host", c_uint64),
        ("blocks_disk", c_uint64),
        ("blocks_miss", c_uint64),
        ("pool_blocks_total", c_uint64),
        ("pool_blocks_free", c_uint64),
        ("pool_blocks_private", c_uint64),
        ("pool_blocks_cached", c_uint64),
        ("session_references", c_uint64),
    ]


class KeyValue(Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class ModelRecord(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("revision", c_char_p),
        ("layers", c_uint32),
        ("kv_heads", c_uint32),
        ("k_head_dim", c_uint32),
        ("v_head_dim", c_uint32),
        ("block_tokens", c_uint32),
        ("tensor_parallel_rank", c_uint32),
        ("tensor_parallel_size", c_uint32),
        ("dtype", c_uint8),
        ("layout", c_uint8),
        ("reserved", c_uint8 * 6),
        ("extra", POINTER(KeyValue)),
        ("extra_count", c_size_t),
    ]


class Layout(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("element_bytes", c_uint64),
        ("block_stride", c_uint64),
        ("layer_stride", c_uint64),
        ("v_offset", c_uint64),
        ("k_token_stride", c_uint64),
        ("k_head_stride", c_uint64),
        ("v_token_stride", c_uint64),
        ("v_head_stride", c_uint64),
    ]


class ModelInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("model", c_uint32),
        ("block_bytes", c_uint64),
        ("fingerprint", Hash),
    ]


class Device(Structure):
    _fields_ = [
        ("uuid", c_uint8 * 16),
        ("pool_bytes", c_uint64),
        ("name", c_char * 72),
        ("kind", c_uint8),
        ("reserved", c_uint8 * 7),
    ]


#: KVT_MAX_DEVICES and KVT_ANY_DEVICE.
MAX_DEVICES = 16
ANY_DEVICE = 0xFFFFFFFF


class PoolInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("base", c_void_p),
        ("bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("blocks", c_uint32),
        ("block_tokens", c_uint32),
        ("generation", c_uint64),
        ("attachment", c_uint64),
        ("fd", c_int32),
        ("model", c_uint32),
        ("device_kind", c_uint8),
    ]


class DeviceMapping(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("base", c_uint64),
        ("bytes", c_uint64),
        ("generation", c_uint64),
        ("ordinal", c_int32),
    ]


class AcquireRequest(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("hashes", c_void_p),
        ("hash_count", c_size_t),
        ("partial_blocks", c_void_p),
        ("partial_count", c_size_t),
        ("new_blocks", c_uint32),
        ("reserved", c_uint32),
        ("load_order", c_uint8),
        ("reserved_2", c_uint8 * 7),
    ]


class AcquiredBlock(Structure):
    _fields_ = [
        ("block", Block),
        ("tokens", c_uint16),
        ("tier", c_uint8),
        ("reserved", c_uint8 * 5),
    ]


class AcquireReply(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("hits", c_void_p),
        ("hits_capacity", c_size_t),
        ("new_blocks", c_void_p),
        ("new_block_capacity", c_size_t),
        ("hit_count", c_size_t),
        ("new_block_count", c_size_t),
        ("tail", c_uint32),
        ("load", Load),
        ("miss", c_uint8),
    ]


class LoadProgress(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("ready", c_uint32),
        ("finished", c_int32),
        ("miss", c_uint8),
        ("reserved", c_uint8 * 3),
        ("layers", c_uint32),
    ]


class CommitEntry(Structure):
    _fields_ = [
        ("block", Block),
        ("hash", Hash),
        ("parent", Hash),
        ("depth", c_uint32),
        ("tokens", c_uint16),
        ("retention", c_uint8),
        ("has_parent", c_uint8),
        ("has_checksum", c_uint8),
        ("reserved", c_uint8 * 7),
        ("checksum", c_uint8 * 16),
    ]


class AsyncError(Structure):
    _fields_ = [("block", Block), ("code", c_int32), ("reason", c_char * 44)]


class MultimodalItem(Structure):
    _fields_ = [
        ("content_hash", c_char_p),
        ("offset_tokens", c_uint64),
        ("length_tokens", c_uint64),
    ]


class HashOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("block_tokens", c_uint32),
        ("seed", c_char_p),
        ("lora", c_char_p),
        ("cache_salt", c_char_p),
        ("items", POINTER(MultimodalItem)),
        ("item_count", c_size_t),
    ]


# int32_t (void* user, uint64_t target_offset, uint64_t source_offset, uint64_t bytes)
CopyBlock = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64, c_uint64)
# void (void* user, const char* json)
AdminProgress = CFUNCTYPE(None, c_void_p, c_char_p)


class SequenceOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("seed", c_char_p),
        ("lora", c_char_p),
        ("cache_salt", c_char_p),
        ("items", POINTER(MultimodalItem)),
        ("item_count", c_size_t),
        ("leave_tokens", c_uint32),
        ("reserve_tokens", c_uint32),
        ("retention", c_uint8),
        ("reserved", c_uint8 * 7),
        ("copy", CopyBlock),
        ("copy_user", c_void_p),
    ]


class SequenceInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_uint64),
        ("cached_tokens", c_uint64),
        ("computed_tokens", c_uint64),
        ("blocks", c_uint64),
        ("pool_tokens", c_uint64),
        ("host_tokens", c_uint64),
        ("disk_tokens", c_uint64),
        ("attachment", c_uint64),
        ("base", c_void_p),
        ("ready", c_int32),
        ("miss", c_uint8),
    ]


class WorkspaceInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("base", c_void_p),
        ("bytes", c_uint64),
        ("device_base", c_uint64),
        ("ordinal", c_int32),
        ("device_kind", c_uint8),
    ]


class AttendRequest(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("layer", c_uint32),
        ("q_heads", c_uint32),
        ("softmax_scale", c_float),
        ("soft_cap", c_float),
        ("window_tokens", c_uint32),
        ("query_dtype", c_uint8),
        ("reserved", c_uint8 * 3),
        ("query_offset", c_uint64),
        ("output_offset", c_uint64),
        ("lse_offset", c_uint64),
        ("sequences", c_void_p),
        ("sequence_count", c_size_t),
        ("blocks", c_void_p),
        ("block_count", c_size_t),
        ("key_scales", c_void_p),
        ("key_scale_count", c_size_t),
        ("value_scales", c_void_p),
        ("value_scale_count", c_size_t),
    ]


# Pointers to objects, arrays and structs are c_void_p: ctypes takes byref(), arrays, None and
# integers alike for them.
_STATUS = c_int32
_OBJECT = c_void_p
_ARRAY = c_void_p
_OUT = c_void_p

PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "kvt_last_error": (POINTER(Error), []),
    "kvt_status_name": (c_char_p, [c_int32]),
    "kvt_miss_name": (c_char_p, [c_uint8]),
    "kvt_version": (c_char_p, []),
    "kvt_string_free": (None, [c_void_p]),
    "kvt_connect_options_init": (None, [_OUT]),
    "kvt_connect": (_STATUS, [c_char_p, c_void_p, _OUT]),
    "kvt_disconnect": (None, [_OBJECT]),
    "kvt_is_connected": (c_int, [_OBJECT]),
    "kvt_ping": (_STATUS, [_OBJECT, POINTER(c_double)]),
    "kvt_get_stats": (_STATUS, [_OBJECT, _OUT]),
    "kvt_model_record_init": (None, [_OUT]),
    "kvt_layout_of": (_STATUS, [c_void_p, _OUT]),
    "kvt_register_model": (_STATUS, [_OBJECT, c_void_p, _OUT]),
    "kvt_get_devices": (_STATUS, [_OBJECT, _OUT, c_size_t, POINTER(c_size_t)]),
    "kvt_attach": (_STATUS, [_OBJECT, c_uint32, c_uint32, c_uint64, _OUT]),
    "kvt_pool_close": (None, [_OBJECT]),
    "kvt_pool_get_info": (_STATUS, [_OBJECT, _OUT]),
    "kvt_pool_block_address": (_STATUS, [_OBJECT, Block, _OUT]),
    "kvt_pool_drop_stale_mappings": (None, [_OBJECT]),
    "kvt_pool_map_device": (_STATUS, [_OBJECT, _OUT]),
    "kvt_pool_unmap_device": (None, [_OBJECT]),
    "kvt_pool_read": (_STATUS, [_OBJECT, Block, c_uint64, c_void_p, c_size_t]),
    "kvt_pool_write": (_STATUS, [_OBJECT, Block, c_uint64, c_void_p, c_size_t]),
    "kvt_acquire": (_STATUS, [_OBJECT, c_void_p, _OUT]),
    "kvt_wait": (_STATUS, [_OBJECT, Load, c_uint32, c_int64, _OUT]),
    "kvt_wait_layers": (_STATUS, [_OBJECT, Load, c_uint32, c_int64, _OUT]),
    "kvt_wait_on_stream": (_STATUS, [_OBJECT, Load, c_uint32, c_void_p]),
    "kvt_commit": (_STATUS, [_OBJECT, _ARRAY, c_size_t, _ARRAY]),
    "kvt_release": (_STATUS, [_OBJECT, _ARRAY, c_size_t, _ARRAY]),
    "kvt_flush": (_STATUS, [_OBJECT]),
    "kvt_take_errors": (c_size_t, [_OBJECT, _ARRAY, c_size_t, _OUT]),
    "kvt_prefetch": (_STATUS, [_OBJECT, _ARRAY, c_size_t, _OUT]),
    "kvt_pin": (_STATUS, [_OBJECT, _ARRAY, c_size_t, c_int64, _OUT]),
    "kvt_lookup": (_STATUS, [_OBJECT, _ARRAY, c_size_t, _ARRAY]),
    "kvt_hash_options_init": (None, [_OUT]),
    "kvt_hash_blocks": (_STATUS, [c_void_p, _ARRAY, c_size_t, _ARRAY, c_size_t]),
    "kvt_admin": (_STATUS, [c_char_p, c_char_p, c_int64, AdminProgress, c_void_p, _OUT]),
    "kvt_sequence_options_init": (None, [_OUT]),
    "kvt_sequence_open": (_STATUS, [_OBJECT, c_void_p, _ARRAY, c_size_t, _OUT]),
    "kvt_sequence_close": (None, [_OBJECT]),
    "kvt_sequence_wait": (_STATUS, [_OBJECT, c_int64]),
    "kvt_sequence_get_info": (_STATUS, [_OBJECT, _OUT]),
    "kvt_sequence_check": (_STATUS, [_OBJECT]),
    "kvt_sequence_block_table": (_STATUS, [_OBJECT, _ARRAY, c_size_t, _OUT]),
    "kvt_sequence_slot_mapping": (_STATUS, [_OBJECT, c_uint64, c_size_t, _ARRAY]),
    "kvt_sequence_append": (_STATUS, [_OBJECT, _ARRAY, c_size_t]),
    "kvt_sequence_mark_computed": (_STATUS, [_OBJECT, c_uint64]),
    "kvt_sequence_finish": (_STATUS, [_OBJECT]),
    "kvt_sequence_fork": (_STATUS, [_OBJECT, _OUT]),
    "kvt_workspace_open": (_STATUS, [_OBJECT, c_uint64, _OUT]),
    "kvt_workspace_close": (None, [_OBJECT]),
    "kvt_workspace_get_info": (_STATUS, [_OBJECT, _OUT]),
    "kvt_attend_request_init": (None, [_OUT]),
    "kvt_attend": (_STATUS, [_OBJECT, c_void_p, c_int64, _OUT]),
    "kvt_sequence_blocks": (_STATUS, [_OBJECT, _ARRAY, c_size_t]),
}


def sized(structure: Any) -> Any:
    """A zeroed structure whose `size` field is filled in."""
    value = structure()
    value.size = ctypes.sizeof(structure)
    return value
