# SPDX-License-Identifier: Apache-2.0
"""Blocks by the hundred: arrays of handles and of hits, and what an acquire brought.

A block table of an engine is made from whole arrays; the item at a place is made when it is asked
for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Union, overload

import numpy as np
import numpy.typing as npt

from ._library import abi
from ._native import HASH_BYTES, Scoped, split_hashes
from .errors import invalid
from .types import Block, CommitEntry, Hit, Load, LoadProgress, Miss, Tier

# The C structures as elements of numpy's arrays: their fields are whole arrays.
_BLOCK = np.dtype(abi.kvt_block)
_HIT = np.dtype(abi.kvt_acquired_block)
_COMMIT_ENTRY = np.dtype(abi.kvt_commit_entry)
_CHECKSUM_BYTES = 16
# By number: many times faster than Tier(number).
_TIERS = tuple(Tier)


class Blocks(Sequence[Block]):
    """Handles of pool blocks, in order. Equal to any sequence of the same Blocks; immutable."""

    def __init__(self, array: npt.NDArray[Any] | None = None) -> None:
        """array: of kvt_block, for this package."""
        self._array = np.zeros(0, _BLOCK) if array is None else array

    @property
    def indices(self) -> npt.NDArray[np.int32]:
        """Their positions in the pool, for block tables: int32 [count], a copy."""
        return self._array["index"].astype(np.int32)

    @overload
    def __getitem__(self, place: int) -> Block: ...
    @overload
    def __getitem__(self, place: slice) -> Blocks: ...
    def __getitem__(self, place: int | slice) -> Block | Blocks:
        if isinstance(place, slice):
            return Blocks(self._array[place])
        return Block(*self._array[place].item())

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Block]:
        return map(Block._make, self._array.tolist())

    def __add__(self, other: Blocks) -> Blocks:
        return Blocks(np.concatenate([self._array, other._array]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Blocks({list(self)})"


class Hits(Sequence[Hit]):
    """The blocks of a cached prefix, in order, one reference each. Equal to any sequence of the
    same Hits; immutable."""

    def __init__(self, array: npt.NDArray[Any] | None = None) -> None:
        """array: of kvt_acquired_block, for this package."""
        self._array = np.zeros(0, _HIT) if array is None else array

    @property
    def blocks(self) -> Blocks:
        """Their handles."""
        return Blocks(self._array["block"])

    @property
    def indices(self) -> npt.NDArray[np.int32]:
        """Their blocks' positions in the pool, for block tables: int32 [count], a copy."""
        return self.blocks.indices

    @property
    def tokens(self) -> npt.NDArray[np.uint16]:
        """Tokens in each: uint16 [count]."""
        return self._array["tokens"]

    @property
    def sources(self) -> npt.NDArray[np.uint8]:
        """Where each was found, numbers of Tier: uint8 [count]."""
        return self._array["tier"]

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Hits: ...
    def __getitem__(self, place: int | slice) -> Hit | Hits:
        if isinstance(place, slice):
            return Hits(self._array[place])
        return _hit(self._array[place].item())

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Hit]:
        return map(_hit, self._array.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Hits({list(self)})"


def _hit(fields: tuple[Any, ...]) -> Hit:
    return Hit(Block._make(fields[0]), fields[1], _TIERS[fields[2]])


#: Blocks to release or to ask for: handles one by one, or those of an acquire as they are.
AnyBlocks = Union[Blocks, Hits, Iterable[Block]]


class BlockHolder(Protocol):
    """The part of a pool that an AcquireResult needs."""

    @property
    def closed(self) -> bool: ...

    def wait(
        self, load: Load, up_to: int | None = None, timeout_ms: int | None = None
    ) -> LoadProgress: ...

    def release(self, blocks: AnyBlocks) -> None: ...


class AcquireResult(Scoped):
    """The longest cached prefix, and private blocks to fill.

    Acquired blocks must be released: by `release`, by Pool.release with the blocks, or by using the
    result in a `with` statement, which releases the rest of them at its end. The garbage collector
    does not. One thread at a time.

    hits: in order, one reference each. new_blocks: the private blocks asked for; none without a
    daemon. partial_block: which of the partial blocks offered is the last hit, or None. load: for
    Pool.wait; None: all hits are usable now. miss: why the block after the hits was not served.
    first_hit: which of the hashes `hits` begin with; not 0 only where a prefix needs the last blocks
    of a group alone, as of a sliding window.
    """

    def __init__(
        self,
        pool: BlockHolder,
        hashes: bytes,
        miss: Miss,
        hits: Hits | None = None,
        new_blocks: Blocks | None = None,
        partial_block: int | None = None,
        load: Load | None = None,
        first_hit: int = 0,
    ) -> None:
        self._pool = pool
        self._hashes = hashes
        self.hits = Hits() if hits is None else hits
        self.new_blocks = Blocks() if new_blocks is None else new_blocks
        self.partial_block = partial_block
        self.first_hit = first_hit
        self.load = load
        self.miss = miss

    @property
    def available(self) -> bool:
        """False: there is no daemon, and there are neither hits nor private blocks."""
        return bool(self.miss != Miss.UNAVAILABLE)

    @property
    def hashes(self) -> list[bytes]:
        """The hashes of the full blocks asked for, 32 bytes each."""
        return split_hashes(self._hashes)

    @property
    def cached_tokens(self) -> int:
        """Tokens in the hits."""
        return int(self.hits.tokens.sum())

    @property
    def blocks(self) -> Blocks:
        """All blocks held: the hits and then the private ones."""
        return self.hits.blocks + self.new_blocks

    def block_table(self) -> npt.NDArray[np.int32]:
        """Pool indices of all blocks held, int32 [hits + new blocks]."""
        return self.blocks.indices

    def wait(self, up_to: int | None = None, timeout_ms: int | None = None) -> LoadProgress:
        """Waits until the first `up_to` hits (None: all) are usable or the load has finished.

        Hits that could not be loaded are then taken out of `hits` and released; after the loss of
        the connection everything is. When the time is up, the progress so far is returned.
        Raises as Pool.wait.
        """
        if self.load is None:
            return LoadProgress(len(self.hits), True, Miss.NONE)
        progress = self._pool.wait(self.load, up_to, timeout_ms)
        if progress.miss == Miss.UNAVAILABLE:
            # If the session was resumed, some may be held still.
            self.release()
            self.partial_block, self.miss = None, progress.miss
        elif progress.finished and progress.ready < len(self.hits):
            lost = self.hits[progress.ready :]
            self.hits = self.hits[: progress.ready]
            self.partial_block = None
            self.miss = progress.miss
            self._pool.release(lost)
        return progress

    def release(self) -> None:
        """Gives everything back that is still held. Never fails for want of a daemon."""
        blocks = self.blocks
        self.hits, self.new_blocks = Hits(), Blocks()
        if blocks and not self._pool.closed:
            self._pool.release(blocks)

    def close(self) -> None:
        """The same as `release`, for `with`."""
        self.release()


# ---------------------------------------------------------------- to and from C


def new_block_array(count: int) -> npt.NDArray[Any]:
    """An array for as many kvt_block."""
    return np.zeros(count, _BLOCK)


def new_hit_array(count: int) -> npt.NDArray[Any]:
    """An array for as many kvt_acquired_block."""
    return np.zeros(count, _HIT)


def block_array(blocks: AnyBlocks) -> npt.NDArray[Any]:
    """As a contiguous array of kvt_block. Raises InvalidArgumentError."""
    if isinstance(blocks, Hits):
        blocks = blocks.blocks
    if isinstance(blocks, Blocks):
        return np.ascontiguousarray(blocks._array)
    handles = list(blocks)
    array = np.zeros(len(handles), _BLOCK)
    for i, name in enumerate(Block._fields):
        _fill(array, name, [block[i] for block in handles])
    return array


def entry_array(entries: Iterable[CommitEntry]) -> npt.NDArray[Any]:
    """As an array of kvt_commit_entry. Raises InvalidArgumentError."""
    entries = list(entries)
    array = np.zeros(len(entries), _COMMIT_ENTRY)
    array["block"] = block_array([entry.block for entry in entries])
    for name in ("depth", "tokens", "retention"):
        _fill(array, name, [getattr(entry, name) for entry in entries])
    array["has_parent"] = [entry.parent is not None for entry in entries]
    array["has_checksum"] = [entry.checksum is not None for entry in entries]
    no_hash, no_checksum = bytes(HASH_BYTES), bytes(_CHECKSUM_BYTES)
    _fill_bytes(array["hash"]["bytes"], [entry.hash for entry in entries], "hash")
    parents = [no_hash if entry.parent is None else entry.parent for entry in entries]
    _fill_bytes(array["parent"]["bytes"], parents, "hash")
    checksums = [no_checksum if entry.checksum is None else entry.checksum for entry in entries]
    _fill_bytes(array["checksum"], checksums, "checksum")
    return array


def _fill(array: npt.NDArray[Any], name: str, values: list[int]) -> None:
    """Sets one field of all elements. Raises InvalidArgumentError for values that the field cannot
    hold, which numpy would cut instead."""
    kind = array.dtype[name]
    if values and not 0 <= min(values) <= max(values) <= np.iinfo(kind).max:
        raise invalid(f"bad_{name}", f"{min(values)} to {max(values)}")
    array[name] = np.array(values, dtype=kind)


def _fill_bytes(column: npt.NDArray[Any], values: list[bytes], name: str) -> None:
    """Sets a field of bytes, uint8 [count, size]. Raises InvalidArgumentError."""
    size = column.shape[1]
    for value in values:
        if len(value) != size:
            raise invalid(f"bad_{name}", f"{len(value)} bytes instead of {size}")
    column[:] = np.frombuffer(b"".join(values), np.uint8).reshape(-1, size)
