# SPDX-License-Identifier: Apache-2.0
"""A recording of everything that a daemon under load has written, by kvtier-record-writes, with
notes in it of the daemon's reports at each moment: which blocks are on disk, and which are gone."""

from __future__ import annotations

import bisect
import json
import lzma
import mmap
import pathlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import write_stream
from blocks import block_hash, conversations
from world import World

SIZES = (192, 150)
#: As many would fit into what two files use for other things than slabs.
_HEAD_BLOCKS = 224
#: The disk holds about half of the requested blocks. It grows and shrinks with the starts.
DISK_BLOCKS = tuple(_HEAD_BLOCKS + blocks for blocks in (320, 320, 420, 320, 380))
SETTINGS = ("retention.persist_after=0s", "restart.keep_for=0s")
#: The two drives' directories, in that of the disk tier.
DRIVES = ("a", "b")
_LIVES_TO_AN_ENCRYPTED = 6
#: With keys that are kept: each life has prompts of its own, and the disk holds all of them.
_DISK_BLOCKS_WITH_KEYS = 3000
_ROOT_KEY = bytes(range(32))
_SLOT_MAGIC = b"KVTSLOT1"
_HASH = slice(64, 96)


def doomed_hash(seed: int, number: int) -> bytes:
    return block_hash("doomed", seed, number)


class DiskSettings(NamedTuple):
    """The recorded daemon's disk options, start by start. keys: "none"; "memory": encrypted with
    keys that end with the daemon, so that the next one empties the files; "persist": they are on
    the disk as well."""

    blocks: int
    keys: str

    def apply(self, world: World) -> None:
        settings = ["disk.encryption=none"]
        if self.keys != "none":
            settings = ["disk.encryption=aes-256-gcm"]
        if self.keys == "persist":
            root_key = world.directory / "root.key"
            root_key.write_bytes(_ROOT_KEY)
            root_key.chmod(0o600)
            settings.append(f"disk.root_key={root_key}")
        world.resize_disk(self.blocks, *settings)


def drives_in(disk: pathlib.Path) -> str:
    return "disk.directories=" + json.dumps([str(disk / drive) for drive in DRIVES])


def settings_of(seed: int, life: int) -> DiskSettings:
    """Recordings with even seeds have keys that are kept."""
    if seed % 2 == 0:
        return DiskSettings(_DISK_BLOCKS_WITH_KEYS, "persist")
    encrypted = life % _LIVES_TO_AN_ENCRYPTED == 4
    return DiskSettings(DISK_BLOCKS[life % len(DISK_BLOCKS)], "memory" if encrypted else "none")


def blocks_of(prompts: int) -> list[bytes]:
    return [block for prompt in conversations(prompts) for block in prompt]


class _Look(NamedTuple):
    """begun, ended: the events between which the daemon was asked."""

    begun: int
    ended: int
    on_disk: frozenset[bytes]


class Recording:
    """One that was made before. Processes that are made by fork share it."""

    def __init__(self, path: pathlib.Path) -> None:
        """Raises OSError, lzma.LZMAError, or ValueError (there is nothing in it)."""
        with tempfile.TemporaryFile(prefix="kvtier-stream-") as raw:
            with lzma.open(path) as packed:
                shutil.copyfileobj(packed, raw, 1 << 20)
            raw.flush()
            self._stream = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
        self.events = 0
        self.seed = 0
        self.prompts = 0  # of the last life
        self._known_prompts: set[int] = set()
        self.hashes: list[bytes] = []
        self._doomed: list[bytes] = []
        self._writes: dict[bytes, list[int]] = {}  # when a block's slot was written
        self._looks: list[_Look] = []
        self._starts: list[tuple[int, DiskSettings]] = []
        self._gone: list[tuple[int, bytes]] = []
        self._erased: list[tuple[int, int]] = []
        self._rare: list[int] = []
        self._read()
        if not self._looks or not self._starts:
            raise ValueError(f"{path} is no recording")

    def stream(self) -> Iterator[write_stream.Event]:
        return write_stream.unpack(memoryview(self._stream))

    def position(self, numbers: random.Random) -> int:
        """How many events have happened: any number, and as often one at a change of names or
        sizes, of which there are few."""
        if numbers.random() < 0.5:
            return numbers.randint(1, self.events)
        return min(self.events, max(1, numbers.choice(self._rare) + numbers.randint(-1, 4)))

    def settings(self, position: int) -> DiskSettings:
        """As last configured then."""
        starts = [when for when, _ in self._starts]
        return self._starts[max(0, bisect.bisect_left(starts, position) - 1)][1]

    def promised(self, position: int) -> set[bytes]:
        """Blocks that are on disk: the daemon said so before and after, and has not written them
        between."""
        later = bisect.bisect_left([look.begun for look in self._looks], position)
        earlier = bisect.bisect_right([look.ended for look in self._looks], position) - 1
        keys = self.settings(position).keys
        if earlier < 0 or later == len(self._looks) or keys == "memory":
            return set()
        before, after = self._looks[earlier], self._looks[later]
        if keys == "persist":
            # Their headers are encrypted, so that writes are not known; but no block has to leave.
            return set(before.on_disk & after.on_disk)
        return {
            block
            for block in before.on_disk & after.on_disk
            if not self._was_written(block, before.begun, after.ended)
        }

    def gone(self, position: int) -> set[bytes]:
        """Blocks that an administrator was told to be gone, and that were not stored again."""
        blocks = {block for when, block in self._gone if when < position}
        begun = [begun for begun, ended in self._erased if ended < position]
        if begun:
            blocks.update(
                block
                for block in self.hashes
                if not self._was_written(block, begun[-1], position - 1)
            )
        return blocks

    def all_blocks(self, position: int) -> list[bytes]:
        return self.hashes + [block for when, block in self._gone if when < position]

    def _was_written(self, block: bytes, first: int, last: int) -> bool:
        writes = self._writes.get(block, [])
        return bisect.bisect_left(writes, first) < bisect.bisect_right(writes, last)

    def _read(self) -> None:
        asked: dict[int, int] = {}
        rare = (write_stream.CREATE, write_stream.MAKE_DIRECTORY, write_stream.RENAME,
                write_stream.UNLINK, write_stream.REMOVE_DIRECTORY, write_stream.TRUNCATE,
                write_stream.ALLOCATE, write_stream.SYNC_DIRECTORY)
        for when, event in enumerate(self.stream()):
            self.events = when + 1
            if event.kind == write_stream.NOTE:
                self._take_note(when, json.loads(bytes(event.content)), asked)
            elif event.kind == write_stream.WRITE and event.content[:8] == _SLOT_MAGIC:
                self._writes.setdefault(bytes(event.content[_HASH]), []).append(when)
            elif event.kind in rare:
                self._rare.append(when)

    def _take_note(self, when: int, note: dict[str, Any], asked: dict[int, int]) -> None:
        if "blocks" in note:
            self.seed, self.prompts = note["seed"], note["prompts"]
            if note["prompts"] not in self._known_prompts:
                self._known_prompts.add(note["prompts"])
                self.hashes += blocks_of(note["prompts"])
            self._starts.append((when, DiskSettings(note["blocks"], note["keys"])))
        elif "look" in note:
            asked[note["look"]] = when
        elif "seen" in note:
            on_disk = frozenset(self.hashes[i] for i in note["on_disk"])
            self._looks.append(_Look(asked[note["seen"]], when, on_disk))
        elif "gone" in note:
            self._gone.append((when, doomed_hash(self.seed, note["gone"])))
        elif "erasing" in note:
            asked[0] = when
        elif "erased" in note:
            self._erased.append((asked[0], when))
