# SPDX-License-Identifier: Apache-2.0
"""A model's block pool, shared with the daemon and with other processes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _library, _native
from ._library import abi
from ._native import Handle, Hashes, Tokens, address
from .attention import Workspace
from .blocks import (
    AcquireResult,
    AnyBlocks,
    Blocks,
    Hits,
    block_array,
    entry_array,
    new_block_array,
    new_hit_array,
)
from .cuda import stream_pointer
from .errors import Status, check, check_available, invalid
from .hashing import PromptIdentity, hash_blocks
from .hit_plan import ComputeCost
from .memory import AttachedPool
from .model import Model
from .opening import open_sequence
from .sequence import Sequence
from .types import CommitEntry, Hint, HitPlan, Load, LoadProgress, Miss, Presence, Retention

_ALL_STEPS = 0xFFFFFFFF


class AcquireCall:
    """One acquire as the C library takes it: the structures and the arrays that they point to."""

    def __init__(
        self, hashes: bytes, partial_blocks: bytes, new_blocks: int, in_layers: bool
    ) -> None:
        """Raises InvalidArgumentError."""
        hash_count = len(hashes) // _native.HASH_BYTES
        self._hashes = hashes
        self._partial_blocks = partial_blocks
        self._in_layers = in_layers
        self._hits = new_hit_array(hash_count + (1 if partial_blocks else 0))
        self._private = new_block_array(_native.unsigned(new_blocks, 32, "new_blocks"))
        self.request = request = _library.sized(abi.kvt_acquire_request)
        request.hashes, request.hash_count = _native.pointer(hashes), hash_count
        request.partial_blocks = _native.pointer(partial_blocks)
        request.partial_count = len(partial_blocks) // _native.HASH_BYTES
        request.new_blocks = new_blocks
        request.load_order = abi.KVT_LOAD_LAYERS if in_layers else abi.KVT_LOAD_BLOCKS
        self.reply = reply = _library.sized(abi.kvt_acquire_reply)
        reply.hits, reply.hits_capacity = address(self._hits), len(self._hits)
        reply.new_blocks, reply.new_block_capacity = address(self._private), len(self._private)

    def result(self, pool: Pool) -> AcquireResult:
        """The acquired blocks, when the call has succeeded."""
        reply = self.reply
        offered, load = reply.partial_block, reply.load
        return AcquireResult(
            pool,
            self._hashes,
            Miss(reply.miss),
            Hits(self._hits[: reply.hit_count]),
            Blocks(self._private),
            None if offered == abi.KVT_NO_PARTIAL_BLOCK else offered,
            Load(load.id, load.attachment, self._in_layers) if load.id else None,
            reply.first_hit,
        )


class Pool(AttachedPool):
    """The blocks of a model, or of one of its groups of layers. Made by Connection.attach; any number of threads may use it at once.

    Without a daemon the calls about blocks answer "miss" and do not raise: see each. Methods raise
    InvalidArgumentError "closed" after `close`.
    """

    def __init__(self, connection: Any, handle: Handle, model: Model, group: int) -> None:
        super().__init__(handle, model, group)
        # The connection must not be collected, and thereby closed, while the pool is in use.
        self._connection = connection

    @property
    def connection(self) -> Any:
        """The Connection that made it; its module imports this one."""
        return self._connection

    def _asked(self, function: str, *arguments: Any) -> bool:
        """False if a call found no daemon. Raises its other errors."""
        return check_available(self._status(function, *arguments))

    def _counted(self, function: str, *arguments: Any) -> int:
        """The number of blocks to which the last argument of a call points; without a daemon 0."""
        count = ctypes.c_uint32()
        self._asked(function, *arguments, ctypes.byref(count))
        return count.value

    # ---------------------------------------------------------------- blocks

    def hash_blocks(
        self,
        tokens: Tokens,
        identity: PromptIdentity | None = None,
        *,
        lookahead_tokens: int = 0,
    ) -> list[bytes]:
        """kvtier.hash_blocks with the group's block_tokens and the model's hash_recipe."""
        return hash_blocks(
            tokens,
            self.group.block_tokens,
            identity,
            recipe=self._model.record.hash_recipe,
            lookahead_tokens=lookahead_tokens,
        )

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
        here by the model's recipe, the block of the remaining tokens being the only partial one.
        new_blocks: how many private blocks to allocate, all of them or the call fails. in_layers:
        blocks in host memory come layer by layer, layer 0 of all blocks first; see wait_layers.

        Without a daemon: no hits, no private blocks, miss UNAVAILABLE. Raises
        ResourceExhaustedError ("pool_full"), LimitExceededError, TimedOutError,
        InvalidArgumentError; nothing is held then.
        """
        joined, joined_partials = _native.hash_bytes(hashes), _native.hash_bytes(partial_blocks)
        if tokens is not None:
            if joined or joined_partials:
                raise invalid("hashes_and_tokens", "only one of them can be given")
            both = b"".join(self.hash_blocks(tokens, identity))
            full = len(tokens) // self.group.block_tokens * _native.HASH_BYTES
            joined, joined_partials = both[:full], both[full:]
        return self._acquire(joined, joined_partials, new_blocks, in_layers)

    def _acquire(
        self, hashes: bytes, partial_blocks: bytes, new_blocks: int, in_layers: bool
    ) -> AcquireResult:
        asked = AcquireCall(hashes, partial_blocks, new_blocks, in_layers)
        if not self._asked("kvt_acquire", ctypes.byref(asked.request), ctypes.byref(asked.reply)):
            return AcquireResult(self, hashes, Miss.UNAVAILABLE)
        return asked.result(self)

    def wait(
        self,
        load: Load | None,
        up_to: int | None = None,
        timeout_ms: int | None = None,
        *,
        stream: object | None = None,
    ) -> LoadProgress:
        """Waits on the host until the first `up_to` hits (None: all) are usable or the load has
        finished, whichever is first. load: None has finished, with all hits ready.

        timeout_ms: 0 does not wait, None is the connection's request_timeout_ms. When the time is
        up, the progress so far is returned: fewer ready and not finished. After the loss of the
        connection: 0 ready, finished, miss UNAVAILABLE. Raises NotFoundError (no such load).

        stream: a CUDA stream of the pool's GPU (torch.cuda.Stream, an object with `ptr`, or a
        cudaStream_t as an int) waits instead, and this call only says how far the load is. Work
        given to the stream from now on starts when the hits are usable, or when nothing more will
        come (the load failed, the daemon died): call wait again after synchronizing with the
        stream, and throw the results away unless it says that the hits are ready. Raises
        UnsupportedError (the pool is not on a GPU), TimedOutError (the load is one of too many to
        be counted, for which the host waits).
        """
        steps = _ALL_STEPS if up_to is None else _native.unsigned(up_to, 32, "up_to")
        if stream is not None and not self._queue_wait(load, steps, stream, in_layers=False):
            return LoadProgress(0, True, Miss.UNAVAILABLE)
        return self._wait("kvt_wait", load, steps, timeout_ms if stream is None else 0)

    def wait_layers(
        self,
        load: Load | None,
        layers: int,
        timeout_ms: int | None = None,
        *,
        stream: object | None = None,
    ) -> LoadProgress:
        """The same until the first `layers` layers of all hits are usable. A load that was not
        acquired `in_layers` has them when it is complete.
        """
        steps = _native.unsigned(layers, 32, "layers")
        if stream is not None and not self._queue_wait(load, steps, stream, in_layers=True):
            return LoadProgress(0, True, Miss.UNAVAILABLE)
        wait_ms = timeout_ms if stream is None else 0
        return self._wait("kvt_wait_layers", load, steps, wait_ms)

    def _queue_wait(self, load: Load | None, steps: int, stream: object, in_layers: bool) -> bool:
        # A counter tells hits or layers; where it tells the other, only its end tells enough.
        if load is not None and load.in_layers != in_layers:
            steps = _ALL_STEPS
        status = self._status("kvt_wait_on_stream", _named(load), steps, stream_pointer(stream))
        if status in (Status.UNAVAILABLE, Status.STALE_HANDLE):
            return False
        check(status)
        return True

    def _wait(
        self, function: str, load: Load | None, steps: int, timeout_ms: int | None
    ) -> LoadProgress:
        progress = _library.sized(abi.kvt_load_progress)
        status = self._status(
            function,
            _named(load),
            steps,
            _native.timeout(timeout_ms),
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
        array = entry_array(entries)
        status = self._status("kvt_commit", address(array), len(array), None)
        return _unless_lost(status)

    def commit_and_wait(self, entries: Iterable[CommitEntry]) -> list[Status]:
        """Publishes blocks and returns the outcome of each.

        OK; ALREADY_EXISTS (the hash was there: the first is kept, this block stays the caller's
        private one); or the entry's error. UNAVAILABLE for all: the connection was lost, and the
        blocks with it. Raises InvalidArgumentError, LimitExceededError, TimedOutError.
        """
        array = entry_array(entries)
        results = np.zeros(len(array), np.int32)
        status = self._status("kvt_commit", address(array), len(array), address(results))
        return _statuses(results) if _unless_lost(status) else _all_unavailable(results)

    def release(self, blocks: AnyBlocks) -> None:
        """Gives back one reference, or the private block, per handle; only sends.

        Pass a sequence's blocks in their order. Blocks that went with a lost connection are
        released already and skipped. Errors of the daemon come by Connection.take_errors.
        """
        array = block_array(blocks)
        self._asked("kvt_release", address(array), len(array), None)

    def release_and_wait(self, blocks: AnyBlocks) -> list[Status]:
        """Like `release`, and returns the outcome of each; STALE_HANDLE and UNAVAILABLE: it went
        with a lost connection. Raises TimedOutError."""
        array = block_array(blocks)
        results = np.zeros(len(array), np.int32)
        status = self._status("kvt_release", address(array), len(array), address(results))
        return _statuses(results) if check_available(status) else _all_unavailable(results)

    def check(self, blocks: AnyBlocks) -> bool:
        """True if these blocks have been held without a break since they were acquired: bytes read
        from them before this call are then theirs, and nothing else says so. Ask after reading, and
        before they are released.

        No round trip while the connection stands. If the daemon was lost, takes back the held
        blocks from the next one first, for which it may wait (connect's resume_wait_ms).
        """
        array = block_array(blocks)
        status = self._status("kvt_check_blocks", address(array), len(array))
        return _unless_lost(status)

    # ---------------------------------------------------------------- asking about blocks

    def prefetch(self, hashes: Hashes) -> int:
        """Brings the cached prefix into the pool without referencing it. Returns how many blocks
        are there or on their way; without a daemon 0."""
        joined, count = _joined(hashes)
        return self._counted("kvt_prefetch", joined, count)

    def pin(self, hashes: Hashes, ttl_ms: int) -> int:
        """Keeps blocks from being forgotten until `ttl_ms` from now; 0 ends this
        connection's pins.

        Returns how many of them are cached; without a daemon 0. Raises
        LimitExceededError (too large a share of the cache would be pinned).
        """
        joined, count = _joined(hashes)
        _native.unsigned(ttl_ms, 63, "ttl_ms")
        return self._counted("kvt_pin", joined, count, ttl_ms)

    def hint(self, hashes: Hashes, hint: Hint, returns_in_ms: int = 0) -> int:
        """Gives the daemon a hint about a sequence, whose hashes these are from its first block on:
        Hint.CLOSED, Hint.ONCE, or Hint.RETURNS with `returns_in_ms`, at most a day. One round trip.
        Blocks that will not be used again, and that no other cached sequence goes on from, leave
        first, and are not copied to lower tiers.

        Returns of how many blocks the hint was taken; without a daemon 0. Raises
        InvalidArgumentError.
        """
        joined, count = _joined(hashes)
        _native.unsigned(returns_in_ms, 63, "returns_in_ms")
        return self._counted("kvt_hint_blocks", joined, count, hint, returns_in_ms)

    def wants_tokens(self) -> bool:
        """Whether the daemon keeps ids of which tokens blocks hold, for the events that routers get;
        without a daemon False. One round trip."""
        wanted = ctypes.c_int()
        self._asked("kvt_tokens_wanted", ctypes.byref(wanted))
        return bool(wanted.value)

    def give_tokens(self, hashes: Hashes, tokens: Tokens, counts: Tokens | None = None) -> None:
        """Tells which tokens blocks hold, before they are committed; only sends. Sequences do so by
        themselves.

        tokens: ids of one block's after the other's. counts: how many each block has; None: all
        blocks are full. Only of blocks whose hash depends on nothing but tokens. Raises
        InvalidArgumentError ("bad_token_count", ...).
        """
        joined, count = _joined(hashes)
        ids, ends = _native.token_arrays(tokens, counts, count)
        self._asked(
            "kvt_give_tokens",
            joined,
            None if ends is None else _native.address(ends),
            count,
            _native.address(ids),
            len(ids),
        )

    def lookup(self, hashes: Hashes) -> list[Presence]:
        """The tiers that hold each block now; without a daemon none."""
        joined, count = _joined(hashes)
        presence = (ctypes.c_uint8 * count)()
        self._asked("kvt_lookup", joined, count, presence)
        return [Presence(one) for one in presence]

    # ---------------------------------------------------------------- attention

    def open_workspace(self, byte_count: int) -> Workspace:
        """Memory shared with the daemon for attention that it computes; zeroed.

        Raises UnsupportedError (the daemon does not compute), LimitExceededError,
        InvalidArgumentError, UnavailableError.
        """
        return Workspace(self, byte_count)

    # ---------------------------------------------------------------- sequences

    def set_compute_cost(self, cost: ComputeCost) -> None:
        """Says what computing takes with this model, for sequences that are opened later with a
        plan. No round trip. Raises InvalidArgumentError "bad_cost"."""
        given = _library.sized(abi.kvt_compute_cost)
        for name in ("per_token_us", "per_pair_us", "fixed_us"):
            setattr(given, name, getattr(cost, name))
        self._call("kvt_pool_set_compute_cost", ctypes.byref(given))

    def open_sequence(
        self,
        tokens: Tokens = (),
        *,
        identity: PromptIdentity | None = None,
        leave_tokens: int = 1,
        reserve_tokens: int = 0,
        retention: Retention = Retention.EXTENDED,
        plan: HitPlan = HitPlan.ALL,
        deadline_ms: int = 0,
    ) -> Sequence:
        """Opens a sequence with its first tokens: hashes them by the model's recipe, references
        their longest cached prefix and reserves blocks for the rest.

        leave_tokens: at least so many are left to compute; an engine needs the logits of the last.
        reserve_tokens: blocks for so many, to append without another round trip. retention: of the
        blocks that the sequence commits. plan: which hits are worth loading, by the daemon's
        knowledge of loading and the costs of `set_compute_cost`. deadline_ms: hits that would be
        loaded later are left out; 0: no deadline.

        Without a daemon: a sequence that is a miss, see Sequence.available; compute without the
        cache. Raises ResourceExhaustedError (nothing is held),
        InvalidArgumentError, LimitExceededError, TimedOutError; UnsupportedError (GPU memory, and
        no driver here).
        """
        return open_sequence(
            self,
            tokens,
            identity,
            retention,
            plan,
            leave_tokens=leave_tokens,
            reserve_tokens=reserve_tokens,
            deadline_ms=deadline_ms,
        )


def _joined(hashes: Hashes) -> tuple[bytes | None, int]:
    """The hashes for C, and their number."""
    joined = _native.hash_bytes(hashes)
    return joined or None, len(joined) // _native.HASH_BYTES


def _named(load: Load | None) -> Any:
    """The load for C, which takes id 0 for one of nothing."""
    return abi.kvt_load() if load is None else abi.kvt_load(load.id, load.attachment)


def _unless_lost(status: int) -> bool:
    """False if the connection of the blocks named is gone; raises for other failures."""
    return status != Status.STALE_HANDLE and check_available(status)


def _statuses(results: Any) -> list[Status]:
    return [Status(result) for result in results.tolist()]


def _all_unavailable(results: Any) -> list[Status]:
    return [Status.UNAVAILABLE] * len(results)
