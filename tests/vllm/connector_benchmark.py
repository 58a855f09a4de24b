# SPDX-License-Identifier: Apache-2.0
"""How long the connector's hooks take for one request that is alone: of the steps in which it waits
for its first token, and of those in which it is stored.

    KVTIER_LIBRARY=.. KVTIERD=.. LD_LIBRARY_PATH=STUBS PYTHONPATH=client/python:tests/python \\
        ~/.cache/kvtier/vllm-VERSION/venv/bin/python tests/vllm/connector_benchmark.py

With a real daemon, vLLM's own block pool, and requests of 128, 625 and 2,000 blocks, which are small,
so that copying them takes no time. Not a test: the figures are printed, and depend on the build and
the machine. For each hook it prints the best time of the clock, since others may use the machine,
and the median of the processor time of its thread.
"""

import collections
import os
import statistics
import tempfile
import time
import types

import numpy as np
from harness.private_daemon import PrivateDaemon
from vllm.v1.core.block_pool import BlockPool

import kvtier
from kvtier.vllm.cache_groups import CacheGroup
from kvtier.vllm.connector_scheduler import SchedulerSide
from kvtier.vllm.connector_worker import WorkerSide
from kvtier.vllm.link import LookupLink, attach_regions
from kvtier.vllm.lookups import Lookups
from kvtier.vllm.transfers import Transfers

BLOCK_TOKENS, BLOCK_BYTES = 16, 4096
SIZES = (128, 625, 2000)
ROUNDS = 25
TIMEOUT_S = 10.0
RECORD = kvtier.ModelRecord(
    name="hooks",
    groups=[kvtier.KvGroup(layers=1, layer_bytes=BLOCK_BYTES, block_tokens=BLOCK_TOKENS)],
)


class Bench:
    """The two sides of a connector with one cache group, in one process as in vLLM with one GPU."""

    def __init__(self, socket):
        blocks = max(SIZES) + 1
        fd = os.memfd_create("hooks")
        os.ftruncate(fd, blocks * BLOCK_BYTES)
        memory = {
            "fd": fd,
            "bytes": blocks * BLOCK_BYTES,
            "blocks": blocks,
            "pieces": [(0, BLOCK_BYTES, BLOCK_BYTES)],
        }

        def attach():
            return attach_regions(socket, [RECORD], [memory])

        self.links = [
            LookupLink(attach, lambda answer: self.lookups.receive(answer)),
            LookupLink(attach, lambda answer: None),
        ]
        for link in self.links:
            link.wait_for_first_try()
        self.lookups = Lookups(
            self.links[0].ask, lambda: self.links[0].state, lambda outcome, count: None, TIMEOUT_S
        )
        self.scheduler = SchedulerSide(self.lookups, [CacheGroup(0, BLOCK_TOKENS)])
        self.pool = BlockPool(blocks, True, BLOCK_TOKENS)
        self.tables = {}
        manager = types.SimpleNamespace(
            block_pool=self.pool,
            enable_caching=True,
            get_blocks=lambda name: types.SimpleNamespace(blocks=self.tables[name]),
        )
        self.scheduler.bind(manager)
        self.worker = WorkerSide(Transfers(self.links[1]), [BLOCK_TOKENS], kvtier.Retention.MEMORY)
        self.times = collections.defaultdict(list)

    def close(self):
        for link in self.links:
            link.close()

    def timed(self, name, call, *arguments):
        used, began = time.thread_time(), time.perf_counter()
        result = call(*arguments)
        clock, processor = time.perf_counter() - began, time.thread_time() - used
        self.times[name].append((1e6 * clock, 1e6 * processor))
        return result

    def step(self, name, scheduled=None):
        """A step of the scheduler and of the worker, without the model."""
        output = types.SimpleNamespace(num_scheduled_tokens=scheduled or {})
        plan = self.timed(f"{name}: plan", self.scheduler.plan_step, output)
        self.timed(f"{name}: begin transfers", self.worker.begin, plan)
        self.timed(f"{name}: poll", self.worker.poll)
        return plan

    def request(self, name, hashes):
        tokens = len(hashes) * BLOCK_TOKENS + 1
        return types.SimpleNamespace(
            request_id=name, num_tokens=tokens, num_computed_tokens=0, block_hashes=hashes,
            skip_reading_prefix_cache=False,
        )

    def matched(self, one):
        """Asks again where the answer took longer than a request waits that is alone."""
        found = None
        while found is None:
            found = self.scheduler.matched_tokens(one, 0)
        return found

    def cold(self, hashes):
        """Its prompt's step, and the first of the answer's, with which its blocks are stored."""
        one = self.request("cold", hashes)
        found = self.timed("cold: lookup", self.matched, one)
        assert found == 0, found
        self.tables["cold"] = [self.pool.get_new_blocks(len(hashes))]
        self.step("cold", {"cold": one.num_tokens})
        one.num_computed_tokens = one.num_tokens
        self.step("store", {"cold": 1})
        self.end("store")
        self.timed("store: finished", self.scheduler.finished, one)
        self.pool.free_blocks(reversed(self.tables.pop("cold")[0]))

    def hit(self, hashes):
        one = self.request("hit", hashes)
        found = self.timed("hit: lookup", self.matched, one)
        assert found == len(hashes) * BLOCK_TOKENS, found
        table = self.tables["hit"] = [self.pool.get_new_blocks(len(hashes))]
        self.timed("hit: allocated", self.scheduler.allocated, one, table, found)
        self.step("hit")
        loaded = self.end("hit")
        assert loaded == ({"hit"}, set()), loaded
        one.num_computed_tokens = found
        self.step("hit, first token", {"hit": 1})
        self.scheduler.finished(one)
        self.pool.free_blocks(reversed(self.tables.pop("hit")[0]))

    def end(self, name):
        """Polls until the transfers have ended."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            self.worker.poll()
            stored, loaded = self.worker.take_stored(), self.worker.take_loaded()
            if stored or loaded[0]:
                self.timed(f"{name}: ended", self.scheduler.stored, stored)
                return loaded
        raise RuntimeError("a transfer does not end")


def measure(bench, blocks):
    bench.times.clear()
    for number in range(ROUNDS):
        random = np.random.default_rng(blocks * 1000 + number)
        hashes = [random.bytes(32) for _ in range(blocks)]
        bench.cold(hashes)
        bench.hit(hashes)
    return {
        name: (min(clock for clock, _ in times), statistics.median(used for _, used in times))
        for name, times in bench.times.items()
    }


def main():
    with tempfile.TemporaryDirectory(prefix="kvtier-bench-") as directory:
        settings = ["pool.device=host", "pool.bytes=64MiB", "host.bytes=1GiB", "disk.bytes=1GiB"]
        daemon = PrivateDaemon(directory, [*settings, "disk.free_floor_bytes=0B"])
        daemon.start()
        bench = Bench(daemon.socket)
        try:
            columns = [measure(bench, blocks) for blocks in SIZES]
        finally:
            bench.close()
            daemon.kill()
    print(f"{'microseconds; blocks:':34}" + "".join(f"{one:16}" for one in SIZES))
    for name in columns[0]:
        rows = ["{:.0f} ({:.0f})".format(*column[name]) for column in columns]
        print(f"{name:34}" + "".join(f"{row:>16}" for row in rows))


if __name__ == "__main__":
    main()
