# SPDX-License-Identifier: Apache-2.0
"""Which model it is, told by its weights: blocks of models that differ never meet.

The weights themselves are read, since a name or a directory tells which weights were loaded and not
which are in memory now. Small tensors are hashed whole, and large ones by a sample. A model is
hashed whole that names neither a commit of the hub nor a directory, or that was seen to change in
memory.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from .._facts import config_digest, digest, record_name, short
from .._model_config import rope_by_length
from .._weight_files import weights_digest
from .._weight_sample import sample
from ..model import ModelRecord
from .layers import Group, UnsupportedModelError

logger = logging.getLogger("kvtier.transformers")

# Tensors of at most so many bytes are hashed whole, such as norms and most of LoRA's.
_WHOLE_BYTES = 64 << 10
_SAMPLES = 256
# Each prompt looks at so many bytes of each tensor.
_LOOK_BYTES = 512
# Hooks that only record what a layer puts out.
_RECORDING_HOOKS = "transformers.utils.output_capturing"
# Hooks that only move tensors to where they are needed, and the one that joins several.
_ACCELERATE = "accelerate.hooks"
_MOVING_HOOKS = ("AlignDevicesHook", "CpuOffload", "SequentialHook")
# Where transformers has functions that it puts in the place of a layer's, as the configuration says.
_CONFIGURED = ("transformers.distributed.", "transformers.integrations.", "transformers.quantizers.")
# Layers and containers that compute the same in training mode, in which new ones begin.
_MODELESS = (
    torch.nn.Embedding,
    torch.nn.Identity,
    torch.nn.Linear,
    torch.nn.ModuleDict,
    torch.nn.ModuleList,
)
# The time of a pass over all weights is worth a line in the log.
_LONG_PASS_BYTES = 4 << 30


def weights_version(model: Any) -> tuple[Any, ...]:
    """Changes when a tensor of the model is replaced or written: torch counts most writes, and a sample
    of each tensor shows those that it does not count. Raises UnsupportedModelError for a model that
    computes other KV now than its weights and its class say."""
    _check_that_weights_tell_all(model)
    tensors = dict(_tensors(model))
    counts = tuple(
        (name, id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for name, tensor in tensors.items()
    )
    looked_at = hashlib.sha256(sample(list(tensors.values()), _LOOK_BYTES)).digest()
    return (counts, looked_at, _adapters(model))


def configuration_of(model: Any) -> dict[str, str]:
    """The facts of a model's record that its configuration tells."""
    config = model.config
    attention = str(getattr(config.get_text_config(), "_attn_implementation", ""))
    return {"model_config": config_digest(config.to_dict()), "attention": attention}


def _check_that_weights_tell_all(model: Any) -> None:
    """Raises UnsupportedModelError for a model that computes other KV than its weights and its class
    say, by dropout, autocast, hooks or functions in the place of a layer's own, or whose weights
    cannot be read."""
    every = torch.nn.modules.module
    if every._global_forward_hooks or every._global_forward_pre_hooks:
        raise UnsupportedModelError("torch has hooks for the layers of all models")
    if any(tensor.is_meta for _, tensor in _tensors(model)):
        raise UnsupportedModelError("weights that are offloaded do not tell it from others")
    if torch.is_autocast_enabled(model.device.type):
        raise UnsupportedModelError("autocast changes the types that it computes in")
    for name, module in model.named_modules():
        if module.training and type(module) not in _MODELESS:
            raise UnsupportedModelError(f"{name or 'the model'} is in training mode")
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(getattr(hook, "__module__", "") != _RECORDING_HOOKS for hook in hooks):
            raise UnsupportedModelError(f"{name or 'the model'} has forward hooks")
        forward = vars(module).get("forward")
        if forward is not None and not _leads_to_own(module, forward):
            raise UnsupportedModelError(f"{name or 'the model'} has another forward than its class")
        if kind := rope_by_length(module):
            raise UnsupportedModelError(f"its {kind} rope goes by the length of the sequence")


def forget_positions(model: Any) -> list[weakref.ref[Any]]:
    """Models that see images keep by how much the last prompt's images moved its positions, and move by it
    what they compute behind any cache that is not empty. Returns the modules that do."""
    modules = [module for module in model.modules() if "rope_deltas" in vars(module)]
    for module in modules:
        module.rope_deltas = None
    return [weakref.ref(module) for module in modules]


def moves_positions(modules: list[weakref.ref[Any]]) -> bool:
    """Whether these have computed an image's prompt since they were forgotten."""
    kept = (getattr(module(), "rope_deltas", None) for module in modules)
    return any(bool(deltas.any()) for deltas in kept if deltas is not None)


def model_record(
    model: Any, groups: tuple[Group, ...], identity: str, has_changed: bool
) -> ModelRecord:
    """The record of a model as it is now. identity: whatever else tells its blocks apart. has_changed:
    since it was first seen."""
    config = model.config
    name = str(getattr(config, "_name_or_path", "") or "")
    commit = str(getattr(config, "_commit_hash", None) or "")
    files = _files_digest(name)
    whole = has_changed or not (commit or files)
    facts = {
        "engine": "transformers " + ".".join(transformers.__version__.split(".")[:2]),
        "class": type(model).__name__,
        **configuration_of(model),
        "files": files or commit,
        "adapters": _adapters(model),
        "layers": digest([[group.layers, [part.kind for part in group.parts]] for group in groups]),
    }
    if identity:
        facts["label"] = short(identity)
    if files or not name:
        # The same model may be at another path.
        name = f"{type(model).__name__}-{facts['model_config'][:8]}"
    return ModelRecord(
        name=record_name(name),
        revision=f"weights:{_weights_digest(model, whole)[:32]}",
        extra=facts,
        groups=tuple(group.kv for group in groups),
    )


def _leads_to_own(module: Any, forward: Any) -> bool:
    """Whether a function in the place of a module's forward computes what its class and configuration
    say: the class's own, also compiled or between accelerate's moves, or one of transformers."""
    if getattr(forward, "__self__", module) is not module:
        return False
    if getattr(forward, "__func__", None) is type(module).forward:
        return True
    if isinstance(forward, functools.partial):
        hook = getattr(module, "_hf_hook", None)
        is_moved = _home(forward.func) == _ACCELERATE and _only_moves(hook)
        return is_moved and _leads_to_own(module, getattr(module, "_old_forward", None))
    home = _home(forward)
    if home == "torch._dynamo.eval_frame":
        # A module that torch.compile made has such a function around the one that it was made from.
        is_made = type(module).__module__ == home
        inner = getattr(forward, "_torchdynamo_orig_callable", None)
        return is_made or _leads_to_own(module, inner)
    return home.startswith(_CONFIGURED)


def _home(function: Any) -> str:
    """The module that has a function's code, where __module__ may be that of a function it wraps."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _only_moves(hook: Any) -> bool:
    kind = type(hook)
    is_known = kind.__module__ == _ACCELERATE and kind.__name__ in _MOVING_HOOKS
    return is_known and all(map(_only_moves, getattr(hook, "hooks", ())))


def _files_digest(path: str) -> str:
    try:
        return weights_digest(path) or ""
    except OSError:
        return ""


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return itertools.chain(model.named_parameters(), model.named_buffers())


def _weights_digest(model: Any, whole: bool) -> str:
    if whole:
        byte_count = sum(tensor.nbytes for _, tensor in _tensors(model))
        if byte_count > _LONG_PASS_BYTES:
            logger.info("kvtier: hashing %d bytes of weights, which have no name", byte_count)
    weights = hashlib.sha256()
    for name, tensor in _tensors(model):
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel() == 0:
            continue
        flat = tensor.detach().reshape(-1)
        if not whole and tensor.nbytes > _WHOLE_BYTES:
            step = flat.numel() // _SAMPLES
            flat = flat[step // 2 :: step]
        weights.update(flat.contiguous().view(torch.uint8).cpu().numpy())
    return weights.hexdigest()


def _adapters(model: Any) -> str:
    """Adapters (PEFT), which of them are in use, and numbers of their layers that neither weights nor
    configuration tell, such as a scale that was set; their weights are among the model's."""
    configured = getattr(model, "peft_config", None) or {}
    switches = [
        (name, str(getattr(module, "active_adapters", "")), module.disable_adapters, _numbers(module))
        for name, module in model.named_modules()
        if isinstance(getattr(module, "disable_adapters", None), bool)
    ]
    if not configured and not switches:
        return "none"
    return digest([sorted((name, str(one)) for name, one in configured.items()), switches])


def _numbers(module: Any) -> dict[str, Any]:
    """The attributes of a module that are numbers, or dictionaries of numbers by adapter."""
    found = {}
    for name, value in vars(module).items():
        parts = value.values() if isinstance(value, dict) else [value]
        if not name.startswith("_") and all(isinstance(one, (int, float)) for one in parts):
            found[name] = value
    return found
