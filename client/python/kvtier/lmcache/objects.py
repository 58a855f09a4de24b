# SPDX-License-Identifier: Apache-2.0
"""LMCache's objects as blocks of the daemon.

An object is one block of a model whose record says how many bytes its objects have. The daemon
copies it out of and into LMCache's own memory if that is shared memory, and the object lies
where blocks of its size lie there; any other goes through some memory of this module.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .._facts import record_name
from .._host_view import NotSharedError, find_host_view
from .._library import abi
from .._link import HASHES_PER_CALL, Attachment, Link, LinkState, wait_until_ended
from .._settling import wait_until_settled
from ..connection import Connection, connect
from ..errors import KvtierError, LimitExceededError, UnavailableError
from ..model import KvGroup, ModelRecord
from ..regions import Region

logger = logging.getLogger("lmcache.kvtier")

# LMCache's usual chunk. It does not say how many tokens an object has when it looks it up; the
# daemon only shows this number.
_OBJECT_TOKENS = 256
# Small objects need no more rows to be fast.
_MOST_ROWS = 1024

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ObjectName:
    """Names an object in the daemon. Objects of other sizes or weights never meet."""

    model: str
    weights: str
    object_bytes: int
    hash: bytes


def name_of(key: Any, object_bytes: int, weights: str) -> ObjectName:
    """The name of one of LMCache's object keys. weights: which the model has."""
    parts = (
        key.model_name.encode(),
        str(key.kv_rank).encode(),
        str(key.object_group_id).encode(),
        key.cache_salt.encode(),
        key.chunk_hash,
    )
    text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return ObjectName(key.model_name, weights, object_bytes, hashlib.sha256(text).digest())


@dataclass(frozen=True)
class SharedFile:
    """LMCache's memory as a file that the daemon can map. The descriptor is this object's."""

    fd: int
    offset: int  # of the memory's first byte in the file
    address: int
    bytes: int
    align_bytes: int

    @staticmethod
    def find(description: Any) -> SharedFile | None:
        """The file behind the memory that an L1MemoryDesc describes; None if it cannot be lent."""
        if description is None or description.size <= 0:
            return None
        memory = (ctypes.c_uint8 * description.size).from_address(description.ptr)
        try:
            # Only looks at the address: nothing of the memory is read here.
            view = find_host_view(np.ctypeslib.as_array(memory)[np.newaxis].data)
        except (NotSharedError, OSError) as error:
            logger.debug("kvtier: LMCache's memory is not lent: %s", error)
            return None
        if view.offset + description.size > view.file_bytes:
            view.close()
            return None
        align = max(1, int(description.align_bytes))
        return SharedFile(view.fd, view.offset, description.ptr, description.size, align)

    def close(self) -> None:
        os.close(self.fd)


@dataclass
class _Blocks:
    """Where objects of one size are while the daemon copies them: in place, or in the rows."""

    object_bytes: int
    staged: Region
    rows: Bytes
    in_place: Region | None
    stride: int

    def close(self) -> None:
        self.staged.close()
        if self.in_place is not None:
            self.in_place.close()


@dataclass
class _Part:
    """A part of a request that one transfer does: objects by their positions in the request, and
    the blocks of the region that they are in."""

    region: Region
    positions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)


class ObjectStore:
    """One connection to the daemon. One thread uses it, but for `connected`; its calls wait for the
    daemon, and what fails or finds none is reported as not done: nothing is raised because of it.

    staging_bytes: of memory of its own for objects of each size.
    """

    def __init__(
        self,
        socket: str,
        identity: dict[str, str],
        staging_bytes: int,
        shared: SharedFile | None,
        retry_s: tuple[float, float],
    ) -> None:
        self._socket = socket
        self._identity = identity
        self._staging_bytes = staging_bytes
        self._shared = shared
        self._link = Link(self._open, logger, *retry_s)
        self.copied_in_place = 0  # objects
        self.copied_twice = 0

    @property
    def connected(self) -> bool:
        return self._link.state is LinkState.READY

    def close(self) -> None:
        """Ends once nothing touches LMCache's memory any more."""
        self._link.close()

    def look_up(self, names: Sequence[ObjectName], lock_ms: int) -> list[bool]:
        """Which objects the daemon has; it keeps these from being evicted for lock_ms."""

        def call(blocks: _Blocks, hashes: list[bytes]) -> list[bool]:
            # In this order, so that objects reported as present have been locked.
            try:
                blocks.staged.pin(hashes, lock_ms)
            except LimitExceededError as error:
                logger.warning("kvtier: found objects are not locked: %s", error)
            return [bool(tiers) for tiers in blocks.staged.lookup(hashes)]

        return self._by_size(names, call)

    def unlock(self, names: Sequence[ObjectName]) -> None:
        def call(blocks: _Blocks, hashes: list[bytes]) -> list[bool]:
            blocks.staged.pin(hashes, 0)
            return [True] * len(hashes)

        self._by_size(names, call)

    def store(
        self, names: Sequence[ObjectName], contents: Sequence[Bytes]
    ) -> list[tuple[bool, bool]]:
        """For each object whether the daemon has it now, and whether it did not have it before."""
        before = self._by_size(
            names, lambda blocks, hashes: [bool(one) for one in blocks.staged.lookup(hashes)]
        )
        missing = [i for i, known in enumerate(before) if not known]
        wanted = [names[i] for i in missing]

        def begin(part: _Part, hashes: list[bytes]) -> int:
            return part.region.store_many(part.blocks, hashes)

        stored = self._transfer(wanted, [contents[i] for i in missing], begin, is_load=False)
        result = [(known, False) for known in before]
        for i, done in zip(missing, stored):
            result[i] = (done, done)
        return result

    def load(self, names: Sequence[ObjectName], contents: Sequence[Bytes]) -> list[bool]:
        """Which objects have come. The content of the others' memory is undefined."""

        def begin(part: _Part, hashes: list[bytes]) -> int:
            return part.region.load_many(part.blocks, hashes)

        return self._transfer(names, contents, begin, is_load=True)

    # ---------------------------------------------------------------- requests

    def _by_size(
        self, names: Sequence[ObjectName], call: Callable[[_Blocks, list[bytes]], list[bool]]
    ) -> list[bool]:
        """The results of `call` for the objects of each model and size, in the order of the names.
        """
        result = [False] * len(names)
        for positions in _alike(names):

            def run(attachment: Attachment, positions: list[int] = positions) -> None:
                blocks = self._blocks(attachment, names[positions[0]])
                found = call(blocks, [names[i].hash for i in positions])
                for i, one in zip(positions, found):
                    result[i] = one

            self._link.use(run, None)
        return result

    def _transfer(
        self,
        names: Sequence[ObjectName],
        contents: Sequence[Bytes],
        begin: Callable[[_Part, list[bytes]], int],
        is_load: bool,
    ) -> list[bool]:
        done = [False] * len(names)

        def run_part(attachment: Attachment, part: _Part, rows: Bytes | None) -> None:
            places = list(zip(part.positions, part.blocks))
            if rows is not None and not is_load:
                for i, row in places:
                    rows[row] = contents[i]
            transfer = begin(part, [names[i].hash for i in part.positions])
            try:
                failed = wait_until_ended(part.region, transfer).failed
            except UnavailableError:
                if rows is None and is_load:
                    # LMCache gives the memory to others after this.
                    wait_until_settled(part.region)
                raise
            arrived = [position not in failed for position in range(len(places))]
            for (i, row), came in zip(places, arrived):
                if came and rows is not None and is_load:
                    contents[i][:] = rows[row]
                done[i] = came
            if rows is None:
                self.copied_in_place += sum(arrived)
            else:
                self.copied_twice += sum(arrived)

        for positions in _alike(names):

            def run(attachment: Attachment, positions: list[int] = positions) -> None:
                blocks = self._blocks(attachment, names[positions[0]])
                for part, rows in self._parts(blocks, positions, contents):
                    run_part(attachment, part, rows)

            self._link.use(run, None)
        return done

    def _parts(
        self, blocks: _Blocks, positions: list[int], contents: Sequence[Bytes]
    ) -> Iterator[tuple[_Part, Bytes | None]]:
        """The transfers of these objects, and the rows that they go through, if any."""
        through_rows = []
        direct = _Part(blocks.in_place) if blocks.in_place is not None else None
        for i in positions:
            block = self._block_of(blocks, contents[i]) if direct else None
            if direct is None or block is None:
                through_rows.append(i)
            else:
                direct.positions.append(i)
                direct.blocks.append(block)
        if direct is not None and direct.positions:
            yield direct, None
        count = len(blocks.rows)
        for first in range(0, len(through_rows), count):
            taken = through_rows[first : first + count]
            yield _Part(blocks.staged, taken, list(range(len(taken)))), blocks.rows

    def _block_of(self, blocks: _Blocks, content: Bytes) -> int | None:
        """The block of the region in LMCache's memory that this object is; None if it is none."""
        assert self._shared is not None and blocks.in_place is not None
        block, rest = divmod(int(content.ctypes.data) - self._shared.address, blocks.stride)
        return block if rest == 0 and 0 <= block < blocks.in_place.blocks else None

    # ---------------------------------------------------------------- connection and regions

    def _open(self) -> Attachment:
        """On the link's thread. Raises KvtierError."""
        connection = connect(self._socket, client_name="lmcache", reconnect_min_ms=-1)
        sizes: dict[tuple[str, str, int], _Blocks] = {}

        def close() -> None:
            for blocks in sizes.values():
                blocks.close()
            connection.close()

        return Attachment([], close, connection.is_connected, memory=(connection, sizes))

    def _blocks(self, attachment: Attachment, name: ObjectName) -> _Blocks:
        """Opened when a model's objects of this size first come. Raises KvtierError, OSError."""
        connection, sizes = attachment.memory
        key = (name.model, name.weights, name.object_bytes)
        if key not in sizes:
            # No more is to come of the model's other weights, but for locks that end.
            for other in [one for one in sizes if one[0] == name.model and one[1] != name.weights]:
                sizes.pop(other).close()
            sizes[key] = self._open_blocks(connection, name)
        found: _Blocks = sizes[key]
        return found

    def _open_blocks(self, connection: Connection, name: ObjectName) -> _Blocks:
        size = name.object_bytes
        group = KvGroup(layers=1, layer_bytes=size, block_tokens=_OBJECT_TOKENS)
        record = ModelRecord(
            record_name(name.model or "unnamed"),
            hash_recipe="lmcache-objects/1",
            extra={**self._identity, "weights": name.weights},
            groups=(group,),
        )
        count = max(1, min(self._staging_bytes // size, _MOST_ROWS))
        fd = os.memfd_create("kvtier-lmcache", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, count * size)
            rows = np.frombuffer(mmap.mmap(fd, count * size), np.uint8).reshape(count, size)
            staged = connection.open_region(record, fd=fd, bytes=count * size, blocks=count)
        finally:
            os.close(fd)
        shared, stride, in_place = self._shared, size, None
        if shared is not None:
            stride = -(-size // shared.align_bytes) * shared.align_bytes
            if shared.bytes >= stride:
                try:
                    in_place = connection.open_region(
                        record,
                        fd=shared.fd,
                        bytes=os.fstat(shared.fd).st_size,
                        blocks=min(shared.bytes // stride, abi.KVT_MAX_REGION_BLOCKS),
                        pieces=[(shared.offset, stride, size)],
                    )
                except UnavailableError:
                    raise
                except KvtierError as error:
                    # A session's regions have a bound together, and not all memory can be lent.
                    logger.warning("kvtier: objects of %d bytes are copied twice: %s", size, error)
        logger.info("kvtier: objects of %d bytes of %s", size, name.model)
        return _Blocks(size, staged, rows, in_place, stride)


def _alike(names: Iterable[ObjectName]) -> list[list[int]]:
    """Positions of the names of each model, its weights, and size, at most what one call takes."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault((name.model, name.weights, name.object_bytes), []).append(i)
    return [
        positions[first : first + HASHES_PER_CALL]
        for positions in groups.values()
        for first in range(0, len(positions), HASHES_PER_CALL)
    ]
