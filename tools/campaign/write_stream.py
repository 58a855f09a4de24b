# SPDX-License-Identifier: Apache-2.0
"""The stream of kvtier-record-writes, and the states that a power loss may leave of it.

The model, by which any file system that journals its metadata must be covered:

* A sync (fsync or fdatasync, which are the same here) that was answered keeps all requests answered
  before it arrived: the bytes of its file, and the file's size. It keeps no name.
* Names (create, mkdir, rename, unlink, rmdir) are one journal for the whole file system. A prefix
  of it is left, which has at least the requests answered before an answered sync of any directory
  arrived.
* After later writes to a file each sector, of 512 or 4,096 bytes, has any of the contents that it
  has had, independently of all others: writes are dropped, torn and reordered, also those that were
  never answered. A sector that nothing of was kept reads as zeros, or as it was before.
* Sizes (writes beyond the end, truncate, fallocate) of one file are kept in order, up to any point,
  whatever happened to the bytes and to other files. A truncate that was lost gives back the old bytes.

A request that failed has changed some things, such as the first bytes of a write, and counts as
these changes.

It is harsher than ext4 and XFS, which also keep the name of a file that was synced, and write bytes
before the size that covers them. It is milder than a file system that loses the order of names
between directories, and than a drive that lies about its flush or tears a sector of 512 bytes: other
parts of the campaign change bytes anywhere.
"""

from __future__ import annotations

import pathlib
import random
import struct
from collections.abc import Iterator
from typing import NamedTuple

CREATE, MAKE_DIRECTORY, RENAME, UNLINK, REMOVE_DIRECTORY = b"CMRUD"
WRITE, TRUNCATE, ALLOCATE, SYNC, SYNC_DIRECTORY, ANSWER, NOTE = b"WTASYEN"
_NAMES = frozenset((CREATE, MAKE_DIRECTORY, RENAME, UNLINK, REMOVE_DIRECTORY))
_CONTENTS = frozenset((WRITE, TRUNCATE, ALLOCATE))
_HEADER = struct.Struct("<B3xIQQI")


class Event(NamedTuple):
    """kind: one of those above. request: its number, which the answer has as well."""

    kind: int
    request: int
    value: int
    file: int
    content: bytes | memoryview


def pack(event: Event) -> bytes:
    head = _HEADER.pack(event.kind, event.request, event.value, event.file, len(event.content))
    return head + bytes(event.content)


def unpack(stream: bytes | memoryview) -> Iterator[Event]:
    """In the order in which they happened; one that was cut off at the end is left out."""
    view = memoryview(stream)
    at = 0
    while at + _HEADER.size <= len(view):
        kind, request, value, file, size = _HEADER.unpack_from(view, at)
        at += _HEADER.size
        if at + size > len(view):
            return
        yield Event(kind, request, value, file, view[at : at + size])
        at += size


class _Change:
    """A change of a file's contents or of names; `answered` is when, and None until then."""

    __slots__ = ("event", "answered")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.answered: int | None = None

    def answered_before(self, when: int) -> bool:
        return self.answered is not None and self.answered < when


class _File:
    def __init__(self) -> None:
        self.kept = bytearray()
        self.changes: list[_Change] = []

    def keep(self, when: int) -> None:
        """A sync that arrived then has been answered."""
        changes, self.changes = self.changes, []
        for change in changes:
            if change.answered_before(when):
                _apply(self.kept, change.event)
            else:
                self.changes.append(change)


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _overwrite(content: bytearray, offset: int, piece: bytes | memoryview) -> None:
    if len(content) < offset + len(piece):
        _resize(content, offset + len(piece))
    content[offset : offset + len(piece)] = piece


def _done(event: Event, failed: int) -> Event:
    """The bytes actually written, where that many at its end were not."""
    written = event.content[: max(0, len(event.content) - failed)]
    if event.kind == WRITE and written:
        return event._replace(content=written)
    return event._replace(kind=WRITE, value=0, content=b"")


def _apply(content: bytearray, event: Event) -> None:
    if event.kind == WRITE:
        _overwrite(content, event.value, event.content)
    elif event.kind == TRUNCATE or event.value > len(content):
        _resize(content, event.value)


def _rename(names: dict[str, int | None], event: Event) -> None:
    old, new, _ = bytes(event.content).decode().split("\0")
    for name in [name for name in names if name == old or name.startswith(old + "/")]:
        names[new + name[len(old) :]] = names.pop(name)


def _apply_name(names: dict[str, int | None], event: Event) -> None:
    if event.kind == RENAME:
        _rename(names, event)
        return
    name = bytes(event.content).decode()
    if event.kind in (CREATE, MAKE_DIRECTORY):
        names[name] = event.file if event.kind == CREATE else None
    else:
        names.pop(name, None)


class Disk:
    """The file system after a part of a stream. Events come by `advance`, in order; `cut` says what a
    power loss at this moment may leave, as often as it is asked."""

    def __init__(self) -> None:
        self.events = 0
        self._files: dict[int, _File] = {}
        self._names: dict[str, int | None] = {}  # kept for certain; None: a directory
        self._journal: list[_Change] = []  # since then
        self._asked: dict[int, tuple[int, Event, _Change | None]] = {}

    def advance(self, event: Event) -> None:
        if event.kind == ANSWER:
            self._answer(event.request, event.value)
        elif event.kind in _NAMES or event.kind in _CONTENTS:
            change = _Change(event)
            if event.kind in _CONTENTS:
                self._files.setdefault(event.file, _File()).changes.append(change)
            else:
                self._journal.append(change)
            self._asked[event.request] = (self.events, event, change)
        elif event.kind != NOTE:
            self._asked[event.request] = (self.events, event, None)
        self.events += 1

    def _answer(self, request: int, failed: int) -> None:
        arrived, event, change = self._asked.pop(request)
        if change is not None:
            change.answered = self.events
            if failed:
                change.event = _done(event, failed)
        elif event.kind == SYNC:
            if event.file in self._files:
                self._files[event.file].keep(arrived)
        else:
            self._keep_names(arrived)

    def _keep_names(self, when: int) -> None:
        known = [i for i, change in enumerate(self._journal) if change.answered_before(when)]
        count = known[-1] + 1 if known else 0
        for change in self._journal[:count]:
            _apply_name(self._names, change.event)
        del self._journal[:count]
        reachable = {number for number in self._names.values() if number is not None}
        reachable.update(change.event.file for change in self._journal)
        for number in [number for number in self._files if number not in reachable]:
            # Its unlink is kept, but it may be open: later writes to it are lost anyhow.
            self._files[number] = _File()

    def cut(self, numbers: random.Random) -> dict[str, bytearray | None]:
        """Names with contents; None: a directory. The same numbers give the same result."""
        names = dict(self._names)
        luck = _Luck(numbers)
        for change in self._journal[: luck.point(len(self._journal))]:
            _apply_name(names, change.event)
        contents: dict[str, bytearray | None] = {}
        for name in sorted(names):
            number = names[name]
            if number is None:
                contents[name] = None
            else:
                contents[name] = luck.content(self._files.get(number, _File()))
        return contents


class _Luck:
    """The unsynced changes that one power loss keeps."""

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self._sector = numbers.choice((512, 4096))
        self._kind = numbers.choice(("nothing", "all", "in order", "newest", "sectors", "sectors"))
        self._share = numbers.choice((0.05, 0.3, 0.5, 0.7, 0.95))

    def point(self, count: int) -> int:
        """How many of so many changes in order are kept."""
        if self._kind == "nothing":
            return 0
        if self._kind == "all":
            return count
        return self._numbers.choice((0, count, self._numbers.randint(0, count)))

    def content(self, file: _File) -> bytearray:
        content = bytearray(file.kept)
        changes = [change.event for change in file.changes]
        if not changes:
            return content
        kept = self.point(len(changes))
        size = self._size(len(content), changes[:kept])
        end = None  # of what a truncate that was lost lets later writes reach
        sectors: dict[int, list[tuple[int, Event]]] = {}
        for i, event in enumerate(changes):
            if event.kind == WRITE:
                reach = len(event.content) if end is None else max(0, end - event.value)
                for sector in self._sectors(event.value, min(reach, len(event.content))):
                    sectors.setdefault(sector, []).append((i, event))
            elif event.kind == TRUNCATE and i < kept:
                _resize(content, event.value)
                self._forget(sectors, event.value)
            elif event.kind == TRUNCATE:
                end = event.value if end is None else min(end, event.value)
        for sector, writes in sectors.items():
            for _, event in writes[: self._version(writes, kept)]:
                self._overwrite_sector(content, sector, event)
        _resize(content, size)
        return content

    @staticmethod
    def _size(size: int, changes: list[Event]) -> int:
        for event in changes:
            if event.kind == TRUNCATE:
                size = event.value
            else:
                size = max(size, event.value + len(event.content))
        return size

    def _sectors(self, offset: int, size: int) -> range:
        if size <= 0:
            return range(0)
        return range(offset // self._sector, (offset + size - 1) // self._sector + 1)

    def _forget(self, sectors: dict[int, list[tuple[int, Event]]], size: int) -> None:
        """Bytes written before a truncate that was kept, as far as they were beyond the new end."""
        for sector in [sector for sector in sectors if (sector + 1) * self._sector > size]:
            below = [
                (i, event._replace(content=event.content[: size - event.value]))
                for i, event in sectors.pop(sector)
                if event.value < size
            ]
            if below and sector * self._sector < size:
                sectors[sector] = below

    def _version(self, writes: list[tuple[int, Event]], kept: int) -> int:
        """How many of a sector's writes, in order, have reached it."""
        count = len(writes)
        if self._kind == "nothing":
            return 0
        if self._kind == "all":
            return count
        if self._kind == "in order":
            whole = sum(i < kept for i, _ in writes)
            # The one at the point itself is torn.
            torn = whole < count and writes[whole][0] == kept and self._numbers.random() < 0.5
            return whole + torn
        if self._numbers.random() < self._share:
            return count
        return 0 if self._kind == "newest" else self._numbers.randint(0, count)

    def _overwrite_sector(self, content: bytearray, sector: int, event: Event) -> None:
        first = max(event.value, sector * self._sector)
        last = min(event.value + len(event.content), (sector + 1) * self._sector)
        if first < last:
            _overwrite(content, first, event.content[first - event.value : last - event.value])


def write_tree(contents: dict[str, bytearray | None], root: pathlib.Path) -> None:
    """REQUIRES: root is an empty directory. Names come in order, a directory before its entries;
    entries of a directory that was lost are lost."""
    for name, content in contents.items():
        path = root / name.lstrip("/")
        if not path.parent.is_dir():
            continue
        if content is None:
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(content)
            path.chmod(0o600)
