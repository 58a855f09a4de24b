# SPDX-License-Identifier: Apache-2.0
"""The values that calls take and give: what blocks, loads and commits are, and their enums.

Every enum has the members of one in kvtier.h, without the prefix: Miss.POOL_FULL is
KVT_MISS_POOL_FULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._cheader import HeaderEnum, HeaderFlag, enum_of, unnamed_member
from ._library import abi
from .errors import Status, invalid


@enum_of(abi, "KVT_DEVICE_HOST")
class DeviceKind(HeaderEnum):
    """The kind of a pool's memory: HOST or CUDA."""


@enum_of(abi, "KVT_TIER_POOL")
class Tier(HeaderEnum):
    """Where a block was found. POOL: usable now; HOST, DISK: once its load has reached it."""


@enum_of(abi, "KVT_PRESENT_POOL")
class Presence(HeaderFlag):
    """The tiers that hold a block now: POOL, HOST, DISK, which means durably, DISK_UNVERIFIED, which
    a load reads and checks first, or COLD, the store that hosts share, if no tier of this one does.
    0: none."""


@enum_of(abi, "KVT_LAYOUT_BLOCK_FIRST")
class KvLayout(HeaderEnum):
    """How the keys and values of a block are ordered. BLOCK_FIRST: [layer][K,V][token][head][dim];
    INTERLEAVED: [layer][token][head][K dim, V dim], as in vLLM's KV cache."""


@enum_of(abi, "KVT_HIT_ALL")
class HitRule(HeaderEnum):
    """Which blocks of its group a prefix needs. ALL: every one; TRAILING: those with any of the
    last `window_tokens` tokens; STATE: the one that ends where the prefix ends."""


@enum_of(abi, "KVT_RETENTION_MEMORY")
class Retention(HeaderEnum):
    """MEMORY: never touches the disk. EXTENDED: persisted."""


@enum_of(abi, "KVT_HINT_CLOSED")
class Hint(HeaderEnum):
    """A client's knowledge of a sequence. CLOSED: it will not be continued. ONCE: the same, and
    uses do not disprove it. RETURNS: it goes on after a known time."""


@enum_of(abi, "KVT_PLAN_ALL")
class HitPlan(HeaderEnum):
    """Which hits are worth loading. ALL: every one. CUT: as far as loading them and computing the
    rest takes the least time."""


@enum_of(abi, "KVT_MISS_NONE")
class Miss(HeaderEnum):
    """Why the block after the hits was not served; NONE if all were. UNAVAILABLE: no daemon was
    asked, or the connection was lost. Numbers may be added."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return unnamed_member(cls, value, "REASON")


@enum_of(abi, "KVT_DTYPE_FLOAT32")
class DType(HeaderEnum):
    """The type of the elements of K and V."""

    @property
    def numpy(self) -> npt.DTypeLike:
        """The dtype of numpy views. Types that numpy lacks show as unsigned integers of their size:
        bfloat16 as uint16, float8 as uint8."""
        return _NUMPY.get(self.name, self.name.lower())

    @property
    def torch_name(self) -> str:
        """The attribute of `torch` that is this dtype."""
        return _TORCH.get(self.name, self.name.lower())

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.numpy).itemsize)

    @classmethod
    def of(cls, dtype: object) -> DType:
        """The dtype that a torch.dtype, a numpy dtype or a text ("bfloat16", "bf16") names.

        Raises InvalidArgumentError "bad_dtype".
        """
        if isinstance(dtype, int) and dtype in [int(one) for one in cls]:
            return cls(dtype)
        # str(torch.bfloat16) is "torch.bfloat16", np.float16.__name__ "float16".
        name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
        name = name.rpartition(".")[2].lower()
        name = _SHORT.get(name, name)
        for one in cls:
            if name in (one.name.lower(), one.torch_name):
                return one
        raise invalid("bad_dtype", f"{dtype!r} is none of {', '.join(i.name.lower() for i in cls)}")


# Where the name is not the header's in small letters.
_NUMPY = {"BFLOAT16": "uint16", "FLOAT8_E4M3": "uint8", "FLOAT8_E5M2": "uint8"}
_TORCH = {"FLOAT8_E4M3": "float8_e4m3fn"}
_SHORT = {
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
}

#: LoadProgress.layers when every hit is usable.
ALL_LAYERS: int = abi.KVT_ALL_LAYERS


class Block(NamedTuple):
    """A pool block held by this process.

    index: its position in the pool, for block tables and views. generation and attachment make a
    handle that was kept too long an error.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller wants here
    generation: int
    attachment: int


class Hit(NamedTuple):
    """A block of the cached prefix: one reference, to be released once. tokens: in the block."""

    block: Block
    tokens: int
    tier: Tier


class Load(NamedTuple):
    """The loads of one acquire, for Pool.wait."""

    id: int
    attachment: int
    in_layers: bool = False


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
    """An error of a commit or release whose call did not wait. block None: of the whole call, or of a
    pool."""

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
