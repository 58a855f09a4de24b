# SPDX-License-Identifier: Apache-2.0
"""Memory in which attention kernels keep partial results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass
class _Part:
    memory: torch.Tensor
    shape: tuple[int, ...]


class Workspace:
    """Device memory for `decode`, `decode_shared`, `mla_decode` and `prefill`, kept from call to
    call; it grows as they need it, until it is dropped.

    One serves one stream at a time, any number of layers and steps one after another. A captured
    CUDA graph holds on to the memory it was captured with: use the workspace for nothing else while
    the graph lives, after a first call with the largest lengths. One thread at a time.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, Any], _Part] = {}

    @property
    def byte_count(self) -> int:
        """Held now, on all devices."""
        return sum(part.memory.numel() for part in self._parts.values())

    def memory(
        self, kernel: str, byte_count: int, beside: torch.Tensor, shape: tuple[int, ...] = ()
    ) -> torch.Tensor:
        """uint8 [at least byte_count] on the device of `beside`, fit for `kernel`: zero at first,
        and again when `shape` differs from the last call's. On the current stream."""
        import torch

        key = (kernel, beside.device)
        part = self._parts.get(key)
        if part is None or part.memory.numel() < byte_count:
            memory = torch.zeros(byte_count, dtype=torch.uint8, device=beside.device)
            part = self._parts[key] = _Part(memory, shape)
        elif part.shape != shape:
            part.memory.zero_()
            part.shape = shape
        return part.memory
