# SPDX-License-Identifier: Apache-2.0
"""The kernels of libkvtier_kernels for torch tensors on a GPU: paged attention, KV writes.

    from kvtier import kernels

    layers = [kernels.PagedKv(kv.k, kv.v) for kv in map(pool.torch_layer, range(32))]
    tables = kernels.SequenceTables(block_table, kv_lengths)   # int32 tensors, [1, blocks], [1]
    workspace = kernels.Workspace()
    kernels.kv_write(k, v, layers[0], slot_mapping)            # into the sequence's slots
    out = kernels.prefill(q, layers[0], tables, query_starts, workspace=workspace)   # prefill
    out = kernels.decode(q, layers[0], tables, workspace=workspace)                 # one token

Calls check shapes, dtypes, strides and devices on the host, queue their work on torch's current
stream and return. They allocate only what they return and, if not given, the workspace; block
numbers, lengths and slots are not checked: they are on the device. Nothing is loaded before the
first call; torch is needed, and a GPU.
"""

from ._launch import Workspace
from .attention import decode, decode_shared, prefill
from .cache import PagedKv, SequenceTables
from .kv_write import Rope, RopeStyle, kv_write
from .merge import merge_lse
from .mla import mla_decode

__all__ = [
    "PagedKv",
    "Rope",
    "RopeStyle",
    "SequenceTables",
    "Workspace",
    "decode",
    "decode_shared",
    "kv_write",
    "merge_lse",
    "mla_decode",
    "prefill",
]
