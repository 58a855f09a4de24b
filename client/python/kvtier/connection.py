# SPDX-License-Identifier: Apache-2.0
"""A process's connection to the daemon, and requests to its admin socket."""

from __future__ import annotations

import ctypes
import json
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from . import _library, _native, kept_memory
from ._library import abi
from ._native import Handle, Owner
from .errors import Status, check, check_available, invalid
from .kept_memory import KeptTable
from .model import Model, ModelRecord, to_abi
from .pool import Pool
from .regions import Region, RegionMemory, region_options
from .types import AsyncError, AsyncErrors, Block, DeviceKind

#: Empty paths: the library finds the daemon that serves this user; see `connect` and `admin`.
DEFAULT_SOCKET = ""
DEFAULT_ADMIN_SOCKET = ""

# As many as the library keeps.
_ERRORS_KEPT = 1024


@dataclass(frozen=True)
class Stats:
    """blocks_*: by all acquires of all clients since the daemon started; asked = pool + host + disk
    + miss, and the declined blocks. pool_blocks_*: now, over the pools this connection has
    attached. session_references: held by this connection, private blocks included."""

    blocks_asked: int
    blocks_pool: int
    blocks_host: int
    blocks_disk: int
    blocks_miss: int
    pool_blocks_total: int
    pool_blocks_free: int
    pool_blocks_private: int
    pool_blocks_cached: int
    session_references: int


@dataclass(frozen=True)
class Device:
    """A device on which the daemon keeps pools. uuid: of a GPU, the same in every process and equal
    to `torch.cuda.get_device_properties(i).uuid`; None: host memory. pool_bytes: at most, for all
    pools."""

    kind: DeviceKind
    name: str
    uuid: uuid.UUID | None
    pool_bytes: int


def connect(
    socket: str | os.PathLike[str] = DEFAULT_SOCKET,
    *,
    client_name: str | None = None,
    connect_timeout_ms: int | None = None,
    request_timeout_ms: int | None = None,
    reconnect_min_ms: int | None = None,
    reconnect_max_ms: int | None = None,
    resume_wait_ms: int | None = None,
    wait_for_daemon: bool = False,
) -> Connection:
    """Connects to the daemon and says hello.

    socket: empty: the daemon that serves this user, which is $KVTIER_SOCKET, else
    kvtier/kvtier.sock in $XDG_RUNTIME_DIR (or kvtier-UID/kvtier.sock in the temporary directory) if
    it is there and no other user can have put it there, else /run/kvtier/kvtier.sock.
    client_name: shown by `kvtierctl status`; default: the program's name. connect_timeout_ms: for
    connecting (default 2000); request_timeout_ms: for any other reply (5000). reconnect_min_ms,
    reconnect_max_ms: the pause after a failed try to reconnect, doubling from the one (50) to the
    other (2000); a negative minimum: never again. resume_wait_ms: how long calls of those that hold
    blocks wait for a daemon that is started anew (3000; 0: not at all). wait_for_daemon: succeed without a daemon, as
    `register_model` and `attach` then do: the pool misses until the daemon is there. Other calls
    that need one raise UnavailableError until then.

    Raises UnavailableError (no daemon listens), PermissionDeniedError, UnsupportedError (no common
    version of the protocol), TimedOutError, InvalidArgumentError; LibraryNotFoundError.
    """
    library = _library.load()
    options = abi.kvt_connect_options()
    library.kvt_connect_options_init(ctypes.byref(options))
    options.client_name = _native.text(client_name, "client_name")
    options.wait_for_daemon = wait_for_daemon
    given = {
        "connect_timeout_ms": connect_timeout_ms,
        "request_timeout_ms": request_timeout_ms,
        "reconnect_min_ms": reconnect_min_ms,
        "reconnect_max_ms": reconnect_max_ms,
        "resume_wait_ms": resume_wait_ms,
    }
    for name, value in given.items():
        if value is not None:
            setattr(options, name, value)
    path = os.fsencode(socket)
    if b"\0" in path:
        raise invalid("nul_in_text", "socket")
    pointer = ctypes.c_void_p()
    check(library.kvt_connect(path, ctypes.byref(options), ctypes.byref(pointer)))
    return Connection(Handle("connection", pointer.value, library.kvt_disconnect))


class Connection(Owner):
    """Made by `connect`; any number of threads may use it at once.

    A call that finds the connection gone reconnects, registers and attaches again by itself.
    Methods raise InvalidArgumentError "closed" after `close`, WrongStateError "forked" in the child
    of a fork.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self._models: dict[bytes, Model] = {}  # registered here, by fingerprint

    def close(self) -> None:
        """Closes its pools and their sequences, and disconnects: the daemon drops all references.
        Idempotent. Not while another thread uses it."""
        self._handle.close()

    def is_connected(self) -> bool:
        """Whether the connection stands, without a round trip. Does not reconnect.

        Says nothing of blocks that were acquired before: any call, of any thread, may have
        connected to another daemon meanwhile. After reading pool memory ask Pool.check or
        Sequence.check.
        """
        return bool(self._library.kvt_is_connected(self._handle.get()))

    def ping(self) -> float:
        """One empty round trip, in microseconds. Raises UnavailableError, TimedOutError."""
        round_trip_us = ctypes.c_double()
        self._call("kvt_ping", ctypes.byref(round_trip_us))
        return round_trip_us.value

    def stats(self) -> Stats:
        """One round trip. Raises UnavailableError, TimedOutError."""
        stats = _library.sized(abi.kvt_stats)
        self._call("kvt_get_stats", ctypes.byref(stats))
        return Stats(*(getattr(stats, name) for name in Stats.__dataclass_fields__))

    def register_model(self, record: ModelRecord) -> Model:
        """Tells the daemon of a model; the same record is the same model on every connection.

        Raises InvalidArgumentError naming the field, LimitExceededError; UnavailableError, unless
        the connection was made with `wait_for_daemon`.
        """
        layout = record.layout()
        info: Any = _library.sized(abi.kvt_model_info)
        self._call("kvt_register_model", ctypes.byref(to_abi(record)), ctypes.byref(info))
        model = Model(record, layout, info.model, info.block_bytes, bytes(info.fingerprint))
        self._models[model.fingerprint] = model
        return model

    def devices(self) -> list[Device]:
        """The daemon's devices; `attach` calls them by their position. One round trip. Raises
        UnavailableError."""
        devices = (abi.kvt_device * abi.KVT_MAX_DEVICES)()
        count = ctypes.c_size_t()
        self._call("kvt_get_devices", devices, abi.KVT_MAX_DEVICES, ctypes.byref(count))
        return [_to_device(one) for one in devices[: count.value]]

    def attach(
        self, model: Model, device: int | None = None, pool_bytes: int = 0, group: int = 0
    ) -> Pool:
        """Attaches to the pool of a model, or of one of its groups of layers.

        It is created on first use with `pool_bytes`; 0 leaves the size to the daemon, which shares
        the rest among the groups that have no pool yet. device: its position in `devices()`; None:
        the only one, or the GPU whose CUDA context is current on this thread (after
        `torch.cuda.set_device`), or the only GPU that this process may see. A GPU stays the pool's,
        wherever a later daemon lists it.
        Raises ResourceExhaustedError, InvalidArgumentError, NotFoundError (model; group; device, or
        which device is meant cannot be told); UnavailableError, unless the connection was made with
        `wait_for_daemon`: the pool then misses until a daemon is there and gives it its memory.
        """
        if device is None:
            device = abi.KVT_ANY_DEVICE
        _native.unsigned(device, 32, "device")
        _native.unsigned(pool_bytes, 64, "pool_bytes")
        _native.unsigned(group, 32, "group")
        model = self._model_here(model)
        pointer = ctypes.c_void_p()
        self._call("kvt_attach", model.number, group, device, pool_bytes, ctypes.byref(pointer))
        handle = Handle("pool", pointer.value, self._library.kvt_pool_close, self._handle)
        return Pool(self, handle, model, group)

    def open_region(
        self,
        model: Model | ModelRecord,
        *,
        fd: int | None = None,
        bytes: int,
        blocks: int,
        block_stride: int | None = None,
        pieces: Iterable[tuple[int, int, int]] | None = None,
        group: int = 0,
        memory: RegionMemory = RegionMemory.SHARED_MEMORY,
        ipc_handle: bytes | None = None,
        device: int | None = None,
        kept: bytes | None = None,
    ) -> Region:
        """Lets the daemon copy to and from memory that the caller manages. One round trip.

        model: a record is registered first. fd: of the memory, needed unless it is CUDA_IPC; stays
        the caller's, who may close it. ipc_handle: of CUDA_IPC, 64 bytes. bytes: of the whole
        memory. blocks: how many it has, numbered from 0. pieces: where the parts of each block lie,
        as (offset, block_stride, bytes), in the order in which they make up a block; None: blocks
        are whole and `block_stride` apart, from offset 0; without a stride they follow each other.
        group: of the model's groups. device: where a GPU's memory is, as for `attach`; not looked at
        for SHARED_MEMORY. kept: the name (32 bytes) of the KeptMemory that the region lies in, of a
        GPU: blocks that it publishes are copied from there into other regions and pools.

        Raises InvalidArgumentError ("bad_region_layout": a block leaves the memory or overlaps
        another one; "region_block_bytes": the pieces are not the group's block; "no_descriptor";
        "bad_region_memory": the daemon cannot map it), UnsupportedError ("region_memory_kind"),
        NotFoundError (group, device), LimitExceededError, UnavailableError.
        """
        known = self._model_here(model)
        groups = known.record.all_groups()
        options = region_options(
            known.record.layout(group).block_stride if group < len(groups) else 0,
            fd=fd,
            bytes=bytes,
            blocks=blocks,
            block_stride=block_stride,
            pieces=pieces,
            group=group,
            memory=memory,
            ipc_handle=ipc_handle,
            device=device,
            kept=kept,
        )
        return Region(self, self._handle, known, options)

    def kept_table(self, name: bytes) -> KeptTable | None:
        """The table of the memory kept under a name (32 bytes), for another process than its owner;
        None if the daemon keeps nothing under it. Changes no owner. One round trip. Raises
        UnavailableError."""
        return kept_memory.read_table(self._handle, name)

    def release_memory(
        self, name: bytes | None = None, device: int | None = None
    ) -> tuple[int, int]:
        """Has the daemon give kept memory back: of one name, or all of this tenant that has no
        owner, on one of `devices()` or anywhere. Returns how many and how many bytes. One round
        trip. Raises WrongStateError "memory_in_use" (of a name: another process that lives owns
        it), UnavailableError."""
        return kept_memory.release(self._handle, name, device)

    def _model_here(self, model: Model | ModelRecord) -> Model:
        """The model as this connection numbers it. Raises as `register_model`."""
        if isinstance(model, ModelRecord):
            return self.register_model(model)
        # One of another connection has another number here, or none yet.
        return self._models.get(model.fingerprint) or self.register_model(model.record)

    def flush(self) -> bool:
        """Waits until the daemon has done all that was sent before.

        False: the connection was lost since the last flush, and what had been sent may be lost with
        it. Raises TimedOutError.
        """
        return check_available(self._library.kvt_flush(self._handle.get()))

    def take_errors(self) -> AsyncErrors:
        """Takes the errors of commits and releases whose calls did not wait, and the refusals of
        pools by a daemon that came after `attach`, for which they miss; the latest 1024 are kept."""
        errors = (abi.kvt_async_error * _ERRORS_KEPT)()
        dropped = ctypes.c_uint64()
        count = self._library.kvt_take_errors(
            self._handle.get(), errors, _ERRORS_KEPT, ctypes.byref(dropped)
        )
        return AsyncErrors([_to_async_error(one) for one in errors[:count]], dropped.value)


def _to_async_error(error: Any) -> AsyncError:
    block = error.block
    named = Block(block.index, block.generation, block.attachment) if block.attachment else None
    return AsyncError(named, Status(error.code), error.reason.decode("utf-8", errors="replace"))


def _to_device(device: Any) -> Device:
    kind = DeviceKind(device.kind)
    return Device(
        kind,
        device.name.decode(errors="replace"),
        uuid.UUID(bytes=bytes(device.uuid)) if kind == DeviceKind.CUDA else None,
        device.pool_bytes,
    )


def admin(
    request: dict[str, Any],
    socket: str | os.PathLike[str] = DEFAULT_ADMIN_SOCKET,
    *,
    timeout_ms: int = 60_000,
    progress: Callable[[Any], None] | None = None,
) -> Any:
    """Sends one request, for example {"op": "status"}, and returns the reply's JSON value.

    socket: empty: admin.sock beside the socket that `connect` would find. timeout_ms: after the
    last message from the daemon. progress: called with each progress message's JSON value, on this
    thread; an exception that it raises is raised here, after the reply. Raises UnavailableError,
    PermissionDeniedError, TimedOutError; the daemon's refusals with their code.
    """
    library = _library.load()
    raised: list[BaseException] = []

    def forward(_: Any, text: bytes) -> None:
        # Nothing may be raised through C.
        try:
            if progress is not None and not raised:
                progress(json.loads(text))
        except BaseException as error:
            raised.append(error)

    reply = ctypes.c_void_p()
    status = library.kvt_admin(
        os.fsencode(socket),
        json.dumps(request).encode(),
        timeout_ms,
        abi.kvt_admin_progress(forward),
        None,
        ctypes.byref(reply),
    )
    if raised:
        library.kvt_string_free(reply)
        raise raised[0]
    check(status)
    try:
        return json.loads(ctypes.string_at(reply.value)) if reply.value else None
    finally:
        library.kvt_string_free(reply)
