# SPDX-License-Identifier: Apache-2.0
"""The model record of a vLLM engine: rows of engines that differ in any of it never meet.

Everything that decides the bytes of a row goes in: the weights, the configuration of the model, the
types and the layout of its KV cache, how it is split over GPUs, how blocks are hashed, and the
version of vLLM, whose layouts are its own affair. What cannot be told makes rows of their own
instead of rows that might be another model's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from .._facts import config_digest, digest, files_of, record_name, short
from ..model import MAX_BLOCK_TOKENS, KvGroup, ModelRecord


class UnknownModelError(Exception):
    """It cannot be told which weights the engine has."""


def find_engine_config() -> Any:
    """The VllmConfig of the engine that is being made on this thread, or None.

    vLLM does not hand it to a tier. It is the current one while workers are made; a scheduler's
    tiers are made by functions whose callers have it as an argument.
    """
    from vllm.config import VllmConfig, get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    frame = sys._getframe(1)
    while config is None and frame is not None:
        candidate = frame.f_locals.get("vllm_config")
        if isinstance(candidate, VllmConfig):
            config = candidate
        frame = frame.f_back
    return config


def hash_root() -> bytes | None:
    """The hash that vLLM's chains begin with; None before the engine has chosen it."""
    from vllm.v1.core import kv_cache_utils

    root = getattr(kv_cache_utils, "NONE_HASH", None)
    return None if root is None else bytes(root)


def chunk_tokens(spec: Any) -> tuple[int, ...]:
    """The tokens of a row, for each cache group of an offloading spec."""
    return tuple(tokens * spec.blocks_per_chunk for tokens in spec.tokens_per_block)


def model_record(
    spec: Any, engine: Any, row_bytes: int, root: bytes, vllm_version: str, label: str = ""
) -> ModelRecord:
    """The record of an engine's rows, one group of one opaque layer.

    spec: the tier's OffloadingSpec. engine: the VllmConfig, or None, and then `label` must say what
    the weights are. label: whatever else tells rows apart. Raises UnknownModelError; ValueError for
    hashes that are too short to be trusted.
    """
    _check_root(root)
    if engine is None and not label:
        raise UnknownModelError("vLLM's configuration was not found: give the tier an `identity`")
    name = str(spec.config.model.name)
    facts = _engine_facts(spec.config, root, vllm_version)
    facts["row"] = f"{row_bytes} bytes, {chunk_tokens(spec)} tokens"
    if engine is not None:
        facts.update(_model_facts(engine))
    if label:
        facts["label"] = short(label)
    group = KvGroup(
        layers=1,
        layer_bytes=row_bytes,
        block_tokens=min(max(chunk_tokens(spec)), MAX_BLOCK_TOKENS),
    )
    return ModelRecord(
        name=record_name(name),
        revision=facts.pop("revision", ""),
        hash_recipe=_recipe(facts.pop("hash_algorithm", "unknown")),
        extra=facts,
        groups=(group,),
    )


def block_record(
    engine: Any,
    specs: Sequence[Any],
    groups: Sequence[KvGroup],
    root: bytes,
    vllm_version: str,
    label: str,
    rank: int | None = None,
) -> ModelRecord:
    """The record of the blocks of an engine's own KV cache as one worker has them. specs: whatever
    tells vLLM's cache groups and their layers apart. rank: tensor-parallel; None: this process's.
    Raises ValueError as `model_record`."""
    _check_root(root)
    parallel = engine.parallel_config
    ranks = parallel.tensor_parallel_size
    facts = {
        "kind": "blocks",
        "vllm": ".".join(vllm_version.split(".")[:2]),
        "kv_cache_dtype": str(engine.cache_config.cache_dtype),
        "kv_cache_spec": digest(specs),
        # In words, too, since replicated groups would else be those of all sizes.
        "parallel": f"tp_size={ranks}",
        "hash_root": root.hex(),
        **_model_facts(engine),
    }
    if label:
        facts["label"] = short(label)
    name = str(engine.model_config.model)
    return ModelRecord(
        name=record_name(name),
        revision=facts.pop("revision", ""),
        hash_recipe=_recipe(facts.pop("hash_algorithm", "unknown")),
        tensor_parallel_rank=getattr(parallel, "rank", 0) % ranks if rank is None else rank,
        tensor_parallel_size=ranks,
        extra=facts,
        groups=tuple(groups),
    )


def _recipe(algorithm: str) -> str:
    """The name of how this engine hashes. kvtier's own recipes are others, since they know the root
    and this one does not say it."""
    plain = re.sub("[^a-z0-9.-]", "-", algorithm.lower())
    return f"vllm-engine-{plain[:40]}/1"


def _check_root(root: bytes) -> None:
    if len(root) != 32:
        raise ValueError(
            f"block hashes of {len(root)} bytes can be forged: set prefix_caching_hash_algo to "
            "sha256 or sha256_cbor"
        )


def _engine_facts(config: Any, root: bytes, vllm_version: str) -> dict[str, str]:
    """What vLLM's own offloading knows of the rows. config: an OffloadingConfig."""
    parallel = config.parallel
    sizes = ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    return {
        "vllm": ".".join(vllm_version.split(".")[:2]),
        "kv_cache_dtype": str(config.model.dtype),
        "kv_cache_layout": str(getattr(config, "kv_cache_layout", None)),
        "canonical_layout": str(getattr(config, "canonical_layout", False)),
        "replicated_layout": str(getattr(config, "replicated_layout", False)),
        "parallel": " ".join(f"{size}={getattr(parallel, size, 1)}" for size in sizes),
        "groups": digest(
            [[group.tokens_per_block, list(group.layer_names)] for group in config.groups]
        ),
        "tokens_per_hash": str(config.cache.tokens_per_hash),
        "hash_root": root.hex(),
    }


def _model_facts(engine: Any) -> dict[str, str]:
    """What a VllmConfig says of the weights and of what the model computes from them."""
    model, cache = engine.model_config, engine.cache_config
    facts = {
        "revision": short(_revision(model)),
        "architecture": short(" ".join(getattr(model, "architectures", None) or ())),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "model_config": config_digest(model.hf_config.to_dict()),
        "attention_backend": str(
            getattr(getattr(engine, "attention_config", None), "backend", None)
        ),
        "hash_algorithm": str(cache.prefix_caching_hash_algo)[:48],
    }
    weights = [model.model]
    speculative = getattr(engine, "speculative_config", None)
    if speculative is not None:
        # Layers of a draft model have their part of each row.
        draft = getattr(speculative, "model", None)
        facts["draft"] = short(f"{speculative.method} {draft} {_draft_revision(speculative)}")
        weights.append(draft)
    facts["weights"] = digest([files_of(path) for path in weights])
    load_format = str(engine.load_config.load_format)
    if load_format == "dummy":
        facts["dummy_weights"] = f"seed {model.seed}"
    if getattr(cache, "calculate_kv_scales", False):
        # Each engine finds scales of its own, which are in none of the rows.
        facts["kv_scales"] = f"of engine {engine.kv_transfer_config.engine_id}"
    return facts


def _revision(model: Any) -> str:
    """The commit that was loaded from the hub, or what was asked for, or ""."""
    commit = getattr(model.hf_config, "_commit_hash", None)
    return str(commit or model.revision or "")


def _draft_revision(speculative: Any) -> str:
    draft = getattr(speculative, "draft_model_config", None)
    return "" if draft is None else _revision(draft)
