# SPDX-License-Identifier: Apache-2.0
"""Regions: memory that an engine manages itself, which the daemon copies to and from.

The engine numbers the region's blocks as it likes: rows of host memory, or blocks of its KV tensors
on a GPU. A store takes blocks into the cache, a load brings cached ones into the region; a lookup
never finds anything in a region itself.

From `store` or `load` until the end of the transfer was reported, the engine must not write the
blocks that it named (store), nor read or write them (load), and no other transfer may name them.
Transfers end in any order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union, cast

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._cheader import HeaderEnum, enum_of
from ._library import abi
from ._native import HASH_BYTES, Handle, Hashes, Owner, address
from .errors import KvtierError, check, error_of, invalid
from .model import KvGroup, Model
from .types import DType, Hint, Miss, Retention

# The C structures as elements of numpy's arrays: their fields are whole arrays.
_STORE_BLOCK = np.dtype(abi.kvt_store_block)
_LOAD_BLOCK = np.dtype(abi.kvt_load_block)
# Transfers that one call into the library reports.
_ENDS_PER_CALL = 16

#: One number for each block, in anything that numpy takes as an array; or one number for all.
Numbers = Union[int, Sequence[int], "npt.NDArray[Any]"]
#: Hashes as `Hashes`, or an array of uint8, [count, 32] or flat.
HashArray = Union[Hashes, "npt.NDArray[Any]"]
#: None: no block has a parent; or one hash for each block, None for those that have none.
Parents = Union[None, HashArray, Sequence["bytes | None"]]


@enum_of(abi, "KVT_REGION_SHARED_MEMORY")
class RegionMemory(HeaderEnum):
    """How the daemon gets at the memory. SHARED_MEMORY: host memory behind a descriptor that can be
    mapped (memfd_create, shm_open); VMM: of a GPU, a descriptor from cuMemExportToShareableHandle;
    CUDA_IPC: of a GPU, a cudaIpcMemHandle_t."""


class Piece(NamedTuple):
    """Where one part of every block lies: of block b from offset + b * block_stride on, in bytes."""

    offset: int
    block_stride: int
    bytes: int


class StoreBlock(NamedTuple):
    """A block of the region that is to be cached.

    hash, parent: 32 bytes each; parent None for the first block of a sequence. tokens: in it; None
    for a full block. depth: position in the sequence, 0 for the first block.
    """

    block: int
    hash: bytes
    parent: bytes | None = None
    tokens: int | None = None
    depth: int = 0
    retention: Retention = Retention.EXTENDED


class TransferEnd(NamedTuple):
    """How a transfer has ended: copied, skipped and failed blocks are together all that it named.

    skipped: of a store, blocks that the daemon had already. failed: why, by their positions in the
    call; the bytes of a block whose load failed are undefined. error: None; UnavailableError if the
    connection was lost before the transfer ended (its blocks failed as UNAVAILABLE); the daemon's
    error if it refused the transfer as a whole (they failed as CANCELLED).
    """

    transfer: int
    copied: int
    skipped: int
    failed: dict[int, Miss]
    error: KvtierError | None = None


class Region(Owner):
    """Made by Connection.open_region; any number of threads may use it at once.

    It ends with the connection as it stood when it was made: transfers under way then end as
    failed, `poll` goes on reporting, and what needs the daemon raises UnavailableError, for good.
    The memory stays the engine's, which opens another region on it once there is a daemon again.
    Methods raise InvalidArgumentError "closed" after `close`.
    """

    def __init__(self, connection: Any, parent: Handle, model: Model, options: Any) -> None:
        """See Connection.open_region; options: a kvt_region_options."""
        library = _library.load()
        pointer = ctypes.c_void_p()
        check(
            library.kvt_region_open(
                parent.get(), model.number, ctypes.byref(options), ctypes.byref(pointer)
            )
        )
        super().__init__(Handle("region", pointer.value, library.kvt_region_close, parent))
        # The connection must not be collected, and thereby closed, while the region is in use.
        self._connection = connection
        self._model = model
        self._group = model.record.all_groups()[options.group]
        self._blocks = int(options.blocks)

    @property
    def model(self) -> Model:
        return self._model

    @property
    def group(self) -> KvGroup:
        """The one of the model's groups whose blocks the region has."""
        return self._group

    @property
    def blocks(self) -> int:
        return self._blocks

    @property
    def block_bytes(self) -> int:
        """The size of one block, all its pieces together."""
        return int(self._library.kvt_region_block_bytes(self._handle.get()))

    def close(self) -> None:
        """Waits until nothing touches the memory any more, or the connection is lost; at most for
        request_timeout_ms without a transfer under way, CUDA_IPC and a kept name. Transfers that
        were not reported are forgotten. Idempotent. Not while another thread uses it."""
        self._handle.close()

    def is_connected(self) -> bool:
        """Whether the region can still be used, without a round trip: False is for good."""
        return bool(self._library.kvt_region_is_connected(self._handle.get()))

    def daemon_ended(self) -> bool:
        """Whether no byte of the region's memory changes any more, also of loads that were cut off:
        the daemon's process has ended, or the connection is lost and the daemon took note two
        seconds ago. False before, as while a daemon that was given up stands still. Never waits."""
        return bool(self._library.kvt_region_daemon_ended(self._handle.get()))

    def hang_up(self) -> None:
        """Gives up a daemon that hangs, from any thread: its connection is lost for all who use it,
        transfers end as UNAVAILABLE, and if it goes on it begins no more of them."""
        self._call("kvt_region_hang_up")

    # ---------------------------------------------------------------- transfers

    def store(self, blocks: Iterable[StoreBlock]) -> int:
        """Begins to copy blocks of the region into the cache; only sends. Returns the transfer's
        number, which is not 0 and differs from all others of the region.

        A hash that a pool or host memory has already is not copied again; one that is on disk only
        comes to host memory. A store is also a use of the blocks before it in its sequence.

        Raises InvalidArgumentError ("empty_request", "block_out_of_range", "bad_token_count", ...),
        UnavailableError; nothing was begun then. A refusal of the daemon is told by the transfer's
        end.
        """
        items = list(blocks)
        if not items:
            raise invalid("empty_request", "no blocks")
        numbers, hashes, parents, tokens, depths, retentions = zip(*items)
        full = self._group.block_tokens
        return self.store_many(
            numbers,
            hashes,
            parents,
            [full if one is None else one for one in tokens],
            depths,
            retentions,
        )

    def store_many(
        self,
        blocks: Numbers,
        hashes: HashArray,
        parents: Parents = None,
        tokens: Numbers | None = None,
        depths: Numbers = 0,
        retention: Retention | Numbers = Retention.EXTENDED,
        *,
        compare: DType | None = None,
    ) -> int:
        """`store` of blocks that are given by arrays, without an object for each block. The columns
        are those of StoreBlock; numbers that are the same for all blocks may be given once. tokens:
        None if all blocks are full.

        compare: makes this a canary. Blocks that host memory has are compared with those of the
        region, which are numbers of this type, and count as skipped. The daemon drops those that
        differ by more than rounding explains; if engines differ again and again, all blocks of this
        tenant and model are misses.
        """
        joined = _hash_rows(hashes)
        array = np.zeros(len(joined), _STORE_BLOCK)
        array["hash"]["bytes"] = joined
        _fill(array, "block", blocks, 32, "block")
        _fill(array, "tokens", self._group.block_tokens if tokens is None else tokens, 16, "tokens")
        _fill(array, "depth", depths, 32, "depth")
        _fill(array, "retention", retention, 8, "retention")
        _fill_parents(array, parents)
        transfer = ctypes.c_uint64()
        stored = address(array), len(array)
        if compare is not None:
            dtype = int(DType.of(compare))
            self._call("kvt_region_store_compared", *stored, dtype, ctypes.byref(transfer))
        else:
            self._call("kvt_region_store", *stored, ctypes.byref(transfer))
        return transfer.value

    def load(self, blocks: Iterable[tuple[int, bytes]], *, in_layers: bool = False) -> int:
        """Begins to copy cached blocks into the region, given as (block of the region, hash); only
        sends. Returns the transfer's number as `store`, and raises as it does.

        Exactly these blocks come, each for itself: one that cannot be served does not keep the
        others from arriving. in_layers: blocks in host memory come layer by layer, and
        `layers_loaded` tells how many layers have arrived.
        """
        items = list(blocks)
        if not items:
            raise invalid("empty_request", "no blocks")
        numbers, hashes = zip(*items)
        return self.load_many(numbers, hashes, in_layers=in_layers)

    def load_many(self, blocks: Numbers, hashes: HashArray, *, in_layers: bool = False) -> int:
        """`load` of blocks that are given by arrays, without an object for each block."""
        joined = _hash_rows(hashes)
        array = np.zeros(len(joined), _LOAD_BLOCK)
        array["hash"]["bytes"] = joined
        _fill(array, "block", blocks, 32, "block")
        order = abi.KVT_LOAD_LAYERS if in_layers else abi.KVT_LOAD_BLOCKS
        transfer = ctypes.c_uint64()
        self._call("kvt_region_load", address(array), len(array), order, ctypes.byref(transfer))
        return transfer.value

    def layers_loaded(self, transfer: int) -> int:
        """How many layers of a load in layers have come: those of all its blocks are in the memory,
        and a kernel that is launched after this call sees them. All layers once it has ended well.

        Made to be called in a loop: looks at shared memory alone, unless all counters of the
        connection were in use when the load began or some block has failed; then it reads the
        socket, too. The blocks belong to the transfer until its end is reported. Raises
        CancelledError "load_incomplete" once a load has ended without some block (its end tells
        which), UnavailableError (the connection was lost before it ended), the daemon's error if it
        refused the load, NotFoundError (not a load in layers, or ended 4,096 of them ago).
        """
        layers = ctypes.c_uint32()
        code = self._library.kvt_region_layers_loaded(
            self._handle.get(), transfer, ctypes.byref(layers)
        )
        if code:
            check(code)
        return layers.value

    def wait_layers(self, transfer: int, layers: int, timeout_ms: int | None = None) -> None:
        """Waits until so many layers of a load in layers have come, other threads running meanwhile.

        timeout_ms: as `wait`'s. Raises TimedOutError, InvalidArgumentError "too_many_layers" (more
        than the group has), and what `layers_loaded` does, unless so many had come before.
        """
        self._call(
            "kvt_region_wait_layers",
            _native.unsigned(transfer, 64, "transfer"),
            _native.unsigned(layers, 32, "layers"),
            _native.timeout(timeout_ms),
        )

    def poll(self) -> list[TransferEnd]:
        """The transfers that have ended since they were last reported, in the order in which they
        ended; each is reported once, here or by `wait`. Never waits and never raises for a lost
        daemon."""
        ended: list[TransferEnd] = []
        ends = (abi.kvt_transfer_end * _ENDS_PER_CALL)()
        count = ctypes.c_size_t(_ENDS_PER_CALL)
        while count.value == _ENDS_PER_CALL:
            self._call("kvt_region_poll", ends, _ENDS_PER_CALL, ctypes.byref(count))
            ended += map(self._to_end, ends[: count.value])
        return ended

    def wait(self, transfer: int, timeout_ms: int | None = None) -> TransferEnd:
        """Waits until a transfer has ended, and reports it.

        timeout_ms: 0 does not wait, None is the connection's request_timeout_ms. Raises
        TimedOutError (it is still under way), NotFoundError (never begun, or reported before).
        """
        end = abi.kvt_transfer_end()
        self._call(
            "kvt_region_wait",
            _native.unsigned(transfer, 64, "transfer"),
            _native.timeout(timeout_ms),
            ctypes.byref(end),
        )
        return self._to_end(end)

    def _to_end(self, end: Any) -> TransferEnd:
        failed = self._failures(end.transfer, end.failed) if end.failed else {}
        error = error_of(end.code, end.reason.decode(errors="replace")) if end.code else None
        return TransferEnd(end.transfer, end.copied, end.skipped, failed, error)

    def _failures(self, transfer: int, capacity: int) -> dict[int, Miss]:
        positions = np.zeros(capacity, np.uint32)
        reasons = np.zeros(capacity, np.uint8)
        count = ctypes.c_size_t()
        self._call(
            "kvt_region_failures",
            transfer,
            address(positions),
            address(reasons),
            capacity,
            ctypes.byref(count),
        )
        known = min(count.value, capacity)
        return dict(zip(positions[:known].tolist(), map(Miss, reasons[:known].tolist())))

    # ---------------------------------------------------------------- asking about blocks

    def lookup(self, hashes: HashArray) -> npt.NDArray[np.uint8]:
        """The tiers that hold each block now: uint8 [count], bits of Presence. One round trip.

        Presence.POOL is never about the region itself; a block that is Presence.COLD can be loaded.
        Raises UnavailableError, LimitExceededError, TimedOutError.
        """
        joined = _hash_rows(hashes)
        presence = np.zeros(len(joined), np.uint8)
        self._call("kvt_region_lookup", address(joined), len(joined), address(presence))
        return presence

    def pin(self, hashes: HashArray, ttl_ms: int) -> int:
        """Keeps blocks from being forgotten until `ttl_ms` from now; 0 ends this
        connection's pins, and no other's. One round trip.

        Returns how many of them are cached. Raises LimitExceededError (too large a
        share of the cache would be pinned), UnavailableError, TimedOutError.
        """
        joined = _hash_rows(hashes)
        _native.unsigned(ttl_ms, 63, "ttl_ms")
        return self._number("kvt_region_pin", address(joined), len(joined), ttl_ms)

    def prefetch(self, hashes: HashArray, timeout_ms: int | None = None) -> int:
        """Has what only the disk has of a sequence brought to host memory, for a load that comes
        later, and waits for that, other threads running meanwhile.

        hashes: the sequence's from its first block on, or going on where an earlier call ended.
        timeout_ms: as `wait`'s. Returns how many of them are in memory then, up to the first that
        is not cached or could not come: of all that prefetches brought, the blocks not loaded yet
        take half of host memory at most, and if no block comes for 5 s, the call ends with the
        blocks that are there.
        The blocks are not used by this, and may leave again. Raises UnavailableError,
        LimitExceededError, TimedOutError (they still come, unless its reason is "not_sent").
        """
        joined = _hash_rows(hashes)
        return self._number(
            "kvt_region_prefetch", address(joined), len(joined), _native.timeout(timeout_ms)
        )

    def wants_tokens(self) -> bool:
        """Whether the daemon keeps ids of which tokens blocks hold, for the events that routers get;
        the answer holds as long as the connection. One round trip. Raises UnavailableError,
        TimedOutError."""
        wanted = ctypes.c_int()
        self._call("kvt_region_tokens_wanted", ctypes.byref(wanted))
        return bool(wanted.value)

    def give_tokens(
        self,
        hashes: HashArray,
        tokens: _native.Tokens,
        counts: _native.Tokens | None = None,
    ) -> None:
        """Tells which tokens blocks hold, before they are stored; only sends.

        tokens: ids of one block's after the other's. counts: how many each block has; None: all
        blocks are full. Only of blocks whose hash depends on nothing but tokens. Raises
        InvalidArgumentError ("bad_token_count", ...), UnavailableError.
        """
        joined = _hash_rows(hashes)
        ids, ends = _native.token_arrays(tokens, counts, len(joined))
        self._call(
            "kvt_region_give_tokens",
            address(joined),
            None if ends is None else address(ends),
            len(joined),
            address(ids),
            len(ids),
        )

    def hint(self, hashes: HashArray, hint: Hint, returns_in_ms: int = 0) -> int:
        """As Pool.hint. Raises besides UnavailableError, TimedOutError."""
        joined = _hash_rows(hashes)
        _native.unsigned(returns_in_ms, 63, "returns_in_ms")
        return self._number("kvt_region_hint", address(joined), len(joined), hint, returns_in_ms)


def region_options(
    group_bytes: int,
    *,
    fd: int | None,
    bytes: int,
    blocks: int,
    block_stride: int | None,
    pieces: Iterable[tuple[int, int, int]] | None,
    group: int,
    memory: RegionMemory,
    ipc_handle: bytes | None,
    device: int | None,
    kept: bytes | None,
) -> Any:
    """The arguments of Connection.open_region as a kvt_region_options, which keeps the objects that
    it points to. group_bytes: of one block of the group. Raises InvalidArgumentError."""
    options = abi.kvt_region_options()
    _library.load().kvt_region_options_init(ctypes.byref(options))
    if pieces is None:
        pieces = [(0, group_bytes if block_stride is None else block_stride, group_bytes)]
    elif block_stride is not None:
        raise invalid("pieces_and_stride", "pieces have block strides of their own")
    given = [Piece(*piece) for piece in pieces]
    array = (abi.kvt_region_piece * len(given))()
    for target, piece in zip(array, given):
        for name in Piece._fields:
            setattr(target, name, _native.unsigned(getattr(piece, name), 64, name))
    options.pieces, options.piece_count = ctypes.addressof(array), len(given)
    options.kept = array
    if fd is not None:
        options.fd = _native.unsigned(fd, 31, "fd")
    if ipc_handle is not None:
        if len(ipc_handle) != ctypes.sizeof(options.ipc_handle):
            raise invalid("bad_ipc_handle", f"{len(ipc_handle)} bytes")
        options.ipc_handle[:] = ipc_handle
    options.bytes = _native.unsigned(bytes, 64, "bytes")
    options.blocks = _native.unsigned(blocks, 32, "blocks")
    options.group = _native.unsigned(group, 32, "group")
    options.memory = memory
    if device is not None:
        options.device = _native.unsigned(device, 32, "device")
    if kept is not None:
        options.kept_name[:] = _native.one_hash(kept)
    return options


def _hash_rows(hashes: HashArray) -> npt.NDArray[np.uint8]:
    """uint8 [count, 32], contiguous, copied only if need be. Raises InvalidArgumentError."""
    if isinstance(hashes, np.ndarray):
        flat = np.ascontiguousarray(hashes).reshape(-1).view(np.uint8)
        if flat.size % HASH_BYTES != 0:
            raise invalid("bad_hash", f"{flat.size} bytes are not a multiple of {HASH_BYTES}")
    else:
        flat = np.frombuffer(_native.hash_bytes(hashes), np.uint8)
    return flat.reshape(-1, HASH_BYTES)


def _fill_parents(array: npt.NDArray[Any], parents: Parents) -> None:
    if parents is None:
        return
    if isinstance(parents, (list, tuple)) and None in parents:
        array["has_parent"] = [parent is not None for parent in parents]
        rows = _hash_rows([bytes(HASH_BYTES) if parent is None else parent for parent in parents])
    else:
        array["has_parent"] = 1
        rows = _hash_rows(cast(HashArray, parents))
    _check_count(len(rows), len(array), "parents")
    array["parent"]["bytes"] = rows


def _fill(array: npt.NDArray[Any], field: str, values: Any, bits: int, what: str) -> None:
    """Writes one number for each element, or one for all, to a field of so many bits. Raises
    InvalidArgumentError: numpy would cut them instead."""
    column = np.asarray(values)
    if column.ndim > 0:
        _check_count(column.shape[0], len(array), what)
    if column.size == 0:
        return
    if column.ndim > 1 or column.dtype.kind not in "iu":
        raise invalid(f"bad_{what}", f"{column.dtype}, {column.ndim} dimensions")
    if column.min() < 0 or int(column.max()) >= 1 << bits:
        raise invalid(f"bad_{what}", f"{column.min()} to {column.max()}")
    array[field] = column


def _check_count(count: int, expected: int, what: str) -> None:
    if count != expected:
        raise invalid("bad_count", f"{count} of {what}, {expected} hashes")
