# SPDX-License-Identifier: Apache-2.0
"""Bytes that change while no daemon runs, on disk and in the memory that is kept for the next: each
block is then a miss or has the right bytes; one that was damaged itself is a miss, and where blocks
alone were damaged, the others are hits. A kept pool's blocks are believed, since clients may write
there at any time: of these, a damaged one may have its damaged bytes, and no other."""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import random
import shutil
from collections.abc import Callable

import kvtier
from kvtier._private_daemon import DaemonFailedError

from blocks import SLOT_BYTES, Player, block_hash, bytes_of
from record import Job
from world import SLAB_BYTES, World

BLOCKS = 600
STARTS_A_ROUND = 8
_PAGE_BYTES = 4096
_FIRST_SLAB_AT = 1 << 20
_SLOT_MAGIC = b"KVTSLOT1"
_HASH_AT = 64
#: How the names of the memory files begin that a kept pool has: the first ends there.
_POOL_NAME, _POOL_TABLE_NAME = "kvtier-pool ", "kvtier-pool-table"
#: Ends that docs/OPERATIONS.md names for files that cannot be used; a signal is none of them.
_REFUSALS = range(1, 128)


def slots_in(memory: bytes | mmap.mmap, first: int) -> dict[bytes, int]:
    """Where the slot of each block is: by hash, the offset. docs/DISK_FORMAT.md."""
    found = {}
    for offset in range(first, len(memory) - SLOT_BYTES + 1, _PAGE_BYTES):
        if memory[offset : offset + 8] == _SLOT_MAGIC:
            found[bytes(memory[offset + _HASH_AT : offset + _HASH_AT + 32])] = offset
    return found


def flip(memory: bytearray | mmap.mmap, offset: int, numbers: random.Random) -> None:
    memory[offset] ^= numbers.randrange(1, 256)


def flip_used(table: mmap.mmap, numbers: random.Random) -> int:
    """Changes some of the bytes that are not zero, and returns how many. Its head only now and then: a
    damaged head means that nothing is adopted."""
    first = 0 if numbers.random() < 0.2 else _PAGE_BYTES
    used = [place for place in range(first, len(table)) if table[place]]
    chosen = numbers.sample(used, min(len(used), numbers.randrange(1, 300)))
    for place in chosen:
        flip(table, place, numbers)
    return len(chosen)


#: Blocks that must be misses, and blocks that must be hits; others may be either.
Places = tuple[set[bytes], set[bytes]]
_ANY: Places = (set(), set())


class Damage:
    """The part that all rounds share: a world whose blocks are known, and how they are read."""

    def __init__(self, job: Job, seed: int, world: World) -> None:
        self.job = job
        self.seed = seed
        self.world = world
        self.numbers = random.Random(seed)
        self.hashes = [block_hash("damage", seed, number) for number in range(BLOCKS)]
        self.failed = False

    def fill(self, player: Player) -> None:
        """Each block is a prompt of its own, so that a miss hides no other."""
        player.fill(self.hashes)
        for text in player.errors:
            self.fail(text)

    def check(self, player: Player, what: str, damaged: set[bytes], whole: set[bytes]) -> None:
        """damaged: blocks that must be misses, unless a pool was kept that has another copy. whole:
        those that must be hits."""
        presence = player.pool.lookup(self.hashes)
        in_pool = {
            block for block, where in zip(self.hashes, presence) if where & kvtier.Presence.POOL
        }
        damaged = damaged - in_pool
        found = player.read(self.hashes)
        self.job.count("blocks asked for", len(found))
        self.job.count("of them in a kept pool", len(in_pool))
        self.job.count("right hits", sum(found))
        for text in player.wrong:
            self.fail(f"{what}: wrong bytes: {text}")
        for block, hit in zip(self.hashes, found):
            if hit and block in damaged:
                self.fail(f"{what}: block {block.hex()[:16]} was damaged and is a hit")
            if not hit and block in whole:
                self.fail(f"{what}: block {block.hex()[:16]} was whole and is a miss")
        if not self.world.daemon.is_running():
            self.fail(f"{what}: the daemon has ended")

    def flip_slots(self, memory: bytearray | mmap.mmap, first: int) -> Places:
        """Changes a byte in half of the slots. Returns the blocks that were damaged and the rest."""
        slots = slots_in(memory, first)
        known = [block for block in self.hashes if block in slots]
        damaged = self.numbers.sample(known, len(known) // 2)
        for block in damaged:
            flip(memory, slots[block] + self.numbers.randrange(SLOT_BYTES), self.numbers)
        return set(damaged), set(known) - set(damaged)

    def start(self, what: str) -> bool:
        """False: the daemon refused these files, which it may. Fails if it died otherwise."""
        try:
            self.world.daemon.start()
        except DaemonFailedError as error:
            status = error.exit_status
            if status is not None and status in _REFUSALS and not self.world.broken_promise():
                self.job.count("refused starts")
                return False
            self.fail(f"{what}: the daemon ended with {status}")
            return False
        return True

    def fail(self, what: str) -> None:
        if not self.failed:
            self.job.fail(self.seed, what, self.world.log())
        self.failed = True


class DiskDamage(Damage):
    """The files of a daemon that has ended; every start gets a fresh copy, and damage in it."""

    def run(self) -> None:
        self.world.daemon.start()
        player = Player(self.world.daemon.socket, "campaign")
        self.fill(player)
        player.close()
        self.world.daemon.drain()
        self.world.daemon.settle()
        self.world.daemon.kill()
        whole = self.world.directory / "whole"
        shutil.copytree(self.world.disk, whole)
        kinds: list[tuple[str, Callable[[], Places]]] = [
            ("slots", self._slots),
            ("superblocks and slab headers", self._headers),
            ("slots", self._slots),
            ("index", self._index),
        ]
        for number in range(STARTS_A_ROUND):
            shutil.rmtree(self.world.disk)
            shutil.copytree(whole, self.world.disk)
            name, damage = kinds[number % len(kinds)]
            damaged, hits = damage()
            if self.start(name):
                player = Player(self.world.daemon.socket, "campaign")
                self.check(player, name, damaged, hits)
                player.close()
                self.world.daemon.kill()
            if self.failed or self.job.is_over():
                return

    def _blocks_file(self) -> pathlib.Path:
        return self.world.disk / "blocks.kvt"

    def _slots(self) -> Places:
        path = self._blocks_file()
        content = bytearray(path.read_bytes())
        places = self.flip_slots(content, _FIRST_SLAB_AT)
        path.write_bytes(content)
        self.job.count("places in slots", len(places[0]))
        return places

    def _headers(self) -> Places:
        path = self._blocks_file()
        content = bytearray(path.read_bytes())
        pages = [0, _PAGE_BYTES, *range(_FIRST_SLAB_AT, len(content), SLAB_BYTES)]
        # Both superblocks at once now and then only: without one the daemon refuses.
        count = self.numbers.randrange(1, 40)
        chosen = self.numbers.sample(pages[self.numbers.randrange(3) :], min(count, len(pages) - 2))
        for page in chosen:
            flip(content, page + self.numbers.randrange(_PAGE_BYTES), self.numbers)
        path.write_bytes(content)
        self.job.count("places in headers", len(chosen))
        return _ANY

    def _index(self) -> Places:
        files = [file for file in (self.world.disk / "index").iterdir() if file.stat().st_size > 0]
        files.append(self.world.disk / "index.epoch")
        count = self.numbers.randrange(1, 200)
        for _ in range(count):
            path = self.numbers.choice(files)
            content = bytearray(path.read_bytes())
            flip(content, self.numbers.randrange(len(content)), self.numbers)
            path.write_bytes(content)
        self.job.count("places in the index", count)
        return _ANY


class HostDamage(Damage):
    """Host memory that the keeper holds between two daemons. There is no disk tier that could bring
    a block back."""

    def run(self) -> None:
        self.world.daemon.start()
        for number in range(STARTS_A_ROUND):
            player = Player(self.world.daemon.socket, "campaign")
            self.fill(player)
            self.world.daemon.settle()
            keeper = self.world.keeper()
            player.close()
            self.world.daemon.kill()
            # Later there are slots of blocks that were dropped, which look like the others.
            in_slots = number == 0
            damaged, hits = self._flip(keeper, in_slots)
            if not self.start("host memory"):
                self.fail("the daemon refuses to start with the kept memory")
                return
            self.world.daemon.settle()
            player = Player(self.world.daemon.socket, "campaign")
            where = "slots in host memory" if in_slots else "the table of host memory"
            self.check(player, where, damaged, hits)
            player.close()
            if self.failed or self.job.is_over():
                return

    def _flip(self, keeper: int, in_slots: bool) -> Places:
        with _kept(keeper, "kvtier-host-arena") as arena, _kept(keeper, "kvtier-host-table") as table:
            if not in_slots:
                return self._flip_table(table)
            places = self.flip_slots(arena, 0)
            self.job.count("places in host slots", len(places[0]))
            return places

    def _flip_table(self, table: mmap.mmap) -> Places:
        self.job.count("places in the host table", flip_used(table, self.numbers))
        return _ANY


class PoolDamage(Damage):
    """A pool in host memory that the keeper holds between two daemons. Nothing below it could bring a
    block back."""

    def run(self) -> None:
        self.world.daemon.start()
        for number in range(STARTS_A_ROUND):
            player = Player(self.world.daemon.socket, "campaign")
            self.fill(player)
            held = [
                block
                for block, where in zip(self.hashes, player.pool.lookup(self.hashes))
                if where & kvtier.Presence.POOL
            ]
            self.world.daemon.settle()
            keeper = self.world.keeper()
            player.close()
            self.world.daemon.kill()
            in_blocks = number % 2 == 0
            damaged = self._flip_blocks(keeper, held) if in_blocks else self._flip_table(keeper)
            if not self.start("a pool"):
                self.fail("the daemon refuses to start with the kept pool")
                return
            self.world.daemon.settle()
            player = Player(self.world.daemon.socket, "campaign")
            self._check(player, "blocks of a pool" if in_blocks else "a pool's table", damaged,
                        set(held) - damaged if in_blocks else set())
            player.close()
            if in_blocks:
                self.drop(damaged)
            if self.failed or self.job.is_over():
                return

    def drop(self, damaged: set[bytes]) -> None:
        """They are not asked for again: what a kept pool has of them stays as it is."""
        self.hashes = [block for block in self.hashes if block not in damaged]

    def _check(self, player: Player, what: str, damaged: set[bytes], whole: set[bytes]) -> None:
        player.read(sorted(damaged))
        self.job.count("damaged blocks of a pool believed", player.counts["wrong blocks"])
        player.wrong.clear()
        asked, self.hashes = self.hashes, [one for one in self.hashes if one not in damaged]
        self.check(player, what, set(), whole)
        self.hashes = asked

    def _flip_blocks(self, keeper: int, held: list[bytes]) -> set[bytes]:
        """Changes a byte in a quarter of the blocks."""
        with _kept(keeper, _POOL_NAME) as pool:
            damaged = self.numbers.sample(held, len(held) // 4)
            for block in damaged:
                whole = bytes_of(block).tobytes()
                place = pool.find(whole)
                if place < 0:
                    self.fail(f"block {block.hex()[:16]} is in the pool and was not found there")
                # Also where the block was before: which of them it is now, no one says.
                while place >= 0:
                    flip(pool, place + self.numbers.randrange(len(whole)), self.numbers)
                    place = pool.find(whole, place)
        self.job.count("places in blocks of a pool", len(damaged))
        return set(damaged)

    def _flip_table(self, keeper: int) -> set[bytes]:
        with _kept(keeper, _POOL_TABLE_NAME) as table:
            self.job.count("places in a pool's table", flip_used(table, self.numbers))
        return set()


def _kept(keeper: int, name: str) -> mmap.mmap:
    """Memory that the keeper holds, through its descriptors: any process of its user may."""
    for path in pathlib.Path(f"/proc/{keeper}/fd").iterdir():
        # The keeper closes its side of the daemon's connection meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(path).startswith(f"/memfd:{name}"):
                with open(path, "r+b") as file:
                    return mmap.mmap(file.fileno(), 0)
    raise RuntimeError(f"the keeper holds no {name}")


def _run(job: Job, make_world: Callable[[], World], kind: type[DiskDamage | HostDamage | PoolDamage]) -> None:
    for seed in job.seeds():
        with make_world() as world:
            round_ = kind(job, seed, world)
            try:
                round_.run()
            except (OSError, RuntimeError, kvtier.KvtierError) as error:
                round_.fail(f"{type(error).__name__}: {error}")


# Blocks wait for space below instead of being dropped, however slow the machine is.
_SETTINGS = ("cache.max_wait_ms=60000",)


def run_disk(job: Job) -> None:
    sizes = (256, 256, 2 * BLOCKS)
    _run(job, lambda: World(*sizes, "restart.keep_for=0s", *_SETTINGS), DiskDamage)


def run_host(job: Job) -> None:
    sizes = (64, 2 * BLOCKS, 0)
    _run(job, lambda: World(*sizes, "restart.keep_for=1min", *_SETTINGS), HostDamage)


def run_pool(job: Job) -> None:
    sizes = (2 * BLOCKS, 64, 0)
    _run(job, lambda: World(*sizes, "restart.keep_for=1min", *_SETTINGS), PoolDamage)
