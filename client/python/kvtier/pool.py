# SPDX-License-Identifier: Apache-2.0
"""A model's block pool, shared with the daemon and with other processes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from . import _abi, _convert, _library
from ._convert import Hashes, Tokens
from ._handle import Handle
from ._scoped import Scoped
from .acquire import AcquireResult
from .attention import Workspace
from .blocks import (
    Block,
    CommitEntry,
    DeviceKind,
    Load,
    LoadProgress,
    Miss,
    Presence,
    Retention,
    pack_blocks,
    pack_entries,
    unpack_blocks,
    unpack_hits,
)
from .copier import CopyFunction
from .cuda import stream_pointer
from .errors import Status, check, check_available, invalid
from .hashing import PromptIdentity, hash_blocks
from .memory import PoolInfo, PoolMemory
from .model import Model
from .opening import SequenceSettings, open_sequence
from .sequence import Sequence
from .views import KvView

if TYPE_CHECKING:
    import torch

    from .connection import Connection

_ALL_HITS = 0xFFFFFFFF


class Pool(Scoped):
    """One model's blocks. Made by Connection.attach; any number of threads may use it at once.

    Without a daemon the calls about blocks answer "miss" and do not raise: see each. Methods raise
    InvalidArgumentError "closed" after `close`.
    """

    def __init__(self, connection: Connection, handle: Handle, model: Model) -> None:
        # The connection must not be collected, and thereby closed, while the pool is in use.
        self._connection = connection
        self._handle = handle
        self._model = model
        self._library = _library.load()
        self._memory_lock = threading.Lock()
        self._memory: PoolMemory | None = None
        handle.close_with(self)

    # ---------------------------------------------------------------- itself

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def model(self) -> Model:
        return self._model

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        """Gives back the pool and closes its sequences. Arrays made from it stay valid memory. What
        was acquired should have been released. Not while another thread uses it."""
        self._handle.close()

    def info(self) -> PoolInfo:
        """The current attachment; attaches again after a reconnection. Without a daemon: the last
        one."""
        info = _abi.sized(_abi.PoolInfo)
        check(self._library.kvt_pool_get_info(self._handle.get(), ctypes.byref(info)))
        return PoolInfo(
            base=info.base,
            bytes=info.bytes,
            block_bytes=info.block_bytes,
            blocks=info.blocks,
            block_tokens=info.block_tokens,
            generation=info.generation,
            attachment=info.attachment,
            fd=info.fd,
            device_kind=DeviceKind(info.device_kind),
        )

    # ---------------------------------------------------------------- memory

    def memory(self) -> PoolMemory:
        """The pool's memory as arrays.

        The same object until the daemon is replaced; afterwards arrays made from earlier objects
        show the old pool's memory, and new ones must be made. Raises IoError, UnsupportedError (GPU
        memory, and no driver here).
        """
        return self.memory_of(self.info())

    def layer(self, layer: int) -> KvView[npt.NDArray[Any]]:
        """K and V of one layer as numpy arrays in place: PoolMemory.layer of `memory()`."""
        return self.memory().layer(layer)

    def torch_layer(self, layer: int) -> KvView[torch.Tensor]:
        """K and V of one layer as torch tensors in place: PoolMemory.torch_layer of `memory()`."""
        return self.memory().torch_layer(layer)

    def read(self, block: Block, offset: int = 0, byte_count: int | None = None) -> bytes:
        """Copies a part of a block (None: all from `offset` on) to host memory, whatever the
        device, and waits for it. For tools and checks, not for the hot path.

        Raises StaleHandleError, InvalidArgumentError (outside the pool or the block), IoError,
        UnsupportedError (GPU memory, and no driver here).
        """
        if byte_count is None:
            byte_count = max(self._model.block_bytes - offset, 0)
        _convert.unsigned(offset, 64, "offset")
        _convert.unsigned(byte_count, 32, "byte_count")
        data = ctypes.create_string_buffer(byte_count)
        check(
            self._library.kvt_pool_read(
                self._handle.get(), _abi.Block(*block), offset, data, byte_count
            )
        )
        return data.raw

    def write(self, block: Block, data: bytes, offset: int = 0) -> None:
        """Copies bytes into a private block, whatever the device, and waits for it. For tools and
        checks. Raises as `read`."""
        _convert.unsigned(offset, 64, "offset")
        check(
            self._library.kvt_pool_write(
                self._handle.get(), _abi.Block(*block), offset, data, len(data)
            )
        )

    def unmap_device(self) -> None:
        """Gives a GPU pool's memory back, of all generations; without it a restarted daemon cannot
        have that memory while this process holds it. The pool of a restarted daemon can be mapped
        again. Does nothing for host memory.

        Raises WrongStateError "in_use" while tensors or other arrays over it live.
        """
        with self._memory_lock:
            self._handle.call_unpinned(self._library.kvt_pool_unmap_device)
            self._memory = None

    def memory_of(self, info: PoolInfo) -> PoolMemory:
        """The memory of the attachment that `info` tells of, which must be the latest. Raises as
        `memory`; StaleHandleError if it is not."""
        with self._memory_lock:
            if self._memory is None or self._memory.generation != info.generation:
                self._memory = PoolMemory(self._model, info, self._handle)
                if info.device_kind == DeviceKind.HOST:
                    # Arrays over an earlier pool have a mapping of their own.
                    self._library.kvt_pool_drop_stale_mappings(self._handle.get())
            return self._memory

    # ---------------------------------------------------------------- blocks

    def hash_blocks(self, tokens: Tokens, identity: PromptIdentity | None = None) -> list[bytes]:
        """Hashes of all full blocks of `tokens` and, if tokens remain, of the partial one."""
        return hash_blocks(tokens, self._model.record.block_tokens, identity)

    def acquire(
        self,
        hashes: Hashes = (),
        *,
        tokens: Tokens | None = None,
        identity: PromptIdentity | None = None,
        partial_blocks: Hashes = (),
        new_blocks: int = 0,
        in_layers: bool = False,
    ) -> AcquireResult:
        """References the longest cached prefix over all tiers, starts what must be loaded, and
        allocates private blocks. One round trip.

        hashes: of the sequence's full blocks, from block 0. partial_blocks: hashes of partial
        blocks that would do after all of `hashes`, longest first. Or tokens, with identity: hashed
        here, the block of the remaining tokens being the only partial one. new_blocks: how many
        private blocks to allocate, all of them or the call fails. in_layers: what is in host memory
        comes layer by layer, layer 0 of all blocks first; see wait_layers.

        Without a daemon: no hits, no private blocks, miss UNAVAILABLE. Raises
        ResourceExhaustedError ("pool_full"), LimitExceededError, TimedOutError,
        InvalidArgumentError; nothing is held then.
        """
        joined, joined_partials = _convert.hash_bytes(hashes), _convert.hash_bytes(partial_blocks)
        if tokens is not None:
            if joined or joined_partials:
                raise invalid("hashes_and_tokens", "only one of them can be given")
            both = b"".join(self.hash_blocks(tokens, identity))
            full = len(tokens) // self._model.record.block_tokens * _convert.HASH_BYTES
            joined, joined_partials = both[:full], both[full:]
        return self._acquire(joined, joined_partials, new_blocks, in_layers)

    def _acquire(
        self, hashes: bytes, partial_blocks: bytes, new_blocks: int, in_layers: bool
    ) -> AcquireResult:
        hash_count = len(hashes) // _convert.HASH_BYTES
        request = _abi.sized(_abi.AcquireRequest)
        request.hashes = _convert.pointer(hashes)
        request.hash_count = hash_count
        request.partial_blocks = _convert.pointer(partial_blocks)
        request.partial_count = len(partial_blocks) // _convert.HASH_BYTES
        request.new_blocks = new_blocks
        request.load_order = 1 if in_layers else 0
        hits = (_abi.AcquiredBlock * (hash_count + (1 if partial_blocks else 0)))()
        private = (_abi.Block * _convert.unsigned(new_blocks, 32, "new_blocks"))()
        reply = _abi.sized(_abi.AcquireReply)
        reply.hits, reply.hits_capacity = ctypes.addressof(hits), len(hits)
        reply.new_blocks, reply.new_block_capacity = ctypes.addressof(private), len(private)
        names = _convert.split_hashes(hashes)
        if not check_available(
            self._library.kvt_acquire(
                self._handle.get(), ctypes.byref(request), ctypes.byref(reply)
            )
        ):
            return AcquireResult(self, names, [], [], None, None, Miss.UNAVAILABLE)
        return AcquireResult(
            self,
            names,
            unpack_hits(memoryview(hits).cast("B")[: reply.hit_count * ctypes.sizeof(hits._type_)]),
            unpack_blocks(memoryview(private).cast("B")),
            None if reply.partial_block == _abi.NO_PARTIAL_BLOCK else reply.partial_block,
            Load(reply.load.id, reply.load.attachment) if reply.load.id else None,
            Miss(reply.miss),
        )

    def wait(
        self,
        load: Load,
        up_to: int | None = None,
        timeout_ms: int | None = None,
        *,
        stream: object | None = None,
    ) -> LoadProgress:
        """Waits on the host until the first `up_to` hits (None: all) are usable or the load has
        finished, whichever is first.

        timeout_ms: 0 does not wait, None is the connection's request_timeout_ms. When the time is
        up, what is so far is returned: fewer ready and not finished. After the loss of the
        connection: 0 ready, finished, miss UNAVAILABLE. Raises NotFoundError (no such load).

        stream: a CUDA stream of the pool's GPU (torch.cuda.Stream, an object with `ptr`, or a
        cudaStream_t as an int) waits instead, and this call only says how far the load is. What is
        given to the stream from now on starts when the hits are usable, or when nothing more will
        come (the load failed, the daemon died): call wait again after synchronizing with the
        stream, and throw the results away unless it says that the hits are ready. Raises
        UnsupportedError (the pool is not on a GPU).
        """
        steps = _ALL_HITS if up_to is None else _convert.unsigned(up_to, 32, "up_to")
        if stream is not None and not self._queue_wait(load, steps, stream):
            return LoadProgress(0, True, Miss.UNAVAILABLE)
        return self._wait(self._library.kvt_wait, load, steps, timeout_ms if stream is None else 0)

    def wait_layers(
        self,
        load: Load,
        layers: int,
        timeout_ms: int | None = None,
        *,
        stream: object | None = None,
    ) -> LoadProgress:
        """The same until the first `layers` layers of all hits are usable. A load that was not
        acquired `in_layers` has them when it is complete.
        """
        steps = _convert.unsigned(layers, 32, "layers")
        if stream is not None and not self._queue_wait(load, steps, stream):
            return LoadProgress(0, True, Miss.UNAVAILABLE)
        wait_ms = timeout_ms if stream is None else 0
        return self._wait(self._library.kvt_wait_layers, load, steps, wait_ms)

    def _queue_wait(self, load: Load, steps: int, stream: object) -> bool:
        status = self._library.kvt_wait_on_stream(
            self._handle.get(), _abi.Load(*load), steps, stream_pointer(stream)
        )
        if status in (Status.UNAVAILABLE, Status.STALE_HANDLE):
            return False
        check(status)
        return True

    def _wait(
        self, call: Callable[..., int], load: Load, steps: int, timeout_ms: int | None
    ) -> LoadProgress:
        progress = _abi.sized(_abi.LoadProgress)
        status = call(
            self._handle.get(),
            _abi.Load(*load),
            steps,
            _convert.timeout(timeout_ms),
            ctypes.byref(progress),
        )
        if status in (Status.UNAVAILABLE, Status.STALE_HANDLE):
            return LoadProgress(0, True, Miss.UNAVAILABLE)
        if status != Status.TIMEOUT:
            check(status)
        return LoadProgress(
            progress.ready, bool(progress.finished), Miss(progress.miss), progress.layers
        )

    def commit(self, entries: Iterable[CommitEntry]) -> bool:
        """Publishes blocks; only sends. Errors of the daemon come by Connection.take_errors.

        False: not sent, because the connection that the blocks came from is gone, and the blocks
        with it. Blocks on a GPU must have been written completely: wait for the stream first.
        Raises InvalidArgumentError, LimitExceededError.
        """
        packed, count = _packed(entries)
        status = self._library.kvt_commit(self._handle.get(), packed, count, None)
        return _unless_lost(status)

    def commit_and_wait(self, entries: Iterable[CommitEntry]) -> list[Status]:
        """Publishes blocks and returns the outcome of each.

        OK; ALREADY_EXISTS (the hash was there: the first is kept, this block stays the caller's
        private one); or the entry's error. UNAVAILABLE for all: the connection was lost, and the
        blocks with it. Raises InvalidArgumentError, LimitExceededError, TimedOutError.
        """
        packed, count = _packed(entries)
        results = (ctypes.c_int32 * count)()
        status = self._library.kvt_commit(self._handle.get(), packed, count, results)
        if not _unless_lost(status):
            return [Status.UNAVAILABLE] * count
        return [Status(result) for result in results]

    def release(self, blocks: Iterable[Block]) -> None:
        """Gives back one reference, or the private block, per handle; only sends.

        Pass a sequence's blocks in their order. Blocks that went with a lost connection are
        released already and skipped. Errors of the daemon come by Connection.take_errors.
        """
        packed = pack_blocks(blocks)
        count = len(packed) // ctypes.sizeof(_abi.Block)
        check_available(self._library.kvt_release(self._handle.get(), packed or None, count, None))

    def release_and_wait(self, blocks: Iterable[Block]) -> list[Status]:
        """Like `release`, and returns the outcome of each; STALE_HANDLE and UNAVAILABLE: it went
        with a lost connection. Raises TimedOutError."""
        packed = pack_blocks(blocks)
        count = len(packed) // ctypes.sizeof(_abi.Block)
        results = (ctypes.c_int32 * count)()
        if not check_available(
            self._library.kvt_release(self._handle.get(), packed or None, count, results)
        ):
            return [Status.UNAVAILABLE] * count
        return [Status(result) for result in results]

    # ---------------------------------------------------------------- asking about blocks

    def prefetch(self, hashes: Hashes) -> int:
        """Brings the cached prefix into the pool without referencing it. Returns how many blocks
        are there or on their way; without a daemon 0."""
        joined, count = _joined(hashes)
        accepted = ctypes.c_uint32()
        check_available(
            self._library.kvt_prefetch(self._handle.get(), joined, count, ctypes.byref(accepted))
        )
        return accepted.value

    def pin(self, hashes: Hashes, ttl_ms: int) -> int:
        """Keeps blocks from being forgotten until `ttl_ms` from now; 0 unpins.

        Returns how many of them are cached and now pinned; without a daemon 0. Raises
        LimitExceededError (too large a share of the cache would be pinned).
        """
        joined, count = _joined(hashes)
        _convert.unsigned(ttl_ms, 63, "ttl_ms")
        pinned = ctypes.c_uint32()
        check_available(
            self._library.kvt_pin(self._handle.get(), joined, count, ttl_ms, ctypes.byref(pinned))
        )
        return pinned.value

    def lookup(self, hashes: Hashes) -> list[Presence]:
        """The tiers that hold each block now; without a daemon none."""
        joined, count = _joined(hashes)
        presence = (ctypes.c_uint8 * count)()
        check_available(self._library.kvt_lookup(self._handle.get(), joined, count, presence))
        return [Presence(one) for one in presence]

    # ---------------------------------------------------------------- attention

    def open_workspace(self, byte_count: int) -> Workspace:
        """Memory shared with the daemon for attention that it computes; zeroed.

        Raises UnsupportedError (the daemon does not compute), LimitExceededError,
        InvalidArgumentError, UnavailableError.
        """
        return Workspace(self._handle, byte_count)

    # ---------------------------------------------------------------- sequences

    def open_sequence(
        self,
        tokens: Tokens = (),
        *,
        identity: PromptIdentity | None = None,
        leave_tokens: int = 1,
        reserve_tokens: int = 0,
        retention: Retention = Retention.EXTENDED,
        copy: CopyFunction | None = None,
    ) -> Sequence:
        """Opens a sequence with its first tokens: hashes them, references their longest cached
        prefix and reserves blocks for the rest.

        leave_tokens: at least so many are left to compute; an engine needs the logits of the last.
        reserve_tokens: room to append without another round trip. retention: of the blocks that the
        sequence commits. copy: for copy-on-write in place of the built-in copy; see CopyFunction.

        Without a daemon: a sequence that is a miss, see Sequence.available; compute without the
        cache. Raises ResourceExhaustedError (nothing is held),
        InvalidArgumentError, LimitExceededError, TimedOutError; UnsupportedError (GPU memory, and
        no driver here).
        """
        settings = SequenceSettings(identity, leave_tokens, reserve_tokens, retention, copy)
        return open_sequence(self, self._handle, settings, tokens)


def _joined(hashes: Hashes) -> tuple[bytes | None, int]:
    """The hashes for C, and their number."""
    joined = _convert.hash_bytes(hashes)
    return joined or None, len(joined) // _convert.HASH_BYTES


def _packed(entries: Iterable[CommitEntry]) -> tuple[bytes | None, int]:
    """The entries for C, and their number."""
    packed = pack_entries(entries)
    return packed or None, len(packed) // ctypes.sizeof(_abi.CommitEntry)


def _unless_lost(status: int) -> bool:
    """False if the connection of the blocks named is gone; raises for other failures."""
    return status != Status.STALE_HANDLE and check_available(status)
