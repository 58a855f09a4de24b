# SPDX-License-Identifier: Apache-2.0
"""A trial of a few tokens finds a model's layers, and that they can be kept: the memory of a prefix must
depend on the prefix alone, and count in all that is computed behind it."""

from __future__ import annotations

import inspect
from collections.abc import Set
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from .layers import Group, UnsupportedModelError, groups_of

# Tokens that are tried to learn what a model keeps: its states must reach the second step.
_PROBE_STEPS = (16, 2)
# So many of them also alone: few, since the fewer they are, the more those behind them would change.
_PROBE_PREFIX = 2
# How far two ways of computing a state may differ, relative to it: far more than rounding, far
# less than a state that was not continued.
_STATE_TOLERANCE = 0.05
# The same for keys and values: tokens behind them make 0.2 and more; rounding in bfloat16 0.03, but as much
# as they where it chooses another expert for a token, which it does for few.
_KEY_TOLERANCE = 0.15


def groups_by_trial(
    model: Any, tokens: list[int], opaque: Set[int], block_tokens: int, state_tokens: int
) -> tuple[Group, ...]:
    """The groups of a model's cache. tokens: some that it knows; opaque: those that stand for more than
    themselves. A few passes of few tokens. Raises UnsupportedModelError."""
    count = sum(_PROBE_STEPS)
    # Equal ones would not show which of them a layer has seen.
    known = getattr(model.config.get_text_config(), "vocab_size", 2 * count)
    differing = dict.fromkeys([*tokens, *range(min(2 * count, known))])
    # Repeated if the vocabulary has too few.
    probe = ([one for one in differing if one not in opaque] * count)[:count]
    cache = compute(model, probe, DynamicCache(config=model.config))
    if len(DynamicCache(config=model.config).layers) != len(cache.layers):
        raise UnsupportedModelError("its configuration does not tell its layers")
    groups = groups_of(cache, block_tokens, state_tokens)
    fault = _fault(model, probe, cache, groups)
    if fault:
        # Unless it was rounding, other tokens show it, too.
        probe = probe[-_PROBE_PREFIX:] + probe[:-_PROBE_PREFIX]
        cache = compute(model, probe, DynamicCache(config=model.config))
        fault = _fault(model, probe, cache, groups)
    if fault:
        raise UnsupportedModelError(fault)
    return groups


def compute(model: Any, tokens: list[int], cache: DynamicCache) -> DynamicCache:
    """Computes tokens behind those of the cache."""
    ids = torch.tensor([tokens], device=model.device)
    options: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        # Only the cache is wanted, and logits of a whole prompt may be larger than the model.
        options["logits_to_keep"] = 1
    with torch.no_grad():
        model(ids, **options)
    return cache


def _fault(
    model: Any, tokens: list[int], whole: DynamicCache, groups: tuple[Group, ...]
) -> str | None:
    """The reason why these tokens' memory cannot be kept. Raises UnsupportedModelError for one that does
    not go by the tokens."""
    if not _has_prefixes(model, tokens, whole, groups):
        return "the same tokens have other keys before other tokens"
    if not _continues_states(model, tokens, whole, groups):
        return "it does not continue states with several tokens"
    return None


def _has_prefixes(
    model: Any, tokens: list[int], whole: DynamicCache, groups: tuple[Group, ...]
) -> bool:
    """Some models put more before the prompt, which raises UnsupportedModelError, or let tokens see those
    behind them: the same beginning has other keys in each prompt."""
    alone = compute(model, tokens[:_PROBE_PREFIX], DynamicCache(config=model.config))
    for number in (number for group in groups for number in group.layers):
        one, other = whole.layers[number], alone.layers[number]
        if (one.get_seq_length(), other.get_seq_length()) != (len(tokens), _PROBE_PREFIX):
            raise UnsupportedModelError("its cache has not as many positions as there are tokens")
        if one.keys.shape[-2] < len(tokens):
            continue  # a window that the prefix has left
        for expected, found in ((one.keys, other.keys), (one.values, other.values)):
            if _differ(expected[..., :_PROBE_PREFIX, :], found, _KEY_TOLERANCE):
                return False
    return True


def _continues_states(
    model: Any, tokens: list[int], whole: DynamicCache, groups: tuple[Group, ...]
) -> bool:
    """Some models compute several tokens as if there were no state before them: a restored prefix
    would be ignored in silence."""
    parts = [part for group in groups for part in group.parts]
    if not parts:
        return True
    steps = DynamicCache(config=model.config)
    compute(model, tokens[: _PROBE_STEPS[0]], steps)
    compute(model, tokens[_PROBE_STEPS[0] :], steps)
    pairs = ((part.of(whole.layers), part.of(steps.layers)) for part in parts)
    return not any(_differ(*pair, _STATE_TOLERANCE) for pair in pairs)


def _differ(expected: torch.Tensor, found: torch.Tensor, tolerance: float) -> bool:
    expected = expected.float()
    return bool((expected - found.float()).norm() > tolerance * expected.norm())
