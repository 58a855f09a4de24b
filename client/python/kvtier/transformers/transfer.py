# SPDX-License-Identifier: Apache-2.0
"""Blocks of a model's groups between the daemon and host memory of this process.

Memory and regions are made anew for each load and each store, and so is the connection: nothing is
held between them, and a daemon that has ended and come back is found again.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..connection import connect
from ..errors import TimedOutError
from ..model import KvGroup, Model, ModelRecord
from ..regions import Region
from ..types import HitRule, Retention
from .layers import Group

# Half of the daemon's default limit for one call.
_BLOCKS_PER_CALL = 4096

#: For one group, a number for each block: 0, or the tiers that have it (kvtier.Presence).
Presence = npt.NDArray[np.uint8]


class BlockMemory:
    """Memory for some blocks of a group, which the daemon can map.

    Parts of the same layer follow each other: the keys of a layer in neighbouring blocks are one
    array. Tensors made from it keep it alive.
    """

    def __init__(self, group: Group, blocks: int) -> None:
        self.group = group
        self.blocks = blocks
        self._pieces: list[tuple[int, int, int]] = []
        offset = 0
        for piece in group.piece_bytes():
            self._pieces.append((offset, piece, piece))
            offset += blocks * piece
        self._bytes = offset
        self._fd = os.memfd_create("kvtier-transformers", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, self._bytes)
            self._memory = torch.frombuffer(mmap.mmap(self._fd, self._bytes), dtype=torch.uint8)
        except BaseException:
            os.close(self._fd)
            raise

    def open_region(self, session: Session, number: int) -> Region:
        """number: of the group in the record. Closes the descriptor; only once."""
        try:
            return session.connection.open_region(
                session.model,
                fd=self._fd,
                bytes=self._bytes,
                blocks=self.blocks,
                pieces=self._pieces,
                group=number,
            )
        finally:
            os.close(self._fd)

    def attention(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the group's layer so many, in place: [tokens, heads, dim]."""
        kv, dtype = self.group.kv, self.group.dtype
        keys, values = (self._piece(2 * layer + i).view(dtype) for i in range(2))
        tokens = self.blocks * kv.block_tokens
        return (
            keys.view(tokens, kv.kv_heads, kv.k_head_dim),
            values.view(tokens, kv.kv_heads, kv.v_head_dim),
        )

    def state(self, part: int) -> torch.Tensor:
        """The group's part so many of each block, in place: [blocks, *shape]."""
        what = self.group.parts[part]
        return self._piece(part).view(what.dtype).view(self.blocks, *what.shape)

    def _piece(self, number: int) -> torch.Tensor:
        offset, _, piece = self._pieces[number]
        return self._memory[offset : offset + self.blocks * piece]


class Session:
    """A connection on which a model is registered, for one load or store; a context manager.

    timeout_ms: for each copy. Making one raises KvtierError, LibraryNotFoundError.
    """

    def __init__(self, socket: str, record: ModelRecord, timeout_ms: int) -> None:
        self.connection = connect(socket, client_name="transformers", reconnect_min_ms=-1)
        self._timeout_ms = timeout_ms
        self._unfinished: list[Region] = []
        try:
            self.model: Model = self.connection.register_model(record)
        except BaseException:
            self.connection.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._unfinished:
            # Closing waits for a copy that takes too long, and this caller was promised not to.
            threading.Thread(target=self._close, name="kvtier-close", daemon=True).start()
        else:
            self._close()

    @contextlib.contextmanager
    def region(self, memory: BlockMemory, number: int) -> Iterator[Region]:
        """A region over a memory, which has one region in its life, of the group number so many.
        One whose copies have taken too long is closed by the session."""
        region = memory.open_region(self, number)
        try:
            yield region
        except TimedOutError:
            self._unfinished.append(region)
            raise
        except BaseException:
            region.close()
            raise
        region.close()

    def finish(self, region: Region, transfers: Sequence[tuple[int, int]]) -> list[int]:
        """Waits for transfers, given with the number of blocks before each; returns the blocks
        that failed. Raises TimedOutError, and the daemon's error if it refused one."""
        failed: list[int] = []
        for transfer, first in transfers:
            end = region.wait(transfer, self._timeout_ms)
            if end.error is not None:
                raise end.error
            failed += [first + position for position in end.failed]
        return failed

    def _close(self) -> None:
        for region in self._unfinished:
            region.close()
        self.connection.close()


def needed_blocks(kv: KvGroup, tokens: int) -> range:
    """The blocks of a group that a prefix of so many tokens needs, by the group's hit rule."""
    end = tokens // kv.block_tokens
    if kv.hit_rule == HitRule.STATE:
        return range(max(0, end - 1), end)
    if kv.hit_rule == HitRule.TRAILING:
        return range(max(0, tokens - kv.window_tokens) // kv.block_tokens, end)
    return range(end)


def longest_prefix(groups: Sequence[Group], presence: Sequence[Presence], limit: int) -> int:
    """The longest prefix that all groups can restore, of at most `limit` tokens."""
    step = math.lcm(*(group.kv.block_tokens for group in groups))
    # How many blocks before each position are missing.
    missing = [np.concatenate(([0], np.cumsum(one == 0))) for one in presence]
    reach = min(len(one) * group.kv.block_tokens for one, group in zip(presence, groups))
    for tokens in range(min(limit, reach) // step * step, 0, -step):
        for group, before in zip(groups, missing):
            needed = needed_blocks(group.kv, tokens)
            if before[needed.stop] != before[needed.start]:
                break
        else:
            return tokens
    return 0


def look_up(
    session: Session, groups: Sequence[Group], hashes: Sequence[list[bytes]]
) -> list[Presence]:
    """Which of each group's blocks the daemon has."""
    found = []
    for number, (group, one) in enumerate(zip(groups, hashes)):
        presence = np.zeros(len(one), np.uint8)
        if one:
            # A region is what asks; a lookup does not touch its memory.
            with session.region(BlockMemory(group, 1), number) as region:
                for first in range(0, len(one), _BLOCKS_PER_CALL):
                    part = one[first : first + _BLOCKS_PER_CALL]
                    presence[first : first + len(part)] = region.lookup(part)
        found.append(presence)
    return found


def load(
    session: Session,
    groups: Sequence[Group],
    hashes: Sequence[list[bytes]],
    presence: Sequence[Presence],
    limit: int,
) -> tuple[int, list[BlockMemory]]:
    """Brings the longest prefix here: its tokens, and of each group memory with just the blocks
    that it needs. A block that fails is marked as missing in `presence`, and a shorter prefix is
    taken.
    """
    while tokens := longest_prefix(groups, presence, limit):
        memories, complete = [], True
        for number, (group, one, here) in enumerate(zip(groups, hashes, presence)):
            needed = needed_blocks(group.kv, tokens)
            memory = BlockMemory(group, len(needed))
            for position in _load_blocks(session, number, memory, [one[i] for i in needed]):
                here[needed[position]] = 0
                complete = False
            memories.append(memory)
        if complete:
            return tokens, memories
    return 0, []


def _load_blocks(
    session: Session, number: int, memory: BlockMemory, hashes: list[bytes]
) -> list[int]:
    """Loads blocks into the memory's, in order; returns those that failed."""
    with session.region(memory, number) as region:
        transfers = []
        for first in range(0, len(hashes), _BLOCKS_PER_CALL):
            part = hashes[first : first + _BLOCKS_PER_CALL]
            rows = np.arange(first, first + len(part))
            transfers.append((region.load_many(rows, part), first))
        return session.finish(region, transfers)


def store(
    session: Session,
    number: int,
    memory: BlockMemory,
    depths: Sequence[int],
    hashes: list[bytes],
    retention: Retention,
) -> int:
    """Stores the blocks of a memory, which are a sequence's blocks `depths` in the group number so
    many; returns how many are cached now. hashes: of all of the sequence's blocks in the group."""
    # The daemon drops what follows a lost block, which only where all blocks are needed is useless.
    chained = memory.group.kv.hit_rule == HitRule.ALL
    with session.region(memory, number) as region:
        transfers = []
        for first in range(0, len(depths), _BLOCKS_PER_CALL):
            part = depths[first : first + _BLOCKS_PER_CALL]
            transfer = region.store_many(
                np.arange(first, first + len(part)),
                [hashes[depth] for depth in part],
                [hashes[depth - 1] if chained and depth else None for depth in part],
                depths=np.array(part),
                retention=retention,
            )
            transfers.append((transfer, first))
        return len(depths) - len(session.finish(region, transfers))
