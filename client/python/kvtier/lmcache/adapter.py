# SPDX-License-Identifier: Apache-2.0
"""The L2 adapter that LMCache's server loads by name.

LMCache's threads only hand in tasks. Three threads of the adapter do them, one each for stores,
loads, and lookups with their locks, each with a connection of its own; completions are told by three
event descriptors. A task that fails, or finds no daemon, is a miss or a failed store.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from .._facts import engine_of, short
from .._options import COMMON, Number, Option, read_options, retry_pauses
from .model_weights import FirstEpoch, UnnamedEpoch, WeightEpoch, tell_of_clearing
from .objects import Bytes, ObjectName, ObjectStore, SharedFile, logger, name_of

_OPTIONS: dict[str, Option] = {
    **COMMON,
    "lock_ms": Number(60_000, 1, 3_600_000, whole=True),
    "staging_bytes": Number(64 << 20, 1, 1 << 40, whole=True),
}


class _Completions:
    """Results of tasks until LMCache takes them, and the descriptor that says there are some."""

    def __init__(self) -> None:
        self.notifier = create_event_notifier()
        self._lock = threading.Lock()
        self._results: dict[int, Any] = {}

    def put(self, task: int, result: Any) -> None:
        with self._lock:
            self._results[task] = result
        self.notifier.notify()

    def take(self, task: int) -> Any:
        with self._lock:
            return self._results.pop(task, None)

    def take_all(self) -> dict[int, Any]:
        with self._lock:
            results, self._results = self._results, {}
        return results


class _Worker:
    """A thread that does its tasks, one after the other."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def close(self) -> None:
        """Returns when all that was given before is done."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


class KvtierL2Adapter(L2AdapterInterface):
    """Options, in "adapter_params": those of _OPTIONS; docs/engines/LMCACHE.md has a table.

    Any thread may call; `close` is called once, last. Raises ValueError for options that cannot
    be, and nothing later on.
    """

    def __init__(self, options: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__(max_capacity_bytes=0)  # the daemon evicts by itself
        given = read_options("KvtierL2Adapter", _OPTIONS, options)
        self._lock_ms: int = given["lock_ms"]
        self._l1_file = SharedFile.find(l1_memory_desc)
        where = "in place" if self._l1_file else "through other memory; --shm-name saves that"
        logger.info("kvtier: objects are copied %s", where)
        identity = {"engine": engine_of("lmcache")}
        if given["identity"]:
            identity["label"] = short(given["identity"])

        # Tasks belong to the epoch in which they were submitted.
        self._epoch: WeightEpoch = FirstEpoch(given["identity"], given["weights_digest"])
        tell_of_clearing(_begin_epoch)

        def new_store(staging_bytes: int, shared: SharedFile | None) -> ObjectStore:
            pauses = retry_pauses(given)
            return ObjectStore(given["socket"], identity, staging_bytes, shared, pauses)

        self._tasks = itertools.count(1)
        self._stored = new_store(given["staging_bytes"], self._l1_file)
        self._loaded = new_store(given["staging_bytes"], self._l1_file)
        self._found = new_store(1, None)  # nothing is copied through it
        names = ("kvtier-store", "kvtier-load", "kvtier-lookup")
        self._storer, self._loader, self._finder = map(_Worker, names)
        self._stores, self._loads, self._lookups = (_Completions() for _ in range(3))
        self._has_warned = False  # of hashes
        # Used by the thread that looks up: how often each key is locked, and under which name.
        self._locks: dict[Any, tuple[int, ObjectName]] = {}
        # How large a group's objects are, where a lookup does not say it.
        self._sizes: dict[tuple[str, int, int], int] = {}

    def get_store_event_fd(self) -> int:
        return int(self._stores.notifier.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookups.notifier.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._loads.notifier.fileno())

    def begin_epoch(self) -> None:
        """The engines may have other weights from now on. The objects of before stay in the daemon, and
        are not found; loads under way fail."""
        self._epoch = UnnamedEpoch()

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        failed, epoch = L2StoreResult(False, 0), self._epoch
        return self._submit(
            self._storer, self._stores, keys, lambda: self._store(keys, objects, epoch), failed
        )

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._stores.take_all()

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        epoch = self._epoch
        return self._submit(
            self._finder,
            self._lookups,
            keys,
            lambda: self._look_up(keys, group_layout_descs or {}, epoch),
            Bitmap(len(keys)),
        )

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        self._finder.submit(lambda: self._guarded(lambda: self._unlock(keys), None))

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        failed, epoch = Bitmap(len(keys)), self._epoch
        return self._submit(
            self._loader, self._loads, keys, lambda: self._load(keys, objects, epoch), failed
        )

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.take(task_id)

    def delete(self, keys: list[Any]) -> None:
        """LMCache's objects stay in the daemon, which evicts them; `kvtierctl evict` removes
        them."""
        logger.warning("kvtier: %d objects are left to the daemon to evict", len(keys))

    def report_status(self) -> dict[str, Any]:
        return {
            # Without a daemon everything is a miss, and the server works.
            "is_healthy": True,
            "type": "KvtierL2Adapter",
            "connections": sum(store.connected for store in self._all_stores()),  # of three
            "objects_copied_in_place": sum(one.copied_in_place for one in self._all_stores()),
            "objects_copied_twice": sum(one.copied_twice for one in self._all_stores()),
            "locked_keys": len(self._locks),
        }

    def close(self) -> None:
        """Finishes all submitted tasks, and ends once nothing touches LMCache's memory any more."""
        for worker in (self._storer, self._loader, self._finder):
            worker.close()
        for store in self._all_stores():
            store.close()
        for completions in (self._stores, self._lookups, self._loads):
            completions.notifier.close()
        if self._l1_file is not None:
            self._l1_file.close()

    def _all_stores(self) -> tuple[ObjectStore, ...]:
        return self._stored, self._loaded, self._found

    # ---------------------------------------------------------------- on the three threads

    def _submit(
        self,
        worker: _Worker,
        completions: _Completions,
        keys: list[Any],
        work: Callable[[], Any],
        failed: Any,
    ) -> int:
        task = next(self._tasks)
        is_safe = not any(_can_be_forged(key) for key in keys)
        if not (is_safe or self._has_warned):
            logger.warning("kvtier: nothing is cached by hashes that can be forged: use --hash-algorithm blake3")
            self._has_warned = True
        worker.submit(
            lambda: completions.put(task, self._guarded(work, failed) if is_safe else failed)
        )
        return task

    def _guarded(self, work: Callable[[], Any], failed: Any) -> Any:
        try:
            return work()
        except Exception:
            # An exception would end the thread, and LMCache would wait for all later tasks.
            logger.exception("kvtier: a task failed")
            return failed

    def _store(self, keys: list[Any], objects: list[Any], epoch: WeightEpoch) -> Any:
        contents = [_bytes_of(one) for one in objects]
        names = [self._name(key, content.size, epoch) for key, content in zip(keys, contents)]
        outcomes = self._stored.store(names, contents)
        new = [
            (key, name.object_bytes)
            for key, name, (_, is_new) in zip(keys, names, outcomes)
            if is_new
        ]
        if new:
            self._notify_keys_stored([key for key, _ in new], [size for _, size in new])
        complete = len(keys) == len(objects) and all(there for there, _ in outcomes)
        return L2StoreResult(complete, sum(size for _, size in new))

    def _look_up(self, keys: list[Any], layouts: Any, epoch: WeightEpoch) -> Any:
        bitmap = Bitmap(len(keys))
        sized = [(i, key, self._size(key, layouts)) for i, key in enumerate(keys)]
        known = [(i, key, _name_of(key, size, epoch)) for i, key, size in sized if size]
        found = self._found.look_up([name for _, _, name in known], self._lock_ms)
        for (i, key, name), is_there in zip(known, found):
            if is_there:
                bitmap.set(i)
                self._locks[key] = (self._locks.get(key, (0, name))[0] + 1, name)
        return bitmap

    def _unlock(self, keys: list[Any]) -> None:
        free = []
        for key in keys:
            held = self._locks.pop(key, None)
            if held is None:
                continue
            count, name = held
            if count > 1:
                self._locks[key] = (count - 1, name)
            else:
                free.append(name)
        self._found.unlock(free)

    def _load(self, keys: list[Any], objects: list[Any], epoch: WeightEpoch) -> Any:
        bitmap = Bitmap(len(keys))
        contents = [_bytes_of(one) for one in objects]
        names = [self._name(key, content.size, epoch) for key, content in zip(keys, contents)]
        came = [i for i, one in enumerate(self._loaded.load(names, contents)) if one]
        if epoch is not self._epoch:
            return bitmap
        bitmap.batched_set(came)
        if came:
            self._notify_keys_accessed([keys[i] for i in came])
        return bitmap

    def _name(self, key: Any, size: int, epoch: WeightEpoch) -> ObjectName:
        self._sizes[(key.model_name, key.kv_rank, key.object_group_id)] = size
        return _name_of(key, size, epoch)

    def _size(self, key: Any, layouts: Any) -> int:
        """The size of an object that was not seen yet; 0 if that is not known. A stored object says
        more than the layout: a serde changes sizes."""
        size = self._sizes.get((key.model_name, key.kv_rank, key.object_group_id), 0)
        layout = layouts.get(key.object_group_id)
        if size == 0 and layout is not None:
            size = sum(s.numel() * d.itemsize for s, d in zip(layout.shapes, layout.dtypes))
        return size


def _begin_epoch(adapter: Any) -> None:
    if isinstance(adapter, KvtierL2Adapter):
        adapter.begin_epoch()


def _can_be_forged(key: Any) -> bool:
    """Whether other tokens with the same hash can be found. LMCache's own check has hashes of 4 bytes."""
    return 4 < len(key.chunk_hash) < 32


def _name_of(key: Any, size: int, epoch: WeightEpoch) -> ObjectName:
    return name_of(key, size, epoch.weights_of(key.model_name))


def _bytes_of(memory_object: Any) -> Bytes:
    """The object in place. Raises ValueError for one that has no bytes."""
    content = np.frombuffer(memory_object.byte_array, np.uint8)
    if content.size == 0:
        raise ValueError("an object without bytes")
    return content
