# SPDX-License-Identifier: Apache-2.0
"""Samples of a model's weights in memory, by which other weights are noticed however they came there:
torch counts neither `p.data.copy_(x)` nor `p.data = x` as a write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch


def spread(
    model: torch.nn.Module, most: int, without: str | None = None
) -> list[Callable[[], torch.Tensor | None]]:
    """Functions that return parameters from all over a model, each time as the model has it; None: it
    has it no more. without: the name of modules that are left out with all that is in them."""
    found = [
        (module._parameters, name)
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.numel() > 0 and not parameter.is_meta and without not in path.split(".")
    ]
    step = max(1.0, len(found) / most)
    chosen = [found[int(number * step)] for number in range(min(len(found), most))]
    return [functools.partial(owned.get, name) for owned, name in chosen]


def piece(tensor: torch.Tensor, most_bytes: int) -> torch.Tensor:
    """Bytes from the middle of a tensor's memory, whatever its type and order: a view."""
    size = tensor.element_size()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    length = (last + 1) * size
    taken = min(length, most_bytes)
    first = tensor.storage_offset() * size + (length - taken) // 2
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return raw.set_(tensor.untyped_storage(), first, (taken,))


def sample(tensors: Sequence[torch.Tensor | None], most_bytes: int) -> bytes:
    """A piece of each tensor, in one copy from each device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor is not None and not tensor.is_meta and tensor.numel() > 0:
            by_device.setdefault(tensor.device, []).append(piece(tensor, most_bytes))
    return b"".join(torch.cat(pieces).cpu().numpy().tobytes() for pieces in by_device.values())
