# SPDX-License-Identifier: Apache-2.0
"""Blocks, loads and what the daemon says about them."""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi, _convert
from .errors import Status, invalid, unnamed_member


class DeviceKind(enum.IntEnum):
    """What kind of memory a pool is."""

    HOST = 0
    CUDA = 1


class Tier(enum.IntEnum):
    """Where a block was found. POOL: usable now; else once its load has reached it."""

    POOL = 0
    HOST = 1
    DISK = 2


# By number: many times faster than Tier(number), and an acquire has hundreds of hits.
_TIERS = tuple(Tier)


class Presence(enum.IntFlag):
    """The tiers that hold a block now; DISK means durably. 0: none."""

    POOL = 1
    HOST = 2
    DISK = 4


class Retention(enum.IntEnum):
    """MEMORY: never touches the disk. EXTENDED: persisted."""

    MEMORY = 0
    EXTENDED = 1


class Miss(enum.IntEnum):
    """Why the block after the hits was not served; NONE if all were. Numbers may be added."""

    NONE = 0
    UNKNOWN = 1
    EXPIRED = 2
    POOL_FULL = 3
    HOST_FULL = 4
    READ_ERROR = 5
    CHECKSUM_MISMATCH = 6
    IDENTITY_MISMATCH = 7
    COPY_FAILED = 8
    CANCELLED = 9
    #: No daemon was asked, or the connection was lost.
    UNAVAILABLE = 255

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return unnamed_member(cls, value, "REASON")


class Block(NamedTuple):
    """A pool block held by this process.

    index: its position in the pool, for block tables and views. generation and attachment make a
    handle that was kept too long an error.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    generation: int
    attachment: int


class Hit(NamedTuple):
    """A block of the cached prefix: one reference, to be released once."""

    block: Block
    tokens: int
    tier: Tier


class Load(NamedTuple):
    """The loads of one acquire, for Pool.wait."""

    id: int
    attachment: int


class LoadProgress(NamedTuple):
    """How far a load has come.

    ready: the first so many hits are usable. finished: nothing follows; the hits from `ready` on
    could not be loaded, their bytes are not the blocks', and they are to be released like the
    others. miss: why the first of those could not. UNAVAILABLE: the blocks went with the
    connection. layers: of a load in layers, the first so many layers of all hits are usable;
    ALL_LAYERS when all hits are, whatever the order.
    """

    ready: int
    finished: bool
    miss: Miss
    layers: int = 0


#: LoadProgress.layers when every hit is usable.
ALL_LAYERS = 2**32 - 1


@dataclass(frozen=True)
class CommitEntry:
    """A private block to publish: filled, and not written again by anyone.

    hash, parent: 32 bytes each; parent None for the first block. depth: position in the sequence,
    0 for the first block. tokens: in it; less than the model's block_tokens for a partial block.
    checksum: canonical xxh3-128 of the block's bytes (16 bytes), compared when it first leaves the
    pool.
    """

    block: Block
    hash: bytes
    parent: bytes | None
    depth: int
    tokens: int
    retention: Retention = Retention.EXTENDED
    checksum: bytes | None = None


class AsyncError(NamedTuple):
    """An error of a commit or release that nobody waited for. block None: of the whole call."""

    block: Block | None
    status: Status
    reason: str


class AsyncErrors(NamedTuple):
    """errors: oldest first. dropped: how many were lost since they were last taken."""

    errors: list[AsyncError]
    dropped: int


def chain_entries(
    hashes: Sequence[bytes],
    blocks: Iterable[Block],
    block_tokens: int,
    first: int = 0,
    retention: Retention = Retention.EXTENDED,
) -> list[CommitEntry]:
    """Entries that publish `blocks` as the full blocks `first`, `first` + 1, ... of a sequence.

    hashes: of the sequence's blocks from block 0. Raises InvalidArgumentError if there are fewer
    hashes than blocks.
    """
    entries = []
    for depth, block in enumerate(blocks, start=first):
        if depth >= len(hashes):
            raise invalid("too_few_hashes", f"no hash for block {depth} of the sequence")
        parent = hashes[depth - 1] if depth > 0 else None
        entries.append(CommitEntry(block, hashes[depth], parent, depth, block_tokens, retention))
    return entries


# The layouts of the C structures, for whole arrays at once.
_BLOCK = struct.Struct("=IIQ")
_ACQUIRED_BLOCK = struct.Struct("=IIQHB5x")
_COMMIT_ENTRY = struct.Struct("=IIQ32s32sIHBBB7x16s")
assert _BLOCK.size == ctypes.sizeof(_abi.Block)
assert _ACQUIRED_BLOCK.size == ctypes.sizeof(_abi.AcquiredBlock)
assert _COMMIT_ENTRY.size == ctypes.sizeof(_abi.CommitEntry)


def pack_blocks(blocks: Iterable[Block]) -> bytes:
    """As an array of kvt_block. Raises InvalidArgumentError."""
    try:
        return b"".join([_BLOCK.pack(*block) for block in blocks])
    except struct.error as error:
        raise invalid("bad_block", str(error)) from error


def unpack_blocks(data: memoryview) -> list[Block]:
    """From an array of kvt_block."""
    return [Block._make(fields) for fields in _BLOCK.iter_unpack(data)]


def unpack_hits(data: memoryview) -> list[Hit]:
    """From an array of kvt_acquired_block."""
    return [
        Hit(Block(index, generation, attachment), tokens, _TIERS[tier])
        for index, generation, attachment, tokens, tier in _ACQUIRED_BLOCK.iter_unpack(data)
    ]


def pack_entries(entries: Iterable[CommitEntry]) -> bytes:
    """As an array of kvt_commit_entry. Raises InvalidArgumentError."""
    return b"".join([_pack_entry(entry) for entry in entries])


def _pack_entry(entry: CommitEntry) -> bytes:
    if entry.checksum is not None and len(entry.checksum) != 16:
        raise invalid("bad_checksum", f"{len(entry.checksum)} bytes instead of 16")
    try:
        return _COMMIT_ENTRY.pack(
            *entry.block,
            _convert.one_hash(entry.hash),
            b"" if entry.parent is None else _convert.one_hash(entry.parent),
            entry.depth,
            entry.tokens,
            entry.retention,
            entry.parent is not None,
            entry.checksum is not None,
            entry.checksum or b"",
        )
    except struct.error as error:
        raise invalid("bad_entry", str(error)) from error
