# SPDX-License-Identifier: Apache-2.0
"""The model record of a vLLM engine: blocks of engines that differ in any of it never meet.

Everything that decides the bytes of a block goes in: the configuration of the model, the types and the
layout of its KV cache, how it is split over GPUs, how blocks are hashed, and the version of vLLM,
whose layouts are its own affair; versions that were shown to give the same bytes count as one. The
engine's start finds all of this out once. The record's revision says which weights the engine has
(_epochs.py), which may change while it runs.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._facts import config_digest, digest, record_name, short, weights_of
from .._model_config import weights
from .._settings import default_of
from .._weight_files import COMMIT, weights_digest
from ..model import KvGroup, ModelRecord
from .settings import settings_digest


# The formats that vLLM loads from the model's own files or commit, and a name for those that take other ones of
# them than most.
_FILES = {
    **dict.fromkeys(("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer"), ""),
    **dict.fromkeys(("sharded_state", "runai_streamer_sharded"), "sharded"),
    **{name: name for name in ("mistral", "npcache", "pt")},
}

# The ropes whose frequencies do not depend on `max_position_embeddings`, as vLLM lists them.
_CACHE_ONLY_ROPES = frozenset(("default", "linear", "llama3", "ntk", "proportional"))


@dataclass(frozen=True)
class EqualVersions:
    """Minor versions of vLLM that gave the same hashes and bits on devices of one type, for models all of
    whose layers have one of these specs, without quantization and drafters, in numbers of this type."""

    device: str
    versions: tuple[str, ...]
    specs: frozenset[str]
    numbers: str = "bfloat16"


#: As tests/vllm/compare_versions.py showed; docs/IDENTITY.md lists them.
EQUAL_VERSIONS: tuple[EqualVersions, ...] = (
    EqualVersions("cpu", ("0.31", "0.32"), frozenset({"FullAttentionSpec", "SlidingWindowSpec"})),
)


def processor_kind() -> str:
    """The kind of this host's processors, by which vLLM arranges keys in a block."""
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return platform.machine() + (" amx" if has_tiles else "")


def version_name(version: str, engine: Any, specs: Iterable[str]) -> str:
    """The name of a vLLM's version in a record: of equal ones, the first. engine: the VllmConfig.
    specs: the names of the classes of all layers'; the scheduler does not see those of a drafter that
    share a group with the target's."""
    minor = ".".join(version.split(".")[:2])
    device, numbers, kinds = engine.device_config.device_type, _numbers(engine), set(specs)
    for equal in EQUAL_VERSIONS:
        is_same = device == equal.device and numbers == equal.numbers and not draft_models(engine)
        if is_same and minor in equal.versions and kinds and kinds <= equal.specs:
            return equal.versions[0]
    return minor


def _numbers(engine: Any) -> str | None:
    """The type of the model's numbers and of its KV cache's; None: they are several, or quantized."""
    model, own = engine.model_config, str(engine.cache_config.cache_dtype)
    numbers = str(model.dtype).removeprefix("torch.")
    return numbers if model.quantization is None and own in ("auto", numbers) else None


def described(spec: Any) -> str:
    """A spec of layers in words: its class and the fields that have not their defaults. A field that
    one version has and another has not tells nothing of layers that do not use it. Versions in which
    a default means something else are not equal."""
    told = [
        f"{field.name}={getattr(spec, field.name)!r}"
        for field in sorted(dataclasses.fields(spec), key=lambda field: field.name)
        if getattr(spec, field.name) != default_of(field)
    ]
    return f"{type(spec).__name__}({', '.join(told)})"


def hash_root() -> bytes | None:
    """The hash that vLLM's chains begin with; None before the engine has chosen it."""
    from vllm.v1.core import kv_cache_utils

    root = getattr(kv_cache_utils, "NONE_HASH", None)
    return None if root is None else bytes(root)


@dataclass(frozen=True)
class ModelFacts:
    """The part of a record that stays the same while the engine runs. extra: as a record's, without the
    root of the hashes."""

    name: str
    hash_recipe: str
    extra: Mapping[str, str]

    def record(
        self,
        root: bytes,
        weights: str,
        groups: Sequence[KvGroup],
        rank: int = 0,
        ranks: int = 1,
    ) -> ModelRecord:
        """root: of the engine's hashes. weights: which they are. rank: tensor-parallel. Raises
        ValueError for hashes that are too short to be trusted."""
        if len(root) != 32:
            raise ValueError(
                f"block hashes of {len(root)} bytes can be forged: set prefix_caching_hash_algo to "
                "sha256 or sha256_cbor"
            )
        return ModelRecord(
            name=self.name,
            revision=weights,
            hash_recipe=self.hash_recipe,
            tensor_parallel_rank=rank,
            tensor_parallel_size=ranks,
            extra={**self.extra, "hash_root": root.hex()},
            groups=tuple(groups),
        )


def draft_models(engine: Any) -> list[Any]:
    """The configuration of a VllmConfig's draft model, whose layers have their part of each block. Ways to
    draft without a model have none, or the target's."""
    speculative = getattr(engine, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    is_own = draft is not None and draft is not getattr(speculative, "target_model_config", None)
    return [draft] if is_own else []


def block_facts(engine: Any, specs: Sequence[Any], version: str, label: str) -> ModelFacts:
    """Describes the blocks of an engine's own KV cache. specs: all that tells vLLM's cache groups and
    their layers apart. version: `version_name`'s."""
    facts = {
        "kind": "blocks",
        "vllm": version,
        "kv_cache_dtype": str(engine.cache_config.cache_dtype),
        "kv_cache_spec": digest(specs),
        # In words, too, since replicated groups would else be those of all sizes.
        "parallel": f"tp_size={engine.parallel_config.tensor_parallel_size}",
        **_model_facts(engine),
    }
    return _facts_of(_name(engine.model_config), facts, label)


def loaded_weights(engine: Any, label: str, whole: bool = False) -> str | None:
    """Names the weights that the engine has loaded, by their content; None: it is not known which they
    are, and the user has not named them. To be called once, right after the load. engine: the
    VllmConfig. label: the user's name for them. whole: reads the files whole."""
    return weights_of(_weight_names(engine, whole), label)


def _weight_names(engine: Any, whole: bool) -> list[str | None]:
    """Names the model's and a draft model's, whose layers have their part of each block."""
    names = [_weight_name(engine.model_config, engine.load_config, whole)]
    for draft in draft_models(engine):
        load = getattr(engine.speculative_config, "draft_load_config", None) or engine.load_config
        names.append(_weight_name(draft, load, whole))
    return names


def _weight_name(model: Any, load: Any, whole: bool) -> str | None:
    form = str(load.load_format)
    if form == "dummy":
        return f"dummy:{model.seed}"
    if getattr(model, "model_weights", "") or form not in _FILES:
        return None  # in an object store, of which only small files are here, or in another place
    try:
        content = weights_digest(model.model, whole)
    except OSError:
        return None
    commit = getattr(getattr(model, "hf_config", None), "_commit_hash", None)
    revision = str(getattr(model, "revision", None) or "")
    if os.path.exists(model.model):
        commit = None  # vLLM reads the files there, whatever commit it is given
    elif COMMIT.fullmatch(revision):
        commit = revision
    elif getattr(model, "hf_config_path", None):
        commit = None  # of the configuration's repository
    name = f"files:{content}" if content else f"commit:{commit}" if commit else None
    if cache := getattr(load, "download_dir", None):  # which the configuration is not from
        name = weights(model.model, revision, whole, cache)
    return f"{name}.{_FILES[form]}" if name and _FILES[form] else name


def _facts_of(name: str, facts: dict[str, str], label: str) -> ModelFacts:
    if label:
        facts["label"] = short(label)
    return ModelFacts(name, _recipe(facts.pop("hash_algorithm", "unknown")), facts)


def _name(model: Any) -> str:
    """The hub's name of a model. A model in a directory is named by its architecture and configuration
    instead, since the same model may be at another path."""
    if not os.path.isdir(str(model.model)):
        return record_name(str(model.model))
    architectures = getattr(model, "architectures", None) or ["model"]
    return record_name(f"{architectures[0]}-{config_digest(model.hf_config.to_dict())[:8]}")


def _recipe(algorithm: str) -> str:
    """The name of how this engine hashes. kvtier's own recipes are others, since they know the root
    and this one does not say it."""
    plain = re.sub("[^a-z0-9.-]", "-", algorithm.lower())
    return f"vllm-engine-{plain[:40]}/1"


def _draft_configuration(model: Any) -> str:
    """As its files have it. vLLM writes into it how many tokens are sampled from, and raises
    `max_position_embeddings` to the engine's longest sequence, by which most ropes only size a table."""
    fields = model.hf_config.to_dict()
    written = {"dspark_draft_topk", "xpress_topc"}
    if _CACHE_ONLY_ROPES.issuperset(_ropes(fields)):
        written.add("max_position_embeddings")

    def own(part: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name not in written}

    inner = fields.get("model")  # of EAGLE's, with a path like the outer one
    return config_digest(own({**fields, "model": config_digest(own(inner))} if isinstance(inner, dict) else fields))


def _ropes(fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _ropes(value)
        elif name == "rope_type":
            yield str(value)


def _longest(model: Any) -> str:
    """The longest sequence, where it decides how vLLM computes shorter ones, too: by which factors of the
    rope, and whether it tunes the temperature of attention; "" elsewhere."""
    architectures = " ".join(getattr(model, "architectures", None) or ())
    if "longrope" not in str(model.hf_config.to_dict()) and "Llama4" not in architectures:
        return ""
    longest = [getattr(model, "original_max_model_len", None), model.max_model_len]
    chosen = getattr(model, "override_generation_config", None) or {}
    return f"{longest} {chosen.get('attn_temperature_tuning')}"


def _model_facts(engine: Any) -> dict[str, str]:
    """Everything that a VllmConfig says of the model but for its weights."""
    model, cache = engine.model_config, engine.cache_config
    drafts = draft_models(engine)
    facts = {
        "architecture": short(" ".join(getattr(model, "architectures", None) or ())),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "model_config": " ".join([config_digest(model.hf_config.to_dict()), *map(_draft_configuration, drafts)]),
        "attention_backend": str(
            getattr(getattr(engine, "attention_config", None), "backend", None)
        ),
        "hash_algorithm": str(cache.prefix_caching_hash_algo)[:48],
    }
    if engine.device_config.device_type == "cpu":
        facts["processor"] = processor_kind()
    if longest := " ".join(filter(None, map(_longest, [model, *drafts]))):
        facts["longest"] = longest
    # Hashes of images have a request's own, and not the engine's.
    processor = getattr(getattr(model, "multimodal_config", None), "mm_processor_kwargs", None)
    if processor:
        facts["mm_processor"] = digest(processor)
    speculative = getattr(engine, "speculative_config", None)
    if speculative is not None:
        facts["draft"] = str(speculative.method)
    if settings := settings_digest(engine):
        facts["settings"] = settings
    if getattr(cache, "calculate_kv_scales", False):
        # Each engine finds scales of its own, which are in none of the rows.
        facts["kv_scales"] = f"of engine {engine.kv_transfer_config.engine_id}"
    return facts
