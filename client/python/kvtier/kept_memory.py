# SPDX-License-Identifier: Apache-2.0
"""Memory that outlives its process: an engine's KV cache, and the table of its blocks.

The daemon holds descriptors of both. After the engine's end, however it ended, the next engine that
asks for the same name has the same bytes at once; kvtier_kept_memory.h says what a name must tell,
and in which order blocks are computed, published, retracted and overwritten.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._library import abi
from ._native import HASH_BYTES, Handle, Hashes, Owner
from .errors import Status, check, error_of, invalid

if TYPE_CHECKING:
    from .connection import Connection

_NO_ROOT = bytes(HASH_BYTES)


@dataclass(frozen=True)
class KeptBlocks:
    """A table's entries: blocks[i] of groups[i] holds the bytes of hashes[i]; those that were
    published first come first."""

    blocks: npt.NDArray[np.uint32]
    groups: npt.NDArray[np.uint32]
    hashes: list[bytes]


class KeptMemory(Owner):
    """Memory of this process that the daemon keeps for the next one. Any thread."""

    def __init__(
        self,
        name: bytes,
        byte_count: int,
        blocks: int,
        connection: Connection | None = None,
        cuda_device: int | None = None,
    ) -> None:
        """Takes the memory that the daemon keeps under the name; if it keeps none, or none that
        fits, allocates zeros, which the daemon then keeps.

        name: 32 bytes. blocks: of the table. connection: None, or without a daemon: only allocates;
        `keep` hands the memory over later. It need not live as long as this. cuda_device: as torch
        numbers the GPUs; None: host memory.

        Raises WrongStateError "memory_in_use" (another process that lives owns the name, or other
        memory of this one has it: use another name, or none), TimedOutError (the daemon may hand it
        over yet), LimitExceededError, ResourceExhaustedError, NotFoundError (no such GPU, or the
        daemon does not use it), InvalidArgumentError, UnsupportedError, IoError.
        """
        library = _library.load()
        options = abi.kvt_kept_memory_options()
        library.kvt_kept_memory_options_init(ctypes.byref(options))
        options.name[:] = _native.one_hash(name)
        options.bytes = _native.unsigned(byte_count, 64, "byte_count")
        options.blocks = _native.unsigned(blocks, 32, "blocks")
        if cuda_device is not None:
            options.cuda_device = _native.unsigned(cuda_device, 31, "cuda_device")
        pointer = ctypes.c_void_p()
        check(
            library.kvt_kept_memory_open(
                None if connection is None else connection.handle.get(),
                ctypes.byref(options),
                ctypes.byref(pointer),
            )
        )
        super().__init__(Handle("kept memory", pointer.value, library.kvt_kept_memory_close))
        self._on_gpu = cuda_device is not None
        self.name = bytes(name)

    @property
    def was_kept(self) -> bool:
        """Whether the bytes are those that an earlier process left; `entries` says what they are."""
        return bool(self._library.kvt_kept_memory_was_kept(self._handle.get()))

    @property
    def fd(self) -> int:
        """The descriptor of the memory, for `open_region`: RegionMemory.VMM on a GPU, else
        SHARED_MEMORY. Owned by this."""
        return int(self._library.kvt_kept_memory_fd(self._handle.get()))

    @property
    def byte_count(self) -> int:
        """The size of the mapping: the requested one, rounded up."""
        return int(self._library.kvt_kept_memory_bytes(self._handle.get()))

    @property
    def pointer(self) -> int:
        """Where the memory is, in host memory or on the GPU; valid until `close`, or until this object
        is collected."""
        return int(self._library.kvt_kept_memory_data(self._handle.get()))

    def buffer(self) -> memoryview:
        """All of the memory, to read and write, until `close`; the view keeps this object. Raises
        UnsupportedError on a GPU."""
        if self._on_gpu:
            raise error_of(Status.UNSUPPORTED, "not_host_memory", "the memory is on a GPU")
        return memoryview(_native.memory_at(self.pointer, self.byte_count, self)).cast("B")

    def keep(self, connection: Connection) -> None:
        """Has the daemon keep the memory: to be called after each connection. Raises as the
        constructor; UnavailableError, TimedOutError."""
        self._call("kvt_kept_memory_keep", connection.handle.get())

    def publish(self, group: int, blocks: npt.ArrayLike, hashes: Hashes) -> None:
        """blocks[i] of the group (0 to 15) holds hashes[i] from now on. Their bytes must be
        complete on the device. Raises InvalidArgumentError; then nothing was changed."""
        numbers = _block_array(blocks)
        joined = _native.hash_bytes(hashes)
        if len(joined) != numbers.size * HASH_BYTES:
            raise invalid(
                "bad_hash_count", f"{len(joined) // HASH_BYTES} for {numbers.size} blocks"
            )
        self._call(
            "kvt_kept_memory_publish",
            _native.unsigned(group, 32, "group"),
            _native.address(numbers),
            _native.pointer(joined),
            numbers.size,
        )

    def retract(self, blocks: npt.ArrayLike) -> None:
        """The blocks hold nothing from now on: to be called before anything is launched that writes
        them. Raises InvalidArgumentError."""
        numbers = _block_array(blocks)
        self._call("kvt_kept_memory_retract", _native.address(numbers), numbers.size)

    def clear(self) -> None:
        """No block holds anything from now on."""
        self._call("kvt_kept_memory_clear")

    @property
    def root(self) -> bytes | None:
        """The root of the hashes, as it was set; None: never."""
        return _root_of(self._library.kvt_kept_memory_root, self._handle)

    def set_root(self, root: bytes) -> None:
        """Another root than there was clears the table first. Raises InvalidArgumentError."""
        self._call("kvt_kept_memory_set_root", _native.one_hash(root))

    def entries(self) -> KeptBlocks:
        """The published blocks."""
        return _entries_of(self._library.kvt_kept_memory_entries, self._handle)

    def close(self) -> None:
        """Unmaps the memory; the daemon goes on keeping it. Nothing may use it any more. Idempotent.
        Not while another thread uses it."""
        self._handle.close()


class KeptTable(Owner):
    """The table of some name as it was when `Connection.kept_table` read it. Any thread."""

    @property
    def root(self) -> bytes | None:
        """As KeptMemory.root."""
        return _root_of(self._library.kvt_kept_table_root, self._handle)

    def entries(self) -> KeptBlocks:
        return _entries_of(self._library.kvt_kept_table_entries, self._handle)


def read_table(connection: Handle, name: bytes) -> KeptTable | None:
    """Does what Connection.kept_table says."""
    library = _library.load()
    pointer = ctypes.c_void_p()
    check(
        library.kvt_kept_table_read(connection.get(), _native.one_hash(name), ctypes.byref(pointer))
    )
    if pointer.value is None:
        return None
    return KeptTable(Handle("kept table", pointer.value, library.kvt_kept_table_close))


def release(connection: Handle, name: bytes | None, device: int | None) -> tuple[int, int]:
    """Does what Connection.release_memory says."""
    released, byte_count = ctypes.c_uint32(), ctypes.c_uint64()
    check(
        _library.load().kvt_memory_release(
            connection.get(),
            None if name is None else _native.one_hash(name),
            abi.KVT_ANY_DEVICE if device is None else _native.unsigned(device, 32, "device"),
            ctypes.byref(released),
            ctypes.byref(byte_count),
        )
    )
    return released.value, byte_count.value


def _block_array(blocks: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """As uint32 [count], copied only if need be. Raises InvalidArgumentError."""
    array = np.asarray(blocks)
    if array.size == 0:
        return np.zeros(0, dtype=np.uint32)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0:
        raise invalid("bad_blocks", f"{array.dtype} of {array.ndim} dimensions")
    if array.max() > 0xFFFFFFFF:
        raise invalid("bad_blocks", str(array.max()))
    return np.ascontiguousarray(array, dtype=np.uint32)


def _root_of(function: Callable[..., Any], handle: Handle) -> bytes | None:
    root = ctypes.create_string_buffer(HASH_BYTES)
    check(function(handle.get(), root))
    return None if root.raw == _NO_ROOT else root.raw


def _entries_of(function: Callable[..., Any], handle: Handle) -> KeptBlocks:
    """Asks how many there are first; more may be published meanwhile."""
    capacity = 0
    while True:
        blocks = np.empty(capacity, dtype=np.uint32)
        groups = np.empty(capacity, dtype=np.uint32)
        hashes = ctypes.create_string_buffer(max(1, capacity * HASH_BYTES))
        count = ctypes.c_size_t()
        check(
            function(
                handle.get(),
                _native.address(blocks),
                _native.address(groups),
                hashes,
                capacity,
                ctypes.byref(count),
            )
        )
        if count.value <= capacity:
            found = _native.split_hashes(hashes.raw[: count.value * HASH_BYTES])
            return KeptBlocks(blocks[: count.value], groups[: count.value], found)
        capacity = count.value
