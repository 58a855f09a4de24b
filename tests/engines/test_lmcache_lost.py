# SPDX-License-Identifier: Apache-2.0
"""KvtierL2Adapter where the daemon is absent, dies, hangs or has damaged bytes."""

import threading
import unittest

from lmcache_case import (
    LAYOUTS,
    TIMEOUT_MS,
    LmcacheCase,
    bits,
    bytes_of,
    keys_of,
    memory_object,
    signaled,
)


class LostDaemonTest(LmcacheCase):
    def setUp(self):
        self.addCleanup(self.restart)

    def restart(self):
        self.daemon.kill()
        self.daemon.start()

    def test_without_a_daemon_everything_is_a_miss_until_there_is_one(self):
        self.daemon.kill()
        adapter = self.adapter(connected=False)
        keys, stored = keys_of(2), [memory_object(1), memory_object(2)]
        self.assertFalse(self.store(adapter, keys, stored).is_successful())
        self.assertEqual(self.look_up(adapter, keys), [False] * 2)
        self.assertEqual(self.load(adapter, keys, [memory_object(), memory_object()]), [False] * 2)
        adapter.submit_unlock(keys)
        self.assertTrue(adapter.report_status()["is_healthy"])
        self.daemon.start()
        self.wait_for_daemon(adapter)
        self.assertTrue(self.store(adapter, keys, stored).is_successful())

    def test_what_was_stored_is_loaded_after_restarts_of_both(self):
        keys, expected = self.stored(self.adapter(), 4)
        self.daemon.drain()
        self.restart()
        adapter = self.adapter()
        self.assertEqual(self.look_up(adapter, keys), [True] * 4)
        loaded = [memory_object() for _ in keys]
        self.assertEqual(self.load(adapter, keys, loaded), [True] * 4)
        self.assertEqual(bytes_of(loaded), expected)

    def test_bytes_that_are_damaged_on_disk_are_not_served(self):
        adapter = self.adapter()
        keys, _ = self.stored(adapter, 4)
        self.daemon.drain()
        self.daemon.kill()
        self.wait_for_daemon(adapter, connections=0)
        self.assertGreater(self.daemon.corrupt_disk(5000, 4096), 0)
        self.daemon.start()
        self.wait_for_daemon(adapter)
        loaded = [memory_object() for _ in keys]
        self.assertEqual(self.load(adapter, keys, loaded), [False] * 4)

    def test_a_daemon_that_is_killed_under_tasks_ends_them_all(self):
        adapter = self.adapter()
        keys, expected = self.stored(adapter, 6)
        self.daemon.pause()
        loaded = [memory_object() for _ in keys]
        load = adapter.submit_load_task(keys, loaded)
        store = adapter.submit_store_task(keys_of(2), [memory_object(1), memory_object(2)])
        lookup = adapter.submit_lookup_and_lock_task(keys, LAYOUTS)
        self.daemon.kill()
        came = self.result(adapter.get_load_event_fd(), lambda: adapter.query_load_result(load))
        for is_there, found, right in zip(bits(came, 6), bytes_of(loaded), expected):
            self.assertTrue(not is_there or found == right)
        completed = self.result(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
        self.assertFalse(completed[store].is_successful())
        fd = adapter.get_lookup_and_lock_event_fd()
        found = self.result(fd, lambda: adapter.query_lookup_and_lock_result(lookup))
        self.assertEqual(bits(found, 6), [False] * 6)

    def test_a_daemon_that_hangs_holds_neither_tasks_nor_the_end(self):
        adapter = self.adapter()
        keys, _ = self.stored(adapter, 3)
        self.load(adapter, keys, [memory_object() for _ in keys])
        self.daemon.pause()
        loads = [adapter.submit_load_task(keys, [memory_object() for _ in keys]) for _ in range(2)]
        adapter.submit_store_task(keys_of(1), [memory_object(1)])
        lookups = [adapter.submit_lookup_and_lock_task(keys, LAYOUTS) for _ in range(1000)]
        for tasks, fd, take in (
            (loads, adapter.get_load_event_fd(), adapter.query_load_result),
            (lookups, adapter.get_lookup_and_lock_event_fd(), adapter.query_lookup_and_lock_result),
        ):
            for task in tasks:
                while (done := take(task)) is None:
                    self.assertTrue(signaled(fd), "a task was not completed")
                self.assertEqual(bits(done, 3), [False] * 3)
        fd = adapter.get_store_event_fd()
        (stored,) = self.result(fd, adapter.pop_completed_store_tasks).values()
        self.assertFalse(stored.is_successful())
        ended = threading.Thread(target=adapter.close, daemon=True)
        ended.start()
        ended.join(2 * TIMEOUT_MS / 1e3)
        self.assertFalse(ended.is_alive())


if __name__ == "__main__":
    unittest.main()
