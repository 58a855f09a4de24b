# SPDX-License-Identifier: Apache-2.0
"""Whether a pass through a model computes the keys and values that its tokens alone decide: a caller may give it
embeddings, masks, positions and more."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence, Set
from typing import Any

import torch

from .._callers import locals_within

# Arguments that change no keys and values. Any other one may, such as `is_causal` and lengths of packed sequences.
_HARMLESS = frozenset(
    {
        "input_ids",
        "labels",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "return_dict",
        "use_cache",
    }
)
# Arguments that describe images and sounds, which change nothing of the tokens before them.
_MEDIA = re.compile(
    "aspect_ratio_|audio_|feature_|images?_|input_features|interpolate_|mm_encoder_|num_frames|pixel_"
    "|second_per_grid|spatial_shapes|target_sizes|video_"
)


def fault_of_pass(
    model: Any, position: int, count: int, known: Sequence[int], opaque: Set[int], token_type: Any
) -> str | None:
    """The reason why the pass under way, which begins at a position, must not be stored. count: its tokens; 0: not
    known. known: tokens of the sequence, as far as they are; token_type: theirs. From an `opaque` token on
    nothing is stored."""
    if not opaque.isdisjoint(known[:position]):
        return None
    given = _arguments(model)
    if given is None or given["input_ids"] is None:
        return "something else than this model's tokens is computed"
    ids = torch.as_tensor(given["input_ids"]).reshape(-1).tolist()
    plain = next((i for i, token in enumerate(ids) if token in opaque), len(ids))
    others = (one != other for one, other in zip(ids[:plain], known[position:]))
    if count not in (0, len(ids)) or any(others):
        return "the model computes other tokens than this cache is for"
    # Gemma 3 takes them out behind the prompt, where they would say nothing.
    are_taken_out = "token_type_ids" in given and token_type == 0 and position >= len(known)
    if token_type is not None and given.get("token_type_ids") is None and not are_taken_out:
        return "the model is given no token_type_ids"
    has_media = plain < len(ids) or not opaque.isdisjoint(known)
    for name, value in given.items():
        is_empty = value is None or isinstance(value, dict) and not value
        if is_empty or name in _HARMLESS or (has_media and _MEDIA.match(name)):
            continue
        if not _is_plain(name, value, position, len(ids), plain, token_type):
            return f"the model is given {name} that its tokens do not tell"
    return None


def _is_plain(
    name: str, value: Any, position: int, count: int, plain: int, token_type: Any
) -> bool:
    """Whether an argument says of the first `plain` of a pass's tokens only what would hold without it."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return False
    if name == "attention_mask":
        # One that is too short would be filled up with zeros.
        is_long = value.ndim == 2 and value.shape[1] >= position + count
        return is_long and bool(value[:, : position + plain].all())
    positions = torch.arange(position, position + plain, device=value.device)
    expected = {
        "cache_position": positions,
        "mm_token_type_ids": 0,
        "position_ids": positions,
        "token_type_ids": token_type,
    }.get(name)
    if expected is None or value.shape[-1] < count:
        return False
    # Some are of all tokens so far.
    return bool((value[..., -count:][..., :plain] == expected).all())


def _arguments(model: Any) -> dict[str, Any] | None:
    """The arguments by name of the outermost call under way of a model, or of one of its modules, that has
    `input_ids`. Calls of torch have them as they were given, where `forward` may have changed them."""
    own = set() if model is None else {id(module) for module in model.modules()}
    for call in reversed(locals_within("_call_impl", lambda one: id(one) in own)):
        parameters = inspect.signature(call["self"].forward).parameters.values()
        names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        given = {**dict(zip(names, call["args"])), **call["kwargs"]}
        if "input_ids" in given:
            return given
    return None
