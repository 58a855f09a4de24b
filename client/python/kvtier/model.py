# SPDX-License-Identifier: Apache-2.0
"""Models: a KV geometry with its identity, and where the bytes of its layers lie in a pool."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar

from . import _library, _model_config, _native
from ._facts import record_name
from ._library import abi
from .errors import Status, check, error_of, invalid
from .hashing import DEFAULT_RECIPE
from .types import DType, HitRule, KvLayout


#: The largest `KvGroup.block_tokens`. The tokens of blocks that only an engine can read, and that
#: are longer, are counted as so many.
MAX_BLOCK_TOKENS = 1024


@dataclass(frozen=True)
class KvGroup:
    """A group of a model's layers, whose blocks have a geometry and a pool of their own.

    hit_rule: which of its blocks a prefix needs: all of them (full attention, indexers), those with
    any of the last `window_tokens` tokens (sliding windows), or the one state at its end (Mamba,
    linear attention). kv_heads: stored by this tensor-parallel rank. v_head_dim: 0 for one tensor
    without values beside the keys, as in a latent (MLA) cache. dtype: whatever `DType.of` takes, as
    a torch.dtype or "bf16"; it reads as a DType. scale_bytes: of quantization scales stored inline,
    per token and KV head. block_tokens: tokens of a full block; of states, how far apart they can be
    kept. replicated: every rank holds the same bytes, which are stored once. layer_bytes: of one
    layer of a block whose inner layout only the engine knows, in place of heads and head sizes;
    always so for a group of states. kv_layout: how a block's keys and values are ordered.
    """

    layers: int
    kv_heads: int = 0
    k_head_dim: int = 0
    v_head_dim: int = 0
    dtype: DType = DType.BFLOAT16
    block_tokens: int = 16
    hit_rule: HitRule = HitRule.ALL
    window_tokens: int = 0
    scale_bytes: int = 0
    replicated: bool = False
    layer_bytes: int = 0
    kv_layout: KvLayout = KvLayout.BLOCK_FIRST

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DType.of(self.dtype))


# Fields of a record that are those of its group, where it has one.
_OWN_GEOMETRY = (
    "layers",
    "kv_heads",
    "k_head_dim",
    "v_head_dim",
    "dtype",
    "block_tokens",
    "kv_layout",
    "scale_bytes",
)


@dataclass(frozen=True)
class ModelRecord:
    """KV geometries with their identity: blocks of models that differ in any field never meet.

    name: required. Most models have one group of layers, given by the fields that KvGroup explains;
    those that mix full attention with windows or states have `groups` in their place. revision: of
    the weights. hash_recipe: name and version of how its blocks are
    hashed; one of RECIPES, by which sequences and Pool.acquire(tokens=...) hash then, or any other
    for hashes of the engine's own. extra: whatever else changes the bytes (rope, quantization),
    texts by unique keys.
    """

    name: str
    layers: int = 0
    kv_heads: int = 0
    k_head_dim: int = 0
    v_head_dim: int = 0
    dtype: DType = DType.BFLOAT16
    block_tokens: int = 16
    revision: str = ""
    tensor_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    hash_recipe: str = DEFAULT_RECIPE
    extra: Mapping[str, str] = field(default_factory=dict)
    groups: Sequence[KvGroup] = ()
    kv_layout: KvLayout = KvLayout.BLOCK_FIRST
    scale_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DType.of(self.dtype))

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | os.PathLike[str], *, revision: str = "", **fields: Any
    ) -> ModelRecord:
        """The record of a model whose files are on this machine: in a directory, or in the cache
        that transformers and vLLM download to, as "meta-llama/Llama-3.1-8B". Reads its config.json
        and nothing else; asks no network.

        revision: a commit, branch or tag; by default what "main" named when it was downloaded. The
        record has the commit; a directory without one has a digest of its files beside it, and the name
        of a directory is that of its architecture, since the same model may be at another path. fields: as of `from_config`. Raises NotFoundError, and as `from_config`.
        """
        directory, commit = _model_config.directory_of(os.fspath(name_or_path), revision)
        fields.setdefault("name", _model_config.name_of(os.fspath(name_or_path)))
        return cls.from_config(
            directory, revision=_model_config.revision_of(directory, commit, revision), **fields
        )

    @classmethod
    def from_config(
        cls,
        config: _model_config.Source,
        *,
        name: str = "",
        revision: str = "",
        dtype: Any = None,
        block_tokens: int = 16,
        tensor_parallel_rank: int = 0,
        tensor_parallel_size: int = 1,
        hash_recipe: str = DEFAULT_RECIPE,
        extra: Mapping[str, str] | None = None,
    ) -> ModelRecord:
        """The record of a model by its configuration: an object of the transformers library, a
        mapping, or the path of a config.json or its directory.

        name, revision: by default the configuration's, which is often nothing: a revision tells
        other weights of the same name apart. dtype: the KV cache's, if it is not the weights'. Rope
        and quantization go into `extra`. Layers with a sliding window are a group of their own if
        `layer_types` names them; KV heads are divided by the ranks. Raises InvalidArgumentError
        (something is missing; it says what to pass), NotFoundError (no such file), UnsupportedError
        (layers whose state the configuration does not tell).
        """
        values = _model_config.read(config)
        kinds = _model_config.groups(values, tensor_parallel_size)
        kv_dtype = DType.of(_model_config.dtype(values) if dtype is None else dtype)
        name = name or str(values.get("_name_or_path") or "")
        if not name:
            raise invalid("no_name", "the configuration has none: pass name=")
        groups = tuple(_group(kind, kv_dtype, block_tokens) for kind in kinds)
        geometry: dict[str, Any] = {name: getattr(groups[0], name) for name in _OWN_GEOMETRY}
        if groups != (KvGroup(**geometry),):  # more than a record's own fields can tell
            geometry = {"groups": groups}
        return cls(
            name=record_name(name),
            revision=revision or str(values.get("_commit_hash") or ""),
            tensor_parallel_rank=tensor_parallel_rank,
            tensor_parallel_size=tensor_parallel_size,
            hash_recipe=hash_recipe,
            extra={**_model_config.facts(values), **(extra or {})},
            **geometry,
        )

    def all_groups(self) -> tuple[KvGroup, ...]:
        """The groups, also of a record that gives one by its own fields. Raises
        InvalidArgumentError if both are given."""
        if not self.groups:
            return (KvGroup(**{name: getattr(self, name) for name in _OWN_GEOMETRY}),)
        if self.layers or self.kv_heads or self.k_head_dim or self.v_head_dim:
            raise invalid("bad_groups", "a geometry beside the groups")
        return tuple(self.groups)

    def layout(self, group: int = 0) -> Layout:
        """Where K and V lie in a block of a group. Needs no daemon. Raises InvalidArgumentError
        naming the field that is out of its range, NotFoundError (no such group)."""
        layout = _library.sized(abi.kvt_layout)
        check(
            _library.load().kvt_layout_of(
                ctypes.byref(to_abi(self)), _native.unsigned(group, 32, "group"), ctypes.byref(layout)
            )
        )
        return Layout(*(getattr(layout, field.name) for field in fields(Layout)))


def _group(kind: Mapping[str, Any], dtype: DType, block_tokens: int) -> KvGroup:
    rule = HitRule.TRAILING if "window_tokens" in kind else HitRule.ALL
    return KvGroup(**kind, dtype=dtype, block_tokens=block_tokens, hit_rule=rule)


@dataclass(frozen=True)
class Layout:
    """Byte strides in the pool of a group, in the order that its `kv_layout` says.

    block_stride: the bytes of one block. v_offset: from a layer's K to its V. Inline scales follow
    a layer's keys and values, [token][head][scale]. For a group with layer_bytes, all but
    block_stride and layer_stride are 0.
    """

    element_bytes: int
    block_stride: int
    layer_stride: int
    v_offset: int
    k_token_stride: int
    k_head_stride: int
    v_token_stride: int
    v_head_stride: int


@dataclass(frozen=True)
class Model:
    """A model as one connection knows it.

    layout, block_bytes: of group 0. number: names it there, also after reconnecting. fingerprint:
    SHA-256 of the canonical record, 32 bytes.
    """

    record: ModelRecord
    layout: Layout
    number: int
    block_bytes: int
    fingerprint: bytes


_GROUP_NUMBERS = (
    "layers",
    "kv_heads",
    "k_head_dim",
    "v_head_dim",
    "scale_bytes",
    "block_tokens",
    "window_tokens",
)


def to_abi(record: ModelRecord) -> Any:
    """The record as a kvt_model_record, which keeps the objects that it points to. Raises
    InvalidArgumentError."""
    result = abi.kvt_model_record()
    _library.load().kvt_model_record_init(ctypes.byref(result))
    result.name = _native.text(record.name, "name")
    result.revision = _native.text(record.revision, "revision")
    result.hash_recipe = _native.text(record.hash_recipe, "hash_recipe")
    for name in ("tensor_parallel_rank", "tensor_parallel_size"):
        setattr(result, name, _native.unsigned(getattr(record, name), 32, name))
    groups = record.all_groups()
    if len(groups) > abi.KVT_MAX_GROUPS:
        raise invalid("bad_group_count", f"{len(groups)}, at most {abi.KVT_MAX_GROUPS}")
    for target, group in zip(result.groups, groups):
        for name in _GROUP_NUMBERS:
            setattr(target, name, _native.unsigned(getattr(group, name), 32, name))
        target.layer_bytes = _native.unsigned(group.layer_bytes, 64, "layer_bytes")
        target.hit_rule, target.dtype = group.hit_rule, group.dtype
        target.layout = group.kv_layout
        target.replicated = 1 if group.replicated else 0
    result.group_count = len(groups)
    extra = (abi.kvt_key_value * len(record.extra))()
    for target, (key, value) in zip(extra, record.extra.items()):
        target.key = _native.text(key, "extra")
        target.value = _native.text(value, "extra")
    result.extra, result.extra_count = ctypes.addressof(extra), len(extra)
    result.kept = extra
    return result


Array = TypeVar("Array")

_SCALE_BYTES = 4  # a float32


class ArraySpec(NamedTuple):
    """A strided array within a pool. offset: bytes from the pool's first byte; strides: bytes."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class KvView(Generic[Array]):
    """One layer of a whole pool, in place.

    k: [blocks, tokens, heads, k_head_dim]; v: [blocks, tokens, heads, v_head_dim], empty if that is
    0. The KV of a token with slot s is at [s // block_tokens, s % block_tokens].
    """

    k: Array
    v: Array


class ViewPlan:
    """Where each layer of a group's pool of `blocks` blocks lies."""

    def __init__(self, group: KvGroup, layout: Layout, blocks: int) -> None:
        self._group = group
        self._layout = layout
        self._blocks = blocks

    def k(self, layer: int) -> ArraySpec:
        """[blocks, tokens, heads, k_head_dim]. Raises InvalidArgumentError, UnsupportedError (the
        group has layer_bytes)."""
        layout = self._layout
        return self._spec(
            self._layer_offset(layer),
            self._group.k_head_dim,
            layout.k_token_stride,
            layout.k_head_stride,
        )

    def v(self, layer: int) -> ArraySpec:
        """[blocks, tokens, heads, v_head_dim]. Raises as `k`."""
        layout = self._layout
        return self._spec(
            self._layer_offset(layer) + layout.v_offset,
            self._group.v_head_dim,
            layout.v_token_stride,
            layout.v_head_stride,
        )

    def kv(self, layer: int) -> ArraySpec:
        """[blocks, 2, tokens, heads, dim]. Raises UnsupportedError if K and V differ in size."""
        group = self._group
        if group.k_head_dim != group.v_head_dim:
            raise error_of(
                Status.UNSUPPORTED,
                "head_dims_differ",
                f"K has {group.k_head_dim}, V has {group.v_head_dim}",
            )
        k = self.k(layer)
        shape = (k.shape[0], 2, *k.shape[1:])
        strides = (k.strides[0], self._layout.v_offset, *k.strides[1:])
        return ArraySpec(k.offset, shape, strides)

    def blocks(self) -> ArraySpec:
        """[blocks, layers, 2, tokens, heads, dim]. Raises UnsupportedError as `kv`."""
        layer = self.kv(0)
        shape = (layer.shape[0], self._group.layers, *layer.shape[1:])
        strides = (layer.strides[0], self._layout.layer_stride, *layer.strides[1:])
        return ArraySpec(0, shape, strides)

    def scales(self, layer: int) -> KvView[ArraySpec]:
        """The scales of K and of V of one layer, float32 [blocks, tokens, heads]. Raises
        InvalidArgumentError, UnsupportedError (the record's scale_bytes are not 8)."""
        group, layout = self._group, self._layout
        heads = group.block_tokens * group.kv_heads
        offset = heads * (group.k_head_dim + group.v_head_dim) * layout.element_bytes
        if group.scale_bytes != 2 * _SCALE_BYTES or offset % _SCALE_BYTES != 0:
            raise error_of(
                Status.UNSUPPORTED,
                "no_scales_by_token",
                f"{group.scale_bytes} bytes of scales for each token and head, 8 are a float32 for K "
                "and one for V",
            )
        first = self._layer_offset(layer) + offset
        shape = (self._blocks, group.block_tokens, group.kv_heads)
        strides = (layout.block_stride, group.kv_heads * group.scale_bytes, group.scale_bytes)
        return KvView(
            ArraySpec(first, shape, strides), ArraySpec(first + _SCALE_BYTES, shape, strides)
        )

    def _layer_offset(self, layer: int) -> int:
        if self._layout.element_bytes == 0:
            raise error_of(Status.UNSUPPORTED, "opaque_layout", "only the engine knows the layout")
        if not 0 <= layer < self._group.layers:
            raise invalid("bad_layer", f"{layer} of {self._group.layers}")
        return layer * self._layout.layer_stride

    def _spec(self, offset: int, head_dim: int, token_stride: int, head_stride: int) -> ArraySpec:
        group, layout = self._group, self._layout
        shape = (self._blocks, group.block_tokens, group.kv_heads, head_dim)
        strides = (layout.block_stride, token_stride, head_stride, layout.element_bytes)
        return ArraySpec(offset, shape, strides)
