# SPDX-License-Identifier: Apache-2.0
"""The user's settings for kvtier's modules, and which pages of SGLang may meet: whatever decides
their bytes is in the record of their pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolName

from .._epochs import unnamed_epoch
from .._facts import digest, engine_of, record_name, short, weights_of
from .._model_config import name_of, weights
from .._options import COMMON, Number, Option, Text, retry_pauses
from .prefixes import logger
from .settings import settings_digest

# These say where the weights are.
_PLACES = (
    "model_path",
    "revision",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "download_dir",
)
# These, from where they are read.
_WAYS = ("load_format", "speculative_draft_load_format", "weight_cache_mode")
# The formats that SGLang loads from the model's own files or commit.
_OF_FILES = frozenset("""
    auto bitsandbytes dummy fastsafetensors flash_rl gguf instanttensor layered mistral npcache pt
    runai_streamer safetensors sharded_state
    """.split())

# The facts of a server's adapters, and of all other arguments.
_ADAPTERS, _SETTINGS = "adapters", "arguments"


LINKER_OPTIONS: dict[str, Option] = {
    **COMMON,
    "layer_parts": Number(4, 1, 1024, whole=True),
    "load_timeout_ms": Number(30_000, 1, 3_600_000),
    "staging_bytes": Number(256 << 20, 1, 1 << 40, whole=True),
    "weights_run": Text("", 128),
}


@dataclass(frozen=True)
class Options:
    """socket: where the daemon listens. identity: tells pages apart in addition to all else.
    retry_s: the shortest and the longest pause between tries to reach the daemon. whole: reads files
    whole to tell the weights."""

    socket: str
    identity: str
    retry_s: tuple[float, float]
    whole: bool

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """values: as read."""
        pauses, whole = retry_pauses(values), values["weights_digest"]
        return cls(values["socket"], values["identity"], pauses, whole)


def record_options(model_name: str | None) -> dict[str, Any]:
    """The fields that the records of all of a model's pools share."""
    name = name_of(str(model_name or "unnamed"))
    return {"name": record_name(name), "hash_recipe": "sglang-pages/1"}


def page_facts(
    config: Any, pool: str, layout: str, arguments: dict[str, str], label: str
) -> dict[str, str]:
    """Everything that decides the bytes of a page, beside its tokens, as a record's extra. config:
    a HiCacheStorageConfig. layout: the form of the pool's pages, short enough for a record.
    arguments: see `arguments_of`. label: whatever else tells pages apart."""
    # Keys and values of latent attention are the same on all ranks, states are not.
    replicated = config.is_mla_model and pool != PoolName.MAMBA.value
    ranks = [("pp", config.pp_rank, config.pp_size)]
    ranks.append(("cp", config.attn_cp_rank, config.attn_cp_size))
    ranks.append(("dcp", config.dcp_rank, config.dcp_size))
    ranks.append(("tp", 0, 1) if replicated else ("tp", config.tp_rank, config.tp_size))
    facts = {
        "engine": engine_of("sglang"),
        "pool": pool,
        "ranks": " ".join(f"{kind}={rank}/{size}" for kind, rank, size in ranks),
        "layout": layout,
        _SETTINGS: arguments.get(_SETTINGS, "unknown"),
    }
    if arguments.get(_ADAPTERS):
        facts[_ADAPTERS] = arguments[_ADAPTERS]
    if label:
        facts["label"] = short(label)
    return facts


def loaded_weights(
    served_name: str | None, arguments: dict[str, str], label: str, whole: bool = False
) -> str | None:
    """Names the weights of the model and of its draft by their content; None: it is not known which
    they are, and the user has not named them. A server may call its model by another name than that
    which says where the weights are. label: the user's name for them. whole: reads the files whole."""
    given = {name: value for name, value in arguments.items() if value != "None"}
    place, way = given.get("model_path") or served_name or "", given.get("load_format", "auto")
    is_read, cache = given.get("weight_cache_mode") != "client", given.get("download_dir", "")
    revision = given.get("revision", "")
    names = [weights(place, revision, whole, cache) if is_read and way in _OF_FILES else None]
    if draft := given.get("speculative_draft_model_path"):
        revision = given.get("speculative_draft_model_revision", "")
        is_read &= given.get("speculative_draft_load_format", way) in _OF_FILES
        names.append(weights(draft, revision, whole, cache) if is_read else None)
    name = weights_of(names, label)
    if name is None:
        logger.warning(
            "kvtier: it is not known which weights %s has: no other engine is served its pages, nor "
            "this one after a restart, unless the option `identity` names them",
            served_name or place,
        )
    return name


def weight_version() -> str | None:
    """The version that the trainer has given the weights of the server that this process is."""
    try:
        from sglang.srt.runtime_context import get_serving

        return str(get_serving().weight_version)
    except Exception:
        return None  # not within a server, or another release


def arguments_of(server_arguments: Any) -> dict[str, str]:
    """SGLang's arguments that say where the weights are, and the facts of all that change a page's bytes."""
    found = {name: str(getattr(server_arguments, name, None)) for name in _PLACES + _WAYS}
    found[_SETTINGS] = settings_digest(server_arguments)
    if adapters := getattr(server_arguments, "lora_paths", None):
        cache = getattr(server_arguments, "download_dir", None) or ""
        found[_ADAPTERS] = _adapters_digest(adapters, cache)
    return found


def _adapters_digest(adapters: Any, cache: str) -> str:
    """Digests the tensors of the adapters (LoRA) that a server is started with, for SGLang's page hashes
    have their names and paths alone. Adapters that are loaded later have names that no other server has."""
    named = []
    for one in adapters.values() if isinstance(adapters, Mapping) else adapters:
        given = one["lora_path"] if isinstance(one, Mapping) else getattr(one, "lora_path", one)
        path = str(given).split("=", 1)[-1]  # "name=path", as on the command line
        named.append([path, weights(path, cache=cache) or unnamed_epoch()])
    return digest(sorted(named))[:32]


def running_arguments() -> dict[str, str]:
    """The arguments of the server that this process is, as far as they can be asked."""
    try:
        from sglang.srt.runtime_context import get_server_args

        arguments = get_server_args()
    except Exception:
        # Not within a server, or another release.
        return {}
    return arguments_of(arguments)
