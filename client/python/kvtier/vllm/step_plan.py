# SPDX-License-Identifier: Apache-2.0
"""The scheduler's plan of one step for the workers: blocks to load and to store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..types import Retention
from .kept_cache import KeptChanges


class Tensors(NamedTuple):
    """An adapter's. change: how often it had got others when it got these. digest: of the files that they
    were read from; empty: not known."""

    change: int
    digest: bytes


@dataclass
class BlockList:
    """Blocks of one cache group, by its place in the connector's list of groups. request,
    disk_tokens (of blocks that were found on disk only): of loads only. number, parents (None for
    the first block), depths (positions in the request) and retentions (by position in the list, of
    blocks whose requests wish for another one than the engine's), compare (the daemon may have
    blocks, and compares them): of stores only, which are of all requests of a step. adapter: its number in
    vLLM, and the tensors by which the blocks were computed."""

    request: str
    group: int
    blocks: list[int]
    hashes: list[bytes]
    parents: list[bytes | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    number: int = 0
    disk_tokens: int = 0
    retentions: dict[int, Retention] = field(default_factory=dict)
    compare: bool = False
    adapter: tuple[int, Tensors] | None = None


@dataclass
class StepPlan:
    """Tells each worker about one step. epoch: how often the weights had become others when it was
    made. loads: by request, which is to be reported when all of its lists are loaded, at once if
    there are none. stores: for each cache group and adapter. kept: of its table of blocks
    that outlive the engine. questions: as LoadedAdapters.ask."""

    epoch: int = 0
    loads: dict[str, list[BlockList]] = field(default_factory=dict)
    stores: list[BlockList] = field(default_factory=list)
    kept: KeptChanges = field(default_factory=lambda: KeptChanges(clear=True))
    questions: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores)

    def store_of(
        self, group: int, compare: bool, adapter: tuple[int, Tensors] | None, most_blocks: int
    ) -> BlockList | None:
        """The last such store, if it has so many at most: blocks follow their parents."""
        for one in reversed(self.stores):
            if (one.group, one.compare, one.adapter) == (group, compare, adapter):
                return one if len(one.blocks) <= most_blocks else None
        return None

    def stored_blocks(self) -> int:
        return sum(len(one.blocks) for one in self.stores)


@dataclass
class Run:
    """vLLM's blocks of one group that follow each other in a request, from position `first` on.
    index: the place of the group."""

    index: int
    first: int
    blocks: list[Any]


def runs_of(index: int, first: int, blocks: Sequence[Any]) -> list[Run]:
    """Null blocks are where a window or a state has left no block."""
    runs: list[Run] = []
    follows = False
    for position, block in enumerate(blocks, first):
        if block.is_null:
            follows = False
        elif follows:
            runs[-1].blocks.append(block)
        else:
            runs.append(Run(index, position, [block]))
            follows = True
    return runs
