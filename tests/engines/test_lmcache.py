# SPDX-License-Identifier: Apache-2.0
"""LMCache's own adapter factory, memory objects and memory manager, and a real kvtierd."""

import asyncio
import contextlib
import ctypes
import dataclasses
import io
import json
import mmap
import os
import pathlib
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

import numpy as np
import torch
from lmcache_case import (
    DTYPE,
    LAYOUT,
    LAYOUTS,
    OBJECT_BYTES,
    SHAPE,
    TIMEOUT_MS,
    LmcacheCase,
    bits,
    bytes_of,
    fill,
    keys_of,
    l1_name,
    memory_object,
    signaled,
)
from lmcache.v1.check.check_mode_test_l2_adapter import run_test_mode
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import L1MemoryManagerConfig
from lmcache.v1.distributed.internal_api import L2AdapterListener
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.memory_manager.l1_memory_manager import L1MemoryManager

import kvtier
from kvtier import _settling
from kvtier.lmcache import KvtierL2Adapter, objects
from kvtier.lmcache.model_weights import FirstEpoch


class ObjectThatWaits:
    """A memory object whose bytes a task gets once an event is set."""

    def __init__(self, event):
        self._event, self._object = event, memory_object()

    @property
    def byte_array(self):
        self._event.wait(TIMEOUT_MS / 1e3)
        return self._object.byte_array


class TasksTest(LmcacheCase):
    def test_the_three_descriptors_differ_and_are_silent_at_first(self):
        adapter = self.adapter()
        fds = [
            adapter.get_store_event_fd(),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.get_load_event_fd(),
        ]
        self.assertEqual(len(set(fds)), 3)
        self.assertFalse(any(signaled(fd, 0) for fd in fds))

    def test_what_is_stored_is_found_and_loaded(self):
        adapter = self.adapter()
        for count in (1, 12):
            keys, expected = self.stored(adapter, count)
            self.assertEqual(self.look_up(adapter, keys), [True] * count)
            loaded = [memory_object() for _ in keys]
            self.assertEqual(self.load(adapter, keys, loaded), [True] * count)
            self.assertEqual(bytes_of(loaded), expected)
            adapter.submit_unlock(keys)

    def test_a_store_says_how_many_bytes_it_wrote(self):
        adapter = self.adapter()
        keys, stored = keys_of(3), [memory_object(i) for i in range(3)]
        self.assertEqual(self.store(adapter, keys, stored).bytes_transferred(), 3 * OBJECT_BYTES)
        again = self.store(adapter, keys + keys_of(1), [*stored, memory_object(9)])
        self.assertTrue(again.is_successful())
        self.assertEqual(again.bytes_transferred(), OBJECT_BYTES)

    def test_the_first_object_under_a_key_stays(self):
        adapter = self.adapter()
        keys, expected = self.stored(adapter, 1)
        self.store(adapter, keys, [memory_object(77)])
        loaded = [memory_object()]
        self.assertEqual(self.load(adapter, keys, loaded), [True])
        self.assertEqual(bytes_of(loaded), expected)

    def test_each_missing_object_is_missing_alone(self):
        adapter = self.adapter()
        keys, expected = self.stored(adapter, 3)
        asked = [keys[0], keys_of(1)[0], keys[2], keys_of(1)[0], keys[1]]
        self.assertEqual(self.look_up(adapter, asked), [True, False, True, False, True])
        loaded = [memory_object() for _ in asked]
        self.assertEqual(self.load(adapter, asked, loaded), [True, False, True, False, True])
        found = bytes_of(loaded)
        self.assertEqual([found[0], found[4], found[2]], expected)

    def test_nothing_is_asked_for(self):
        adapter = self.adapter()
        self.assertTrue(self.store(adapter, [], []).is_successful())
        self.assertEqual(self.look_up(adapter, []), [])
        self.assertEqual(self.load(adapter, [], []), [])

    def test_results_come_once_and_to_their_own_task(self):
        adapter = self.adapter()
        keys, _ = self.stored(adapter, 2)
        tasks = [adapter.submit_lookup_and_lock_task([key], LAYOUTS) for key in keys]
        self.assertEqual(len(set(tasks)), 2)
        self.assertIsNone(adapter.query_lookup_and_lock_result(max(tasks) + 1000))
        fd = adapter.get_lookup_and_lock_event_fd()
        for task in tasks:
            found = adapter.query_lookup_and_lock_result(task)
            while found is None:
                self.assertTrue(signaled(fd))
                found = adapter.query_lookup_and_lock_result(task)
            self.assertIsNone(adapter.query_lookup_and_lock_result(task))

    def test_many_threads_submit_at_once(self):
        adapter = self.adapter()
        keys = [keys_of(4) for _ in range(8)]
        tasks = []

        def submit(number):
            stored = [memory_object(number * 10 + i) for i in range(4)]
            tasks.append(adapter.submit_store_task(keys[number], stored))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        completed = {}
        while len(completed) < 8:
            completed.update(
                self.result(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
            )
        self.assertEqual(sorted(completed), sorted(tasks))
        self.assertTrue(all(one.is_successful() for one in completed.values()))
        for number in range(8):
            loaded = [memory_object() for _ in range(4)]
            self.assertEqual(self.load(adapter, keys[number], loaded), [True] * 4)
            expected = [memory_object(number * 10 + i) for i in range(4)]
            self.assertEqual(bytes_of(loaded), bytes_of(expected))

    def test_more_keys_than_one_call_of_the_daemon_takes(self):
        """LMCache asks for all of a prompt at once: chunks, times ranks, times groups."""
        adapter = self.adapter()
        (first, last), _ = self.stored(adapter, 2)
        keys = [first, *keys_of(16_384), last]
        found = self.look_up(adapter, keys)
        self.assertEqual([i for i, one in enumerate(found) if one], [0, 16_385])
        adapter.submit_unlock(keys)
        self.look_up(adapter, keys_of(1))
        self.assertEqual(adapter.report_status()["locked_keys"], 0)
        self.assertEqual(self.load(adapter, keys[-1:], [memory_object()]), [True])

    def test_more_objects_than_the_memory_that_they_go_through_holds(self):
        adapter = self.adapter(staging_bytes=3 * OBJECT_BYTES)
        keys, expected = self.stored(adapter, 8)
        loaded = [memory_object() for _ in keys]
        self.assertEqual(self.load(adapter, keys, loaded), [True] * 8)
        self.assertEqual(bytes_of(loaded), expected)

    def test_listeners_hear_what_is_new_and_what_was_loaded(self):
        adapter, heard = self.adapter(), []
        listener = mock.Mock(spec=L2AdapterListener)
        listener.on_l2_keys_stored.side_effect = lambda keys, sizes: heard.append((keys, sizes))
        listener.on_l2_keys_accessed.side_effect = heard.append
        adapter.register_listener(listener)
        adapter.set_backend_identity("kvtier")
        keys, _ = self.stored(adapter, 2)
        self.store(adapter, keys, [memory_object(1), memory_object(2)])
        self.load(adapter, [keys[1], *keys_of(1)], [memory_object(), memory_object()])
        self.assertEqual(heard, [(keys, [OBJECT_BYTES] * 2), [keys[1]]])
        self.assertEqual(adapter.get_usage().total_bytes_used, 2 * OBJECT_BYTES)
        self.assertFalse(adapter.supports_global_eviction)

    def test_what_cannot_be_read_fails_and_later_tasks_do_not(self):
        adapter = self.adapter()
        with self.assertLogs("lmcache.kvtier", "ERROR"):
            self.assertFalse(self.store(adapter, keys_of(1), [object()]).is_successful())
        with self.assertLogs("lmcache.kvtier", "ERROR"):
            self.assertEqual(self.load(adapter, keys_of(1), [object()]), [False])
        self.stored(adapter, 1)

    def test_closing_finishes_what_was_submitted(self):
        adapter = create_l2_adapter(self.config())
        self.wait_for_daemon(adapter)
        keys, stored = keys_of(3), [memory_object(i) for i in range(3)]
        adapter.submit_store_task(keys, stored)
        adapter.close()
        self.assertEqual(self.look_up(self.adapter(), keys), [True] * 3)

    def test_wrong_options_are_refused_at_the_start(self):
        for wrong in ({"sockett": "x"}, {"lock_ms": 0}, {"weights_digest": 1}):
            with self.subTest(**wrong), self.assertRaises(ValueError):
                self.adapter(connected=False, **wrong)

    def test_lmcaches_own_check_passes(self):
        spec = {"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "KvtierL2Adapter"}
        spec["adapter_params"] = {"socket": self.daemon.socket, "retry_max_ms": 20}
        connect = KvtierL2Adapter.__init__

        def connected(adapter, *arguments, **more):
            connect(adapter, *arguments, **more)
            self.wait_for_daemon(adapter)

        with mock.patch.object(KvtierL2Adapter, "__init__", connected):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                asyncio.run(run_test_mode("m", l2_adapter=[json.dumps(spec)], num_keys=6))
        self.assertIn("Validation (content): 6/6", printed.getvalue())
        self.assertIn("Validation: 6/6 correctly absent", printed.getvalue())
        self.assertNotIn("Fail", printed.getvalue())


class IdentityTest(LmcacheCase):
    def test_objects_whose_hashes_can_be_forged_are_not_cached(self):
        """As of `--hash-algorithm builtin`, of which the log tells once."""
        adapter = self.adapter()
        for size in (8, 16):
            keys = [dataclasses.replace(key, chunk_hash=key.chunk_hash[-size:]) for key in keys_of(2)]
            with self.assertLogs("lmcache.kvtier", "WARNING") if size == 8 else contextlib.nullcontext():
                self.assertFalse(self.store(adapter, keys, [memory_object(1)] * 2).is_successful())
            self.assertEqual(self.look_up(adapter, keys), [False] * 2)
            self.assertEqual(self.load(adapter, keys, [memory_object()] * 2), [False] * 2)

    def test_objects_of_another_key_or_server_are_never_served(self):
        adapter = self.adapter()
        (key,), _ = self.stored(adapter, 1)
        fields = {
            "chunk_hash": key.chunk_hash,
            "model_name": key.model_name,
            "kv_rank": key.kv_rank,
            "object_group_id": 0,
            "cache_salt": "",
        }
        others = {"model_name": "other", "kv_rank": 1, "object_group_id": 1, "cache_salt": "a"}
        for name, value in others.items():
            other = ObjectKey(**{**fields, name: value})
            self.assertEqual(self.look_up(adapter, [other], {0: LAYOUT, 1: LAYOUT}), [False], name)
            self.assertEqual(self.load(adapter, [other], [memory_object()]), [False], name)
        self.assertEqual(self.look_up(self.adapter(identity="blue"), [key]), [False])
        self.assertEqual(self.look_up(self.adapter(), [key]), [True])

    def test_objects_of_weights_that_were_replaced_are_never_served(self):
        with tempfile.TemporaryDirectory() as folder:
            weights = pathlib.Path(folder) / "model.safetensors"
            weights.write_bytes(b"one")
            keys, _ = self.stored(self.adapter(), 1, model_name=folder)
            self.assertEqual(self.look_up(self.adapter(), keys), [True])
            weights.write_bytes(b"another")
            self.assertEqual(self.look_up(self.adapter(), keys), [False])

    def test_weights_that_differ_in_one_byte_are_told_apart_when_all_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            weights = pathlib.Path(folder) / "model.safetensors"
            content = bytearray(8 << 20)
            weights.write_bytes(content)
            adapters = [self.adapter(weights_digest=one) for one in ("sample", "whole")]
            keys = [self.stored(one, 1, model_name=folder)[0] for one in adapters]
            content[5_000_001] ^= 1
            weights.write_bytes(content)
            self.assertEqual(self.look_up(self.adapter(), keys[0]), [True])
            self.assertEqual(self.look_up(self.adapter(weights_digest="whole"), keys[1]), [False])

    def test_files_that_are_replaced_below_a_running_server_change_nothing_for_it(self):
        with tempfile.TemporaryDirectory() as folder:
            weights = pathlib.Path(folder) / "model.safetensors"
            weights.write_bytes(b"one")
            adapter = self.adapter()
            keys, _ = self.stored(adapter, 1, model_name=folder)
            weights.write_bytes(b"another")
            self.daemon.kill()
            self.wait_for_daemon(adapter, connections=0)
            self.daemon.start()
            self.wait_for_daemon(adapter)
            more, _ = self.stored(adapter, 1, model_name=folder)
            self.assertEqual(self.look_up(adapter, more), [True])
            self.assertEqual(self.look_up(self.adapter(), keys + more), [False, False])

    def test_tasks_that_were_submitted_before_an_epoch_began_are_of_the_one_before(self):
        adapter, keys = self.adapter(), keys_of(2)
        self.store(adapter, keys[:1], [memory_object(1)])
        store = adapter.submit_store_task(keys[1:], [memory_object(2)])
        look_up = adapter.submit_lookup_and_lock_task(keys[:1], LAYOUTS)
        begun = threading.Event()
        load = adapter.submit_load_task(keys[:1], [ObjectThatWaits(begun)])
        adapter.begin_epoch()
        begun.set()
        fd = adapter.get_store_event_fd()
        self.assertTrue(self.result(fd, adapter.pop_completed_store_tasks)[store].is_successful())
        fd = adapter.get_lookup_and_lock_event_fd()
        self.result(fd, lambda: adapter.query_lookup_and_lock_result(look_up))
        # LMCache would give what comes now to engines with the new weights.
        fd = adapter.get_load_event_fd()
        loaded = self.result(fd, lambda: adapter.query_load_result(load))
        self.assertEqual(bits(loaded, 1), [False])
        self.assertEqual(self.look_up(adapter, keys), [False, False])
        self.assertEqual(self.look_up(self.adapter(), keys), [True, True])

    def test_a_model_that_nobody_names_the_weights_of_is_found_by_one_server(self):
        with self.assertLogs("lmcache.kvtier", "WARNING"):
            adapter = self.adapter(identity="")
            keys, _ = self.stored(adapter, 1)
            self.assertEqual(self.look_up(adapter, keys), [True])
            self.assertEqual(self.load(adapter, keys, [memory_object()]), [True])
            self.assertEqual(self.look_up(self.adapter(identity=""), keys), [False])
        self.assertEqual(self.look_up(self.adapter(), keys), [False])

    def test_files_that_engines_may_have_elsewhere_name_no_weights(self):
        """LMCache's keys tell neither an engine's cache of the hub, its revision nor its working directory."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, HF_HUB_CACHE=folder):
            pathlib.Path(folder, "models--org--model/snapshots", "a" * 40).mkdir(parents=True)
            pathlib.Path(folder, "models--org--model/refs").mkdir()
            pathlib.Path(folder, "models--org--model/refs/main").write_text("a" * 40)
            pathlib.Path(folder, "model.safetensors").write_bytes(b"one")
            self.assertRegex(FirstEpoch("").weights_of(folder), "^files:")
            for model in ("org/model", os.path.relpath(folder)):
                with self.assertLogs("lmcache.kvtier", "WARNING"):
                    names = {FirstEpoch("").weights_of(model) for _ in range(2)}
                self.assertEqual({name.split(":")[0] for name in names}, {"unnamed"})
                self.assertEqual(len(names), 2)
                self.assertEqual(FirstEpoch("mine").weights_of(model), "named:mine")

    def test_an_object_of_another_size_is_never_served(self):
        adapter = self.adapter()
        keys, _ = self.stored(adapter, 1)
        larger = torch.Size([2, 4, 16, 40])
        again = self.adapter()
        layouts = {0: MemoryLayoutDesc([larger], [DTYPE])}
        self.assertEqual(self.look_up(again, keys, layouts), [False])
        self.assertEqual(self.load(again, keys, [memory_object(shape=larger)]), [False])

    def test_objects_of_several_sizes_in_one_task(self):
        adapter = self.adapter()
        shapes = [SHAPE, torch.Size([1, 1, 7, 3]), torch.Size([2, 20, 64, 64])]
        groups = [0, 1, 2, 1, 0]
        keys = [keys_of(1, object_group_id=group)[0] for group in groups]
        stored = [memory_object(30 + i, shapes[group]) for i, group in enumerate(groups)]
        self.assertTrue(self.store(adapter, keys, stored).is_successful())
        again = self.adapter()
        layouts = {i: MemoryLayoutDesc([shape], [DTYPE]) for i, shape in enumerate(shapes)}
        self.assertEqual(self.look_up(again, keys, layouts), [True] * 5)
        loaded = [memory_object(shape=shapes[group]) for group in groups]
        self.assertEqual(self.load(again, keys, loaded), [True] * 5)
        self.assertEqual(bytes_of(loaded), bytes_of(stored))


class LockTest(LmcacheCase):
    """Locks are the daemon's pins, which `evict` respects."""

    def pinned(self, keys):
        names = [objects.name_of(key, OBJECT_BYTES, "") for key in keys]
        self.daemon.settle()
        request = {"op": "evict", "hashes": [one.hash.hex() for one in names]}
        return kvtier.admin(request, self.daemon.admin_socket)["pinned"]

    def test_what_was_found_cannot_be_evicted_until_it_is_unlocked(self):
        adapter = self.adapter()
        keys, expected = self.stored(adapter, 3)
        self.assertEqual(self.look_up(adapter, keys), [True] * 3)
        self.assertEqual(self.pinned(keys), 3)
        loaded = [memory_object() for _ in keys]
        self.assertEqual(self.load(adapter, keys, loaded), [True] * 3)
        self.assertEqual(bytes_of(loaded), expected)
        adapter.submit_unlock(keys)
        # Tasks of one kind are done in their order.
        self.assertEqual(self.look_up(adapter, keys_of(1)), [False])
        self.assertEqual(self.pinned(keys), 0)
        self.assertEqual(self.look_up(adapter, keys), [False] * 3)

    def test_a_key_that_was_found_twice_is_unlocked_twice(self):
        adapter = self.adapter()
        keys, _ = self.stored(adapter, 1)
        for _ in range(2):
            self.look_up(adapter, keys)
        adapter.submit_unlock(keys)
        self.look_up(adapter, keys_of(1))
        self.assertEqual(self.pinned(keys), 1)
        adapter.submit_unlock(keys)
        self.look_up(adapter, keys_of(1))
        self.assertEqual(adapter.report_status()["locked_keys"], 0)
        self.assertEqual(self.pinned(keys), 0)

    def test_an_object_that_two_servers_found_stays_until_both_have_unlocked_it(self):
        adapter, other = self.adapter(), self.adapter()
        keys, _ = self.stored(adapter, 2)
        for one in (adapter, other):
            self.assertEqual(self.look_up(one, keys), [True] * 2)
        for one, left in ((other, 2), (adapter, 0)):
            one.submit_unlock(keys)
            self.look_up(one, keys_of(1))
            self.assertEqual(self.pinned(keys), left)

    def test_unlocking_what_is_not_locked_does_nothing(self):
        adapter = self.adapter()
        keys, _ = self.stored(adapter, 1)
        adapter.submit_unlock(keys + keys_of(2))
        self.assertEqual(self.look_up(adapter, keys), [True])

    def test_a_lock_ends_by_itself_when_its_server_is_gone(self):
        adapter = self.adapter(lock_ms=1)
        keys, _ = self.stored(adapter, 1)
        self.look_up(adapter, keys)
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        while self.pinned(keys):
            self.assertLess(time.monotonic(), deadline, "the lock does not end")


class InPlaceTest(LmcacheCase):
    """With LMCache's own memory manager over a file in /dev/shm."""

    def memory(self, shm=True, bytes=2 << 20):
        name = l1_name() if shm else ""
        manager = L1MemoryManager(
            L1MemoryManagerConfig(bytes, use_lazy=False, align_bytes=4096, shm_name=name)
        )
        self.addCleanup(manager.close)
        return manager

    def allocate(self, manager, count, layout=LAYOUT):
        _, made = manager.allocate(layout, count)
        self.assertEqual(len(made), count)
        # Freed before the manager is closed, and after the adapter.
        self.addCleanup(manager.free, made)
        return made

    def copied(self, adapter):
        status = adapter.report_status()
        return status["objects_copied_in_place"], status["objects_copied_twice"]

    def round_trip(self, adapter, manager, count, layout=LAYOUT):
        keys, stored = keys_of(count), self.allocate(manager, count, layout)
        fill(stored, 5)
        self.assertTrue(self.store(adapter, keys, stored).is_successful())
        self.assertEqual(self.look_up(adapter, keys, {0: layout}), [True] * count)
        loaded = self.allocate(manager, count, layout)
        self.assertEqual(self.load(adapter, keys, loaded), [True] * count)
        self.assertEqual(bytes_of(loaded), bytes_of(stored))
        adapter.submit_unlock(keys)

    def test_objects_in_shared_memory_are_copied_in_place(self):
        manager = self.memory()
        adapter = self.adapter(description=manager.get_l1_memory_desc())
        self.round_trip(adapter, manager, 6)
        self.assertEqual(self.copied(adapter), (12, 0))

    def test_memory_is_not_written_once_a_daemon_that_hangs_was_given_up(self):
        manager = self.memory()
        adapter = self.adapter(description=manager.get_l1_memory_desc())
        self.round_trip(adapter, manager, 6)
        keys, given = keys_of(6), self.allocate(manager, 6)
        self.assertTrue(self.store(adapter, keys, given).is_successful())
        self.daemon.pause()
        self.addCleanup(self.daemon.resume)
        with mock.patch.object(_settling, "LONGEST_S", 0):
            self.assertEqual(self.load(adapter, keys, given), [False] * 6)
        fill(given, 7)
        left = bytes_of(given)
        self.daemon.resume()
        self.wait_for_daemon(adapter)
        self.assertEqual(bytes_of(given), left)
        self.assertEqual(self.load(adapter, keys, given), [True] * 6)

    def test_objects_between_others_of_another_size_are_copied_all_the_same(self):
        manager = self.memory()
        adapter = self.adapter(description=manager.get_l1_memory_desc())
        small = MemoryLayoutDesc([torch.Size([2, 1, 16, 8])], [DTYPE])
        self.allocate(manager, 1, small)
        self.round_trip(adapter, manager, 6)
        in_place, twice = self.copied(adapter)
        self.assertEqual(in_place + twice, 12)
        self.assertGreater(twice, 0)

    def test_objects_in_other_memory_go_through_the_adapters(self):
        manager = self.memory(shm=False)
        adapter = self.adapter(description=manager.get_l1_memory_desc())
        self.round_trip(adapter, manager, 6)
        self.assertEqual(self.copied(adapter), (0, 12))

    def test_a_file_that_was_replaced_is_not_taken_for_the_memory(self):
        manager = self.memory()
        description = manager.get_l1_memory_desc()
        shared = objects.SharedFile.find(description)
        path = os.readlink(f"/proc/self/fd/{shared.fd}")
        shared.close()
        os.unlink(path)
        with open(path, "wb") as other:
            other.truncate(description.size)
            replaced_by = os.fstat(other.fileno()).st_ino
        shared = objects.SharedFile.find(description)
        if shared is not None:  # root can open it although it has no name any more
            self.addCleanup(shared.close)
            self.assertNotEqual(os.fstat(shared.fd).st_ino, replaced_by)
            os.pwrite(shared.fd, b"kept", shared.offset)
            self.assertEqual(ctypes.string_at(description.ptr, 4), b"kept")

    def test_memory_without_a_name_is_copied_in_place(self):
        # As long as a descriptor of it is open in the process.
        manager = self.memory()
        description = manager.get_l1_memory_desc()
        shared = objects.SharedFile.find(description)
        self.addCleanup(shared.close)
        path = os.readlink(f"/proc/self/fd/{shared.fd}")
        os.unlink(path)
        self.addCleanup(pathlib.Path(path).touch)  # LMCache unlinks it at its end
        adapter = self.adapter(description=description)
        self.round_trip(adapter, manager, 6)
        self.assertEqual(self.copied(adapter), (12, 0))

    def test_objects_are_copied_twice_when_the_daemon_refuses_the_memory(self):
        # The more so as it is larger than what may be lent in blocks of this size.
        size = (1 << 20) * 8192
        fd = os.memfd_create("l1")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        description = types.SimpleNamespace(ptr=address, size=size, align_bytes=4096)
        adapter = self.adapter(description=description)
        with self.assertLogs("lmcache.kvtier", "WARNING") as log:
            keys, expected = self.stored(adapter, 3)
        self.assertIn("are copied twice: limit_exceeded: too_many_blocks", "".join(log.output))
        self.assertEqual(self.look_up(adapter, keys), [True] * 3)
        loaded = [memory_object() for _ in keys]
        self.assertEqual(self.load(adapter, keys, loaded), [True] * 3)
        self.assertEqual(bytes_of(loaded), expected)
        self.assertEqual(self.copied(adapter), (0, 6))


if __name__ == "__main__":
    unittest.main()
