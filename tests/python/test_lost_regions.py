# SPDX-License-Identifier: Apache-2.0
"""Regions whose daemon ends."""

import contextlib
import os
import signal
import unittest

import numpy as np
from test_regions import ROWS, RegionTestCase, hashes_of

import kvtier
from kvtier import Miss, StoreBlock


class LostRegionTest(RegionTestCase):
    def test_transfers_end_with_the_daemon_and_the_next_one_takes_the_memory(self):
        region, hashes = self.open_region(), hashes_of(4)
        self.memory.fill(11)
        self.store_all(region, hashes)
        self.daemon.kill()
        self.assertFalse(region.is_connected())
        self.assertEqual(region.poll(), [])
        for call in (
            lambda: region.store([StoreBlock(0, hashes[0])]),
            lambda: region.load([(0, hashes[0])]),
            lambda: region.lookup(hashes),
            lambda: region.prefetch(hashes),
        ):
            with self.assertRaises(kvtier.UnavailableError):
                call()
        self.daemon.start()
        self.connection.ping()
        self.assertFalse(region.is_connected())
        again = self.open_region()
        self.assertEqual(self.store_all(again, hashes_of(2, seed=5)).copied, 2)

    def test_a_transfer_under_way_when_the_daemon_dies_is_reported_as_lost(self):
        region, hashes = self.open_region(), hashes_of(ROWS)
        self.memory.fill(12)
        transfer = region.store_many(np.arange(ROWS), hashes)
        self.daemon.kill()
        (end,) = region.poll()
        self.assertEqual(end.transfer, transfer)
        # It may have ended before the daemon did.
        if end.error is not None:
            self.assertIsInstance(end.error, kvtier.UnavailableError)
            self.assertEqual(end.failed, dict.fromkeys(range(ROWS), Miss.UNAVAILABLE))
        self.assertEqual(region.poll(), [])

    def test_it_tells_that_the_process_of_its_daemon_has_ended(self):
        region = self.open_region()
        self.assertFalse(region.daemon_ended())
        self.daemon.kill()
        self.assertTrue(region.daemon_ended())
        self.daemon.start()
        self.connection.ping()
        self.assertTrue(region.daemon_ended(), "it is another daemon's process that runs")
        self.assertFalse(self.open_region().daemon_ended())

    def test_no_byte_of_a_load_that_was_cut_off_changes_once_the_daemon_has_ended(self):
        hashes = hashes_of(ROWS)
        self.memory.fill(17)
        self.store_all(self.open_region(), hashes)
        for _ in range(5):
            region = self.open_region()
            self.finish(region, region.store_many(np.arange(ROWS), hashes))
            self.memory.rows[:] = 0
            region.load_many(np.arange(ROWS), hashes)
            os.kill(self.daemon.status()["pid"], signal.SIGKILL)
            while not region.daemon_ended():
                pass
            left = self.memory.rows.copy()
            self.daemon.kill()
            self.daemon.start()
            self.connection.ping()
            np.testing.assert_array_equal(self.memory.rows, left)
            self.memory.fill(17)

    def test_a_daemon_that_was_given_up_does_nothing_more_when_it_goes_on(self):
        stored, not_stored = hashes_of(4), hashes_of(4, seed=5)
        self.store_all(self.open_region(), stored)
        region = self.open_region(self.connect(request_timeout_ms=200))
        self.daemon.pause()
        self.addCleanup(self.daemon.resume)
        region.store_many(np.arange(4), not_stored)
        region.load_many(np.arange(4, 8), stored)
        with self.assertRaises(kvtier.UnavailableError):
            while True:  # until the socket is full, and for a time-out more
                with contextlib.suppress(kvtier.TimedOutError):
                    region.lookup(2048 * stored)
        self.assertEqual(len(region.poll()), 2)
        self.memory.fill(19)
        left = self.memory.rows.copy()
        self.assertFalse(region.daemon_ended())
        self.daemon.resume()
        while not region.daemon_ended():
            pass
        np.testing.assert_array_equal(self.memory.rows, left)
        self.connection = self.connect()
        self.assertFalse(any(self.open_region().lookup(not_stored)))


if __name__ == "__main__":
    unittest.main()
