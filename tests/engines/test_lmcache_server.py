# SPDX-License-Identifier: Apache-2.0
"""LMCache's storage manager, its server in a process of its own, and a vLLM that uses it, with
kvtierd below."""

import itertools
import json
import pathlib
import runpy
import subprocess
import sys
import time
import unittest

import torch
from lmcache_case import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    CONTEXT,
    LAYOUT,
    OBJECT_BYTES,
    START_TIMEOUT_S,
    TIMEOUT_MS,
    LmcacheCase,
    ServerCase,
    bytes_of,
    fill,
    keys_of,
    l1_name,
)
from lmcache.v1.distributed.api import GroupedObjectKeys, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.transfer_context.worker_transfer import EngineDrivenTransferContext
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

HERE = pathlib.Path(__file__).resolve().parent
VLLM, TINY_MODEL = HERE / "lmcache_vllm.py", HERE.parent / "vllm/tiny_model.py"
CHUNKS = 5
instances = itertools.count(1)


class StorageManagerTest(LmcacheCase):
    """LMCache's storage manager: its two tiers, controllers and policies, with kvtierd below."""

    def setUp(self):
        self.closed = []

    def manager(self, shm=True):
        name = l1_name() if shm else ""
        memory = L1MemoryManagerConfig(4 << 20, use_lazy=False, align_bytes=4096, shm_name=name)
        manager = StorageManager(
            StorageManagerConfig(
                L1ManagerConfig(memory),
                EvictionConfig("LRU"),
                L2AdaptersConfig([self.config()]),
            )
        )
        self.addCleanup(self.close, manager)
        ((_, self.below),) = manager.l2_adapters()
        self.wait_for_daemon(self.below)
        return manager

    def close(self, manager):
        """Once: LMCache's managers close their descriptors twice otherwise."""
        if manager not in self.closed:
            self.closed.append(manager)
            manager.close()

    def leave_memory(self, manager, keys):
        """Drops the objects from LMCache's memory."""
        self.empty(manager, lambda: manager.delete_l1_keys(keys))

    def empty(self, manager, drop):
        """Calls `drop` until LMCache's memory is empty: objects just stored are locked for a while."""
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        drop()
        while manager.get_l1_usage()[0]:
            self.assertLess(time.monotonic(), deadline, "objects stay locked")
            time.sleep(0.001)
            drop()

    def write(self, manager, keys, seed, known_bytes=0):
        reserved = manager.reserve_write(keys, LAYOUT)
        self.assertEqual(list(reserved), keys)
        fill(reserved.values(), seed)
        expected = bytes_of(reserved.values())
        manager.finish_write(keys)
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        # The store controller has been told, and the daemon has them all.
        while self.below.get_usage().total_bytes_used < known_bytes + len(keys) * OBJECT_BYTES:
            self.assertLess(time.monotonic(), deadline, "the objects were not stored")
            time.sleep(0.005)
        return expected

    def read(self, manager, keys):
        """How many of the keys the tier below had, and the bytes of the prefix that came."""
        spec = PrefetchTaskSpec([GroupedObjectKeys(keys, 0, LAYOUT)])
        handle = manager.submit_prefetch_task(spec)
        self.assertTrue(manager.wait_prefetch_status(handle, TIMEOUT_MS / 1e3))
        result = manager.query_prefetch_status(handle)
        hits = keys[: result.hit_cells[0].popcount()]
        with manager.read_prefetched_results(hits) as found:
            contents = bytes_of(found)
        manager.finish_read_prefetched(hits)
        return result.l2_hit_count, contents

    def test_what_left_lmcaches_memory_is_prefetched_from_the_daemon(self):
        for shm in (True, False):
            with self.subTest(shm=shm):
                manager, keys = self.manager(shm), keys_of(20)
                expected = self.write(manager, keys, seed=3)
                self.assertEqual(self.read(manager, keys), (0, expected))
                self.leave_memory(manager, keys)
                self.assertEqual(self.read(manager, keys), (20, expected))
                status = self.below.report_status()
                self.assertEqual(status["objects_copied_in_place"], 40 if shm else 0)

    def test_a_new_server_has_the_prefix_of_the_one_before(self):
        keys = keys_of(12)
        manager = self.manager()
        expected = self.write(manager, keys, seed=4)
        self.close(manager)
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.read(self.manager(), keys + keys_of(4)), (12, expected))

    def test_nothing_stays_locked_after_prefetches(self):
        manager, keys = self.manager(), keys_of(8)
        self.write(manager, keys, seed=5)
        self.leave_memory(manager, keys)
        # LMCache takes nothing that lies behind the first gap, and unlocks it.
        gap = keys[:3] + keys_of(1) + keys[4:]
        self.assertEqual(self.read(manager, gap)[0], 3)
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        while self.below.report_status()["locked_keys"]:
            self.assertLess(time.monotonic(), deadline, "keys stay locked")
            time.sleep(0.001)

    def test_a_server_that_loses_its_daemon_computes_and_goes_on(self):
        manager, keys = self.manager(), keys_of(6)
        expected = self.write(manager, keys, seed=6)
        self.daemon.kill()
        self.assertEqual(self.read(manager, keys), (0, expected))
        self.leave_memory(manager, keys)
        self.assertEqual(self.read(manager, keys), (0, []))
        self.wait_for_daemon(self.below, connections=0)
        self.daemon.start()
        self.wait_for_daemon(self.below)
        more = keys_of(6)
        reserved = manager.reserve_write(more, LAYOUT)
        fill(reserved.values(), 7)
        expected = bytes_of(reserved.values())
        manager.finish_write(more)
        adapter, deadline = self.adapter(), time.monotonic() + TIMEOUT_MS / 1e3
        while self.look_up(adapter, more) != [True] * 6:
            self.assertLess(time.monotonic(), deadline, "the objects were not stored")
        self.leave_memory(manager, more)
        self.assertEqual(self.read(manager, more), (6, expected))

    def test_a_cleared_server_finds_nothing_of_before_and_goes_on(self):
        manager, keys = self.manager(), keys_of(6)
        self.write(manager, keys, seed=8)
        self.empty(manager, manager.clear)
        self.assertEqual(self.read(manager, keys), (0, []))
        expected = self.write(manager, keys, seed=9, known_bytes=len(keys) * OBJECT_BYTES)
        self.leave_memory(manager, keys)
        self.assertEqual(self.read(manager, keys), (6, expected))


class Engine:
    """An engine's side of LMCache: KV caches of three layers, whose blocks are stored in the server
    and loaded from it."""

    def __init__(self, port, timeout_s=TIMEOUT_MS / 1e3):
        self._client = RequestClientFactory.create(f"tcp://127.0.0.1:{port}", context=CONTEXT)
        self._timeout_s = timeout_s
        self.caches = {f"layer.{i}": torch.zeros(2, 32, BLOCK_TOKENS, 2, 8) for i in range(3)}
        self._context = EngineDrivenTransferContext(next(instances), self._client)
        self._context.register(self.caches, "model", 1, CHUNK_TOKENS // BLOCK_TOKENS, timeout_s)

    def close(self):
        self._context.close()
        self._client.close()

    def store(self, tokens, blocks):
        return self._transfer(self._context.submit_store, tokens, blocks)

    def load(self, tokens, blocks):
        return self._transfer(self._context.submit_retrieve, tokens, blocks)

    def look_up(self, tokens):
        """How many chunks of the tokens LMCache has brought to its memory."""
        request = str(tokens)
        self._client.lookup(self._key(tokens, None), 1).result(timeout=self._timeout_s)
        while True:
            status = self._client.query_prefetch_status(request).result(timeout=self._timeout_s)
            if status is not None:
                return status

    def _transfer(self, submit, tokens, blocks):
        key, per_chunk = self._key(tokens, 0), CHUNK_TOKENS // BLOCK_TOKENS
        submitted = submit(str(tokens), key, self.caches, [blocks], None, per_chunk)
        done = submitted.result(timeout=self._timeout_s)
        self._client.end_session(str(tokens)).result(timeout=self._timeout_s)
        return done

    def _key(self, tokens, worker):
        return IPCCacheServerKey(
            "model", 1, worker, tuple(tokens), 0, len(tokens), str(tokens), num_kv_readers=1
        )


class ServerTest(ServerCase):
    def engine(self, port):
        engine = Engine(port)
        self.addCleanup(engine.close)
        return engine

    def test_an_engine_finds_after_restarts_what_it_had_computed(self):
        tokens, blocks = list(range(CHUNKS * CHUNK_TOKENS)), list(range(2 * CHUNKS))
        server, port = self.start()
        engine = self.engine(port)
        self.assertEqual(engine.look_up(tokens), 0)
        before = self.blocks_in_host()
        for cache in engine.caches.values():
            cache.normal_()
        self.assertTrue(engine.store(tokens, blocks))
        expected = {name: cache[:, blocks].clone() for name, cache in engine.caches.items()}
        self.wait_until_stored(before + CHUNKS)
        self.stop(server)
        self.restart_daemon()
        engine = self.engine(self.start()[1])
        longer = tokens + list(range(1000, 1000 + CHUNK_TOKENS))
        self.assertEqual(engine.look_up(longer), CHUNKS)
        moved = [block + 20 for block in blocks]
        self.assertEqual(engine.look_up(tokens), CHUNKS)
        self.assertTrue(engine.load(tokens, moved))
        for name, cache in engine.caches.items():
            self.assertTrue(torch.equal(cache[:, moved], expected[name]), name)


class VllmTest(ServerCase):
    """An unchanged vLLM with LMCache's own connector."""

    def run_vllm(self, port, prompt, stored=0):
        """The tokens that it answers, and how many of the prompt's came from a cache. stored: how
        many blocks the daemon has by then."""
        command = [sys.executable, VLLM, str(port), str(self.model), json.dumps(prompt)]
        with open(self.directory / "vllm.log", "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.addCleanup(process.stdout.close)
        self.addCleanup(self.stop, process)
        line = next((line for line in process.stdout if line.startswith("[[")), None)
        self.assertIsNotNone(line, (self.directory / "vllm.log").read_text()[-3000:])
        self.wait_until_stored(stored)
        process.stdin.close()
        process.wait(START_TIMEOUT_S)
        return json.loads(line)

    def test_a_new_vllm_answers_from_what_another_one_had_computed(self):
        self.model = runpy.run_path(str(TINY_MODEL))["make_model"](self.directory / "model")
        prompt = [(7 * i) % 1000 + 3 for i in range(300)]
        server, port = self.start()
        before = self.blocks_in_host()
        tokens, cached = self.run_vllm(port, prompt, before + 300 // CHUNK_TOKENS)
        self.assertEqual(cached, 0)
        self.stop(server)
        self.restart_daemon()
        self.assertEqual(self.run_vllm(self.start()[1], prompt), [tokens, 256])


if __name__ == "__main__":
    unittest.main()
