# SPDX-License-Identifier: Apache-2.0
"""Samples of a model's weights in memory, by which other weights are noticed however they came there:
torch counts neither `p.data.copy_(x)` nor `p.data = x` as a write."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def piece(tensor: torch.Tensor, most_bytes: int) -> torch.Tensor:
    """Bytes from the middle of a tensor's memory, whatever its type and order: a view."""
    size = tensor.element_size()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    length = (last + 1) * size
    taken = min(length, most_bytes)
    first = tensor.storage_offset() * size + (length - taken) // 2
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return raw.set_(tensor.untyped_storage(), first, (taken,))


def sample(tensors: Sequence[torch.Tensor], most_bytes: int) -> bytes:
    """A piece of each tensor, in one copy from each device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if not tensor.is_meta and tensor.numel() > 0:
            by_device.setdefault(tensor.device, []).append(piece(tensor, most_bytes))
    return b"".join(torch.cat(pieces).cpu().numpy().tobytes() for pieces in by_device.values())
