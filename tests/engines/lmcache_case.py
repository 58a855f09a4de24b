# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests with LMCache, and LMCache as it is in its wheel, which is unpacked at
KVTIER_LMCACHE_DIRECTORY beside the packages that it needs and PyTorch's environment lacks."""

import contextlib
import itertools
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(os.environ["KVTIER_LMCACHE_DIRECTORY"])
sys.path[:0] = [str(ROOT / "lmcache")]
sys.path.append(str(ROOT / "more"))
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

import torch  # noqa: E402
import zmq  # noqa: E402

# Without the GPU libraries that torch is linked with, this question ends the process: their
# stand-ins (tests/vllm/gpu_stubs.py) answer it with an error that has no text.
if not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False

from harness.shared_daemon import SharedDaemonCase  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey  # noqa: E402
from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # noqa: E402
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import (  # noqa: E402
    PluginL2AdapterConfig,
)
from lmcache.v1.memory_management import (  # noqa: E402
    MemoryFormat,
    MemoryObjMetadata,
    TensorMemoryObj,
)
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory  # noqa: E402
from lmcache.v1.platform import consume_fd  # noqa: E402

import kvtier  # noqa: E402
from kvtier.lmcache import KvtierL2Adapter  # noqa: E402

SHAPE, DTYPE = torch.Size([2, 3, 16, 40]), torch.bfloat16
OBJECT_BYTES = SHAPE.numel() * 2
LAYOUT = MemoryLayoutDesc([SHAPE], [DTYPE])
LAYOUTS = {0: LAYOUT}
TIMEOUT_MS = 120_000
# A server imports what LMCache consists of; on a quiet machine that takes five seconds.
START_TIMEOUT_S = 300
SERVER = pathlib.Path(__file__).with_name("lmcache_server.py")
CONTEXT = zmq.Context.instance()
CHUNK_TOKENS, BLOCK_TOKENS = 64, 32
chunk_numbers, l1_numbers = itertools.count(), itertools.count()


def l1_name():
    """The name of a file in /dev/shm that no other test has."""
    return f"lmcache_l1_pool_kvtier_{os.getpid()}_{next(l1_numbers)}"


def keys_of(count, **more):
    """Keys that no other test has."""
    options = {"model_name": "some/model", "kv_rank": 0x01000100, **more}
    return [
        ObjectKey(chunk_hash=next(chunk_numbers).to_bytes(32, "big"), **options)
        for _ in range(count)
    ]


def memory_object(seed=None, shape=SHAPE, dtype=DTYPE):
    """One in memory of its own, of random bytes or of zeros."""
    size = shape.numel() * dtype.itemsize
    data = torch.zeros(size, dtype=torch.uint8)
    metadata = MemoryObjMetadata(
        shape, dtype, 0, size, 1, fmt=MemoryFormat.KV_2LTD, shapes=[shape], dtypes=[dtype]
    )
    one = TensorMemoryObj(data, metadata, parent_allocator=None)
    if seed is not None:
        fill([one], seed)
    return one


def fill(memory_objects, seed):
    generator = torch.Generator().manual_seed(seed)
    for one in memory_objects:
        bits = torch.randint(0, 256, (one.get_size(),), generator=generator).to(torch.uint8)
        one.raw_data[: one.get_size()].copy_(bits.view(torch.uint8))


def bytes_of(memory_objects):
    return [bytes(one.byte_array) for one in memory_objects]


def signaled(fd, timeout_ms=TIMEOUT_MS):
    """Whether a descriptor is signaled in time; takes the signal."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(timeout_ms):
        return False
    with contextlib.suppress(BlockingIOError):
        consume_fd(fd)
    return True


def bits(bitmap, count):
    return [bitmap.test(i) for i in range(count)]


class LmcacheCase(SharedDaemonCase, unittest.TestCase):
    def config(self, **params):
        params = {
            "socket": self.daemon.socket,
            "identity": "tests",
            "retry_min_ms": 2,
            "retry_max_ms": 20,
            **params,
        }
        return PluginL2AdapterConfig("kvtier.lmcache", "KvtierL2Adapter", params)

    def adapter(self, connected=True, description=None, **params):
        """One that LMCache's factory made."""
        adapter = create_l2_adapter(self.config(**params), l1_memory_desc=description)
        self.assertIsInstance(adapter, KvtierL2Adapter)
        self.addCleanup(adapter.close)
        if connected:
            self.wait_for_daemon(adapter)
        return adapter

    def wait_for_daemon(self, adapter, connections=3):
        """Until the adapter has so many connections: all, or none after the daemon was lost."""
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        while adapter.report_status()["connections"] != connections:
            self.assertLess(time.monotonic(), deadline, f"there never were {connections}")
            time.sleep(0.001)

    def result(self, fd, take):
        """Returns the result of `take` when the descriptor has told that it is there."""
        while True:
            self.assertTrue(signaled(fd), "a task was not completed")
            if (taken := take()) not in (None, {}):
                return taken

    def store(self, adapter, keys, memory_objects):
        task = adapter.submit_store_task(keys, memory_objects)
        completed = self.result(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
        self.assertEqual(list(completed), [task])
        return completed[task]

    def look_up(self, adapter, keys, layouts=LAYOUTS):
        task = adapter.submit_lookup_and_lock_task(keys, layouts)
        fd = adapter.get_lookup_and_lock_event_fd()
        found = self.result(fd, lambda: adapter.query_lookup_and_lock_result(task))
        self.assertIsNone(adapter.query_lookup_and_lock_result(task))
        return bits(found, len(keys))

    def load(self, adapter, keys, memory_objects):
        task = adapter.submit_load_task(keys, memory_objects)
        fd = adapter.get_load_event_fd()
        came = self.result(fd, lambda: adapter.query_load_result(task))
        self.assertIsNone(adapter.query_load_result(task))
        return bits(came, len(keys))

    def stored(self, adapter, count, seed=1, **more):
        """Keys of objects that were just stored, and their bytes."""
        keys, stored = keys_of(count, **more), [memory_object(seed + i) for i in range(count)]
        self.assertTrue(self.store(adapter, keys, stored).is_successful())
        return keys, bytes_of(stored)


class ServerCase(LmcacheCase):
    """With LMCache's server as users start it, on the CPU."""

    def start(self):
        """A server that serves, and its port."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        adapter = {
            "type": "plugin",
            "module_path": "kvtier.lmcache",
            "class_name": "KvtierL2Adapter",
            "adapter_params": {"socket": self.daemon.socket, "identity": "tests"},
        }
        flags = {
            "host": "127.0.0.1",
            "port": port,
            "chunk-size": CHUNK_TOKENS,
            "l1-size-gb": 0.03,
            "eviction-policy": "LRU",
            "supported-transfer-mode": "engine_driven",
            "shm-name": l1_name(),
            "l2-adapter": json.dumps(adapter),
        }
        command = [sys.executable, SERVER, "--no-l1-use-lazy", "--disable-observability"]
        for name, value in flags.items():
            command += [f"--{name}", str(value)]
        log = open(self.directory / "lmcache.log", "ab")
        self.addCleanup(log.close)
        server = subprocess.Popen(command, stdout=log, stderr=log)
        self.addCleanup(self.stop, server)
        self.addCleanup(pathlib.Path("/dev/shm", flags["shm-name"]).unlink, missing_ok=True)
        client = RequestClientFactory.create(f"tcp://127.0.0.1:{port}", context=CONTEXT)
        self.addCleanup(client.close)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.serves(client):
            self.assertIsNone(server.poll(), "the server has ended")
            self.assertLess(time.monotonic(), deadline, "the server does not answer")
        return server, port

    def serves(self, client):
        try:
            return client.get_chunk_size().result(timeout=1) == CHUNK_TOKENS
        except TimeoutError:
            return False

    def stop(self, process):
        process.kill()
        process.wait()

    def restart_daemon(self):
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()

    def wait_until_stored(self, count):
        """Until the daemon has so many blocks in host memory: LMCache stores by and by."""
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        while self.blocks_in_host() < count:
            self.assertLess(time.monotonic(), deadline, "the server stored nothing")
            time.sleep(0.005)

    def blocks_in_host(self):
        return kvtier.admin({"op": "status"}, self.daemon.admin_socket)["tiers"]["host"]["blocks"]
