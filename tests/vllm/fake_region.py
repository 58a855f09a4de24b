# SPDX-License-Identifier: Apache-2.0
"""A region without a daemon: blocks in a dictionary, transfers that end when the test says so."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

import kvtier
from kvtier import Miss, Presence
from kvtier._link import Attachment


@dataclass
class FakeEnd:
    transfer: int
    copied: int
    skipped: int
    failed: dict[int, Miss] = field(default_factory=dict)
    error: kvtier.KvtierError | None = None


class FakeDaemon:
    """The part that outlives regions: the blocks. reachable: whether one can connect; `opened`
    counts."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, bytes] = {}
        self.parents: dict[bytes, bytes | None] = {}
        self.depths: dict[bytes, int] = {}
        self.presence = Presence.HOST
        self.reachable = True
        self.opened = 0
        self.lookups = 0
        self.answering = threading.Event()
        self.answering.set()
        self.region: FakeRegion | None = None

    def attach(self, rows: np.ndarray) -> Attachment:
        """As the connector's: raises UnavailableError when the daemon cannot be reached."""
        if not self.reachable:
            raise unavailable()
        self.opened += 1
        region = self.region = FakeRegion(self, rows)
        return Attachment([region], region.close, lambda: not region.lost)

    def die(self) -> None:
        """The process is gone, and all that was under way has failed."""
        self.reachable = False
        assert self.region is not None
        self.region.lose()

    def restart(self) -> None:
        """It dies, and the next one is there before a client has noticed."""
        self.die()
        self.reachable = True


class FakeRegion:
    def __init__(self, daemon: FakeDaemon, rows: np.ndarray) -> None:
        self.lost = False
        self.ended = False  # the daemon's process
        self.closed = False
        self.retention = self.compare = None  # of the last store
        self.hold = False  # keeps transfers under way until `release`
        self._daemon = daemon
        self._rows = rows
        self._next = 1
        self._under_way: dict[int, tuple] = {}
        self._ended: list[FakeEnd] = []

    def store_many(self, blocks, hashes, parents, tokens, depths, retention, *, compare=None):
        assert len(blocks) == len(hashes) == len(parents) == len(tokens) == len(depths)
        self.retention, self.compare = retention, compare
        return self._begin(("store", blocks, hashes, parents, depths))

    def load_many(self, blocks, hashes):
        assert len(blocks) == len(hashes)
        return self._begin(("load", blocks, hashes))

    def poll(self):
        ended, self._ended = self._ended, []
        return ended

    def daemon_ended(self):
        return self.ended

    def lookup(self, hashes):
        self._daemon.answering.wait()
        self._check()
        self._daemon.lookups += 1
        tiers = [self._daemon.presence if one in self._daemon.blocks else 0 for one in hashes]
        return np.array(tiers, dtype=np.uint8)

    def close(self):
        self.closed = True

    def lose(self):
        self.lost = True
        for transfer, (_, blocks, *_) in self._under_way.items():
            failed = dict.fromkeys(range(len(blocks)), Miss.UNAVAILABLE)
            self._ended.append(FakeEnd(transfer, 0, 0, failed, unavailable()))
        self._under_way.clear()

    def release(self):
        """Ends the held transfers."""
        self.hold = False
        for transfer in list(self._under_way):
            self._copy(transfer)

    def _begin(self, what):
        self._check()
        transfer, self._next = self._next, self._next + 1
        self._under_way[transfer] = what
        if not self.hold:
            self._copy(transfer)
        return transfer

    def _copy(self, transfer):
        kind, blocks, hashes, *more = self._under_way.pop(transfer)
        end = FakeEnd(transfer, 0, 0)
        for i, (block, one) in enumerate(zip(blocks, hashes)):
            if kind == "load" and one in self._daemon.blocks:
                self._rows[block] = np.frombuffer(self._daemon.blocks[one], dtype=np.uint8)
                end.copied += 1
            elif kind == "load":
                end.failed[i] = Miss.UNKNOWN
            elif one in self._daemon.blocks:
                end.skipped += 1
            else:
                self._daemon.blocks[one] = self._rows[block].tobytes()
                self._daemon.parents[one], self._daemon.depths[one] = more[0][i], more[1][i]
                end.copied += 1
        self._ended.append(end)

    def _check(self):
        if self.lost:
            raise unavailable()


def unavailable() -> kvtier.KvtierError:
    return kvtier.UnavailableError(kvtier.Status.UNAVAILABLE, "no_daemon")
