# SPDX-License-Identifier: Apache-2.0
"""A model's KV cache, as its configuration of the transformers library describes it.

transformers is not needed and not imported: a configuration is an object with `to_dict`, a mapping,
or the path of a config.json or of its directory. All of it may be wrong or of a kind that is not
known here; what cannot be told is an error that says what to pass instead.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Union

from ._facts import config_digest, digest, short
from ._weight_files import COMMIT, weights_digest
from .errors import KvtierError, Status, error_of, invalid

Source = Union[str, "os.PathLike[str]", Mapping[str, Any], Any]

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
# With any of these, some layers keep something that the fields above do not tell.
_OTHER_LAYERS = (
    "attn_layer_indices",
    "attn_layer_period",
    "full_attention_interval",
    "global_head_dim",
    "hybrid_override_pattern",
    "layers_block_type",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
)
_WITHOUT_WINDOW = frozenset({"full_attention", "chunked_attention", "attention"})
# Fields that decide how positions go into keys, wherever a version of transformers puts them.
_ROPE = ("rope_local_base_freq", "partial_rotary_factor", "rotary_dim", "rotary_pct", "alibi")
_MAX_COUNT = 1_000_000


def read(source: Source) -> dict[str, Any]:
    """The configuration as a dictionary. Raises NotFoundError (no such file),
    InvalidArgumentError (not a configuration)."""
    if isinstance(source, (str, os.PathLike)):
        path = pathlib.Path(source)
        path = path / "config.json" if path.is_dir() else path
        try:
            source = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise error_of(Status.NOT_FOUND, "no_config", f"{path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise invalid("bad_config", f"{path}: {error}") from error
    elif not isinstance(source, Mapping) and callable(getattr(source, "to_dict", None)):
        # An object keeps these two beside what to_dict gives.
        beside = {name: getattr(source, name, None) for name in ("_name_or_path", "_commit_hash")}
        source = {**source.to_dict(), **{name: value for name, value in beside.items() if value}}
    if not isinstance(source, Mapping):
        raise invalid("bad_config", f"{type(source).__name__} is no model's configuration")
    return dict(source)


def directory_of(name: str, revision: str, cache: str = "") -> tuple[pathlib.Path, str]:
    """Where the files of a model are, and their commit, or "" if that cannot be told: `name` is a
    directory, or a model in the hub's cache on this machine, or in `cache` in its place. `revision` says
    nothing of a directory, for which engines ignore it. Raises NotFoundError."""
    path = pathlib.Path(name)
    if path.is_dir():
        whole = path.resolve()
        in_cache = whole.parent.name == "snapshots" and COMMIT.fullmatch(whole.name)
        return path, whole.name if in_cache else ""
    model = _hub_directory(name, cache)
    reference = model / "refs" / (revision or "main")
    commit = revision
    if reference.is_file():
        commit = reference.read_text(encoding="utf-8").strip()
    if not COMMIT.fullmatch(commit) or not (model / "snapshots" / commit).is_dir():
        wanted = f"{name}, revision {revision or 'main'}"
        raise error_of(Status.NOT_FOUND, "no_model", f"{wanted}: no directory, nor in {model.parent}")
    return model / "snapshots" / commit, commit


def _hub_directory(name: str, cache: str = "") -> pathlib.Path:
    """Where a cache has a model, if it does: by default the one that the hub's library would take."""
    given = os.environ.get
    home = given("HF_HOME", os.path.join(given("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    hub = given("HF_HUB_CACHE", given("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub")))
    # A directory that the engine is told comes from its options, in which no shell has expanded it.
    cache = os.path.expanduser(cache) if cache else os.path.expandvars(os.path.expanduser(hub))
    return pathlib.Path(cache, "models--" + name.replace("/", "--"))


def groups(config: Mapping[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Fields of a KvGroup, without dtype and block_tokens, for each kind of layer: what one of
    `ranks` tensor-parallel ranks keeps. Raises InvalidArgumentError, UnsupportedError."""
    config = text_part(config)
    layers = _count(config, _LAYERS)
    if not layers:
        raise invalid("bad_config", "no num_hidden_layers: is this a model's configuration?")
    _refuse_other_layers(config)
    if latent := _count(config, ("kv_lora_rank",)):
        row = latent + _count(config, ("qk_rope_head_dim",))
        return [{"layers": layers, "kv_heads": 1, "k_head_dim": row, "replicated": ranks > 1}]
    heads = _kv_heads(config)
    if heads >= ranks and heads % ranks:
        raise invalid("bad_tensor_parallel", f"{heads} KV heads for {ranks} ranks")
    dim = _count(config, _HEAD_DIM)
    if not dim and (query_heads := _count(config, _HEADS)):
        dim = _count(config, _HIDDEN) // query_heads
    if not dim:
        raise invalid("bad_config", "no head_dim, nor hidden_size to tell it from")
    values = _count(config, ("v_head_dim",)) or dim
    shape = {"kv_heads": max(1, heads // ranks), "k_head_dim": dim, "v_head_dim": values}
    window, windowed = _windowed_layers(config, layers)
    kinds = [{"layers": layers - windowed, **shape}] if windowed < layers else []
    if windowed:
        kinds.append({"layers": windowed, **shape, "window_tokens": window})
    return kinds


def dtype(config: Mapping[str, Any]) -> Any:
    """The dtype that weights and, unless the engine is told otherwise, KV have. Raises
    InvalidArgumentError: none is named."""
    for part in (text_part(config), config):
        for name in ("dtype", "torch_dtype"):
            if part.get(name):
                return part[name]
    raise invalid("no_dtype", "the configuration names none: pass dtype=, the KV cache's")


def facts(config: Mapping[str, Any]) -> dict[str, str]:
    """Other settings that change the bytes: rope and quantization, as texts for a record's `extra`.
    """
    text = text_part(config)
    rope = {name: text[name] for name in _ROPE if text.get(name) is not None}
    rope["rope_theta"] = text.get("rope_theta")
    for name in ("rope_scaling", "rope_parameters"):
        rope.update(text[name] if isinstance(text.get(name), Mapping) else {})
    kind = rope.pop("type", None)  # the older name
    rope.setdefault("rope_type", kind or "default")
    rope = {name: _number(value) for name, value in rope.items() if value is not None}
    result = {"rope": short(json.dumps(rope, sort_keys=True, separators=(",", ":"), default=str))}
    quantization: Any = config.get("quantization_config") or text.get("quantization_config")
    if callable(getattr(quantization, "to_dict", None)):
        quantization = quantization.to_dict()
    if quantization is not None:
        named = isinstance(quantization, Mapping) and quantization.get("quant_method")
        result["quantization"] = short(f"{named or 'unnamed'} {digest(quantization)}")
    return result


def weights(name: str, revision: str = "", whole: bool = False, cache: str = "") -> str | None:
    """Names the weights under a model's name by their content, as far as this machine has them; None:
    it has neither their files nor their commit. whole: reads the files whole. cache: as of
    `directory_of`."""
    try:
        content = weights_digest(name, whole)
        if content is not None:
            return f"files:{content}"
        _, commit = directory_of(name, revision, cache)
    except (KvtierError, OSError, ValueError):
        commit = "" if os.path.exists(name) else revision
    return f"commit:{commit}" if COMMIT.fullmatch(commit) else None


def revision_of(directory: pathlib.Path, commit: str, revision: str) -> str:
    """Tells directories of weights apart: by the commit, or the digest of the files, as far as there
    are weights, behind the revision that the caller gave. Raises OSError."""
    content = None if commit else weights_digest(str(directory))
    return f"{revision} files:{content}".lstrip() if content else commit or revision


def name_of(name: str) -> str:
    """`name`, unless it is a directory: the same model may be at another path, and is named by its
    architecture and configuration instead."""
    if not os.path.isdir(name):
        return name
    try:
        config = read(name)
    except KvtierError:
        return "model"
    architecture = (config.get("architectures") or ["model"])[0]
    return f"{architecture}-{config_digest(config)[:8]}"


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Models of text and images keep what concerns the text in a section of its own."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def rope_by_length(layer: Any) -> str | None:
    """The kind of a layer's rope, if it goes by the length of a sequence; in SGLang by the longest of a batch."""
    kinds = getattr(layer, "rope_type", None)
    for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
        if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
            return kind
    return "longrope" if "LongRoPE" in type(layer).__name__ else None


def _count(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and 0 < value <= _MAX_COUNT:
            return int(value)
    return 0


def _kv_heads(config: Mapping[str, Any]) -> int:
    heads = _count(config, _KV_HEADS)
    inner = config.get("attn_config")
    if not heads and isinstance(inner, Mapping):
        heads = _count(inner, ("kv_n_heads",))
    if config.get("multi_query") is True and config.get("new_decoder_architecture") is not True:
        heads = 1
    heads = heads or _count(config, _HEADS)
    if not heads:
        raise invalid("bad_config", "no num_key_value_heads or num_attention_heads")
    return heads


def _windowed_layers(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """The window, and how many layers have it. Only `layer_types` tells: a layer that might look
    at everything is one that does, which costs memory and is never wrong."""
    kinds = config.get("layer_types") or []
    window = _count(config, ("sliding_window",))
    if not kinds or not window:
        return 0, 0
    if len(kinds) != layers:
        raise invalid("bad_config", f"{len(kinds)} layer_types of {layers} layers")
    return window, sum(kind == "sliding_attention" for kind in kinds)


def _refuse_other_layers(config: Mapping[str, Any]) -> None:
    known = _WITHOUT_WINDOW | {"sliding_attention"}
    other = [f"layer type {kind}" for kind in config.get("layer_types") or [] if kind not in known]
    other += [name for name in _OTHER_LAYERS if config.get(name)]
    if config.get("is_encoder_decoder"):
        other.append("an encoder")
    if other:
        hint = "give ModelRecord the groups that the engine keeps"
        raise error_of(Status.UNSUPPORTED, "other_layers", f"{other[0]}: {hint}")


def _number(value: Any) -> Any:
    """500000.0 and 500000 are one rope_theta."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
