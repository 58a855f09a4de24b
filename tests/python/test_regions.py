# SPDX-License-Identifier: Apache-2.0
"""Regions: the daemon copies blocks out of and into memory that the test manages."""

import dataclasses
import gc
import hashlib
import mmap
import os
import pathlib
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_BYTES, BLOCK_TOKENS, RECORD, DaemonTestCase, prompt
from kvtier import Miss, Presence, StoreBlock

ROWS = 24


def hashes_of(count, seed=0):
    return [hashlib.sha256(bytes([seed, i])).digest() for i in range(count)]


class SharedRows:
    """Host memory of so many rows of one block each, behind a descriptor."""

    def __init__(self, test, rows=ROWS, row_bytes=BLOCK_BYTES):
        self.fd = os.memfd_create("region")
        test.addCleanup(os.close, self.fd)
        self.byte_count = rows * row_bytes
        os.ftruncate(self.fd, self.byte_count)
        self.rows = np.frombuffer(mmap.mmap(self.fd, self.byte_count), np.uint8)
        self.rows = self.rows.reshape(rows, row_bytes)

    def fill(self, seed):
        """Other bytes in each row. Returns a copy of them."""
        self.rows[:] = np.random.default_rng(seed).integers(0, 256, self.rows.shape, np.uint8)
        return self.rows.copy()


class RegionTestCase(DaemonTestCase):
    record = RECORD

    def setUp(self):
        super().setUp()
        self.memory = SharedRows(self)
        self.connection = self.connect()

    def open_region(self, connection=None, memory=None, **options):
        memory = memory or self.memory
        region = (connection or self.connection).open_region(
            self.record,
            fd=memory.fd,
            bytes=memory.byte_count,
            blocks=options.pop("blocks", ROWS),
            **options,
        )
        self.addCleanup(region.close)
        return region

    def finish(self, region, transfer):
        """The end of a transfer that the daemon did not refuse."""
        end = region.wait(transfer)
        self.assertIsNone(end.error)
        return end

    def store_all(self, region, hashes, rows=None):
        rows = range(len(hashes)) if rows is None else rows
        transfer = region.store_many(
            np.array(rows), b"".join(hashes), [None, *hashes[:-1]], depths=np.arange(len(hashes))
        )
        return self.finish(region, transfer)


class RegionTest(RegionTestCase):
    disk_blocks = 256

    def test_what_is_stored_is_loaded_into_other_rows(self):
        region, hashes = self.open_region(), hashes_of(8)
        before = self.memory.fill(1)
        self.assertEqual(region.block_bytes, BLOCK_BYTES)
        end = self.store_all(region, hashes, range(0, 16, 2))
        self.assertEqual((end.copied, end.skipped, end.failed), (8, 0, {}))
        self.memory.rows[:] = 0
        order = [5, 2, 7, 0]
        end = self.finish(region, region.load([(16 + i, hashes[n]) for i, n in enumerate(order)]))
        self.assertEqual((end.copied, end.failed), (4, {}))
        for i, number in enumerate(order):
            np.testing.assert_array_equal(self.memory.rows[16 + i], before[2 * number])
        self.assertFalse(self.memory.rows[:16].any())

    def test_blocks_one_by_one_say_the_same_as_arrays(self):
        region, hashes = self.open_region(), hashes_of(3)
        self.memory.fill(2)
        blocks = [
            StoreBlock(0, hashes[0]),
            StoreBlock(1, hashes[1], parent=hashes[0], depth=1),
            StoreBlock(2, hashes[2], parent=hashes[1], tokens=5, depth=2),
        ]
        self.assertEqual(self.finish(region, region.store(blocks)).copied, 3)
        self.assertTrue(all(region.lookup(hashes) & Presence.HOST))

    def test_pools_find_what_a_region_stored_and_the_other_way_round(self):
        pool = self.connection.attach(self.connection.register_model(self.record))
        tokens = prompt(blocks=4, seed=3)
        committed = self.commit_prefix(pool, tokens, fill=10)
        region, stored = self.open_region(), hashes_of(4)
        before = self.memory.fill(4)
        self.store_all(region, stored)
        with pool.acquire(stored) as got:
            self.assertEqual(len(got.hits), 4)
            got.wait()
            for row, block in enumerate(got.hits.blocks):
                np.testing.assert_array_equal(pool.memory().block_bytes()[block.index], before[row])
        end = self.finish(region, region.load_many(np.arange(8, 12), committed))
        self.assertEqual(end.copied, 4)
        for i in range(4):
            self.assertTrue((self.memory.rows[8 + i] == 10 + i).all())

    def test_what_is_cached_already_is_skipped(self):
        region, hashes = self.open_region(), hashes_of(6)
        self.memory.fill(5)
        self.store_all(region, hashes[:4])
        end = self.store_all(region, hashes, range(6, 12))
        self.assertEqual((end.copied, end.skipped, end.failed), (2, 4, {}))

    def test_a_block_that_is_missing_fails_alone(self):
        region, hashes = self.open_region(), hashes_of(3)
        before = self.memory.fill(6)
        self.store_all(region, hashes)
        asked = [hashes[2], hashes_of(1, seed=9)[0], hashes[0]]
        end = self.finish(region, region.load_many([10, 11, 12], asked))
        self.assertEqual(end.copied, 2)
        self.assertEqual(end.failed, {1: Miss.UNKNOWN})
        np.testing.assert_array_equal(self.memory.rows[10], before[2])
        np.testing.assert_array_equal(self.memory.rows[12], before[0])

    def test_ends_are_reported_once(self):
        region, hashes = self.open_region(), hashes_of(6)
        self.memory.fill(7)
        transfers = [region.store([StoreBlock(i, hashes[i])]) for i in range(6)]
        self.assertEqual(len(set(transfers)), 6)
        reported = [region.wait(transfers[3]).transfer]
        while len(reported) < 6:
            self.connection.ping()
            reported += [end.transfer for end in region.poll()]
        self.assertEqual(sorted(reported), sorted(transfers))
        with self.assertRaisesRegex(kvtier.NotFoundError, "unknown_transfer"):
            region.wait(transfers[3])

    def test_pieces_make_up_a_block_in_their_order(self):
        # Layer 0 of all blocks, then layer 1, as an engine's tensors have them.
        half = BLOCK_BYTES // 2
        layers = SharedRows(self, rows=2 * ROWS, row_bytes=half)
        pieces = [(0, half, half), (ROWS * half, half, half)]
        apart = self.open_region(memory=layers, pieces=pieces)
        whole, hashes = self.open_region(), hashes_of(5)
        before = self.memory.fill(8)
        self.store_all(whole, hashes)
        self.finish(apart, apart.load_many(np.arange(5), hashes, in_layers=True))
        np.testing.assert_array_equal(layers.rows[:5], before[:5, :half])
        np.testing.assert_array_equal(layers.rows[ROWS : ROWS + 5], before[:5, half:])
        other = hashes_of(5, seed=1)
        self.store_all(apart, other)
        self.finish(whole, whole.load_many(np.arange(10, 15), other))
        np.testing.assert_array_equal(self.memory.rows[10:15], before[:5])

    def test_rows_may_be_further_apart_than_a_block(self):
        stride = BLOCK_BYTES + 4096
        memory = SharedRows(self, row_bytes=stride)
        region, hashes = self.open_region(memory=memory, block_stride=stride), hashes_of(3)
        before = memory.fill(9)
        self.store_all(region, hashes)
        memory.rows[:] = 0
        self.finish(region, region.load_many([20, 21, 22], hashes))
        np.testing.assert_array_equal(memory.rows[20:23, :BLOCK_BYTES], before[:3, :BLOCK_BYTES])
        self.assertFalse(memory.rows[:, BLOCK_BYTES:].any())

    def leave_on_disk(self, region, hashes):
        """Stores the blocks and returns a region of the next daemon, which has them on disk alone."""
        self.store_all(region, hashes)
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        self.memory.rows[:] = 0
        return self.open_region()

    def test_what_a_region_stored_is_loaded_from_disk_by_the_next_daemon(self):
        region, hashes = self.open_region(), hashes_of(12)
        before = self.memory.fill(10)
        region = self.leave_on_disk(region, hashes)
        self.assertTrue(all(region.lookup(hashes) & Presence.DISK))
        end = self.finish(region, region.load_many(np.arange(12), hashes))
        self.assertEqual((end.copied, end.failed), (12, {}))
        np.testing.assert_array_equal(self.memory.rows[:12], before[:12])

    def test_reads_that_a_load_waits_for_are_checked_at_the_loops_priority(self):
        region, hashes = self.open_region(), hashes_of(12)
        region = self.leave_on_disk(region, hashes)
        self.finish(region, region.load_many(np.arange(12), hashes))
        threads = self.daemon_threads()
        loop = os.getpriority(os.PRIO_PROCESS, self.daemon.process_id)
        readers = [(nice, ran_ns) for name, nice, ran_ns in threads if name.startswith("kvt-read")]
        self.assertEqual({nice for nice, _ in readers}, {loop})
        self.assertGreater(sum(ran_ns for _, ran_ns in readers), 0)
        workers = {nice for name, nice, _ in threads if name.startswith("kvt-work")}
        self.assertEqual(workers, {max(loop, 10)})

    def daemon_threads(self):
        """Returns each thread's name, its nice value and for how long it has run."""
        threads = []
        for thread in pathlib.Path(f"/proc/{self.daemon.process_id}/task").iterdir():
            stat = (thread / "stat").read_text().rsplit(")", 1)[1].split()
            ran_ns = int((thread / "schedstat").read_text().split()[0])
            threads.append(((thread / "comm").read_text().strip(), int(stat[16]), ran_ns))
        return threads

    def test_a_prefetch_brings_what_is_on_disk_to_host_memory_for_the_load(self):
        region, hashes = self.open_region(), hashes_of(12)
        before = self.memory.fill(13)
        region = self.leave_on_disk(region, hashes)
        self.assertFalse(any(region.lookup(hashes) & Presence.HOST))
        self.assertEqual(region.prefetch([*hashes, hashes_of(1, seed=14)[0]]), 12)
        self.assertTrue(all(region.lookup(hashes) & Presence.HOST))
        self.assertEqual(region.prefetch(hashes), 12)
        self.assertEqual(region.prefetch([]), 0)
        self.finish(region, region.load_many(np.arange(12), hashes))
        np.testing.assert_array_equal(self.memory.rows[:12], before[:12])

    def test_blocks_of_a_transfer_are_its_own(self):
        region, hashes = self.open_region(), hashes_of(2)
        end = region.wait(region.load([(3, hashes[0]), (3, hashes[1])]))
        self.assertIsInstance(end.error, kvtier.WrongStateError)
        self.assertEqual(end.error.reason, "block_busy")
        self.assertEqual(end.failed, dict.fromkeys(range(2), Miss.CANCELLED))

    def test_closing_lets_the_memory_go(self):
        hashes = hashes_of(ROWS)
        self.memory.fill(13)
        with self.open_region() as region:
            region.store_many(np.arange(ROWS), hashes)
        self.assertTrue(region.closed)
        before = self.memory.fill(14)  # nothing reads these any more
        other = self.open_region()
        self.finish(other, other.load_many(np.arange(ROWS), hashes))
        self.assertFalse((self.memory.rows == before).all())
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "closed"):
            region.poll()

    def test_a_region_keeps_its_connection(self):
        region = self.connect().open_region(
            self.record, fd=self.memory.fd, bytes=self.memory.byte_count, blocks=ROWS
        )
        gc.collect()
        self.assertTrue(region.is_connected())
        region.close()

    def test_blocks_are_pinned_by_way_of_a_region(self):
        region, hashes = self.open_region(), hashes_of(4)
        self.memory.fill(7)
        self.store_all(region, hashes)
        request = {"op": "evict", "hashes": [one.hex() for one in hashes]}
        self.assertEqual(region.pin([*hashes[:2], hashes_of(1, seed=9)[0]], 60_000), 2)
        self.daemon.settle()
        self.assertEqual(kvtier.admin(request, self.daemon.admin_socket)["pinned"], 2)
        self.assertEqual([bool(one) for one in region.lookup(hashes)], [True, True, False, False])
        self.assertEqual(region.pin(hashes[:2], 0), 2)
        self.assertEqual(kvtier.admin(request, self.daemon.admin_socket)["pinned"], 0)
        self.assertEqual(region.pin([], 60_000), 0)

    def test_a_models_blocks_can_be_opaque(self):
        self.record = kvtier.ModelRecord(
            "opaque", groups=[kvtier.KvGroup(2, layer_bytes=BLOCK_BYTES // 2)]
        )
        region, hashes = self.open_region(), hashes_of(3)
        before = self.memory.fill(15)
        self.assertEqual(self.store_all(region, hashes).copied, 3)
        self.finish(region, region.load_many([9, 10, 11], hashes))
        np.testing.assert_array_equal(self.memory.rows[9:12], before[:3])

    def test_groups_of_a_model_are_asked_one_by_one(self):
        group = kvtier.KvGroup(2, layer_bytes=BLOCK_BYTES // 2)
        window = dataclasses.replace(group, hit_rule=kvtier.HitRule.TRAILING, window_tokens=32)
        self.record = kvtier.ModelRecord("hybrid", groups=[group, window])
        first, second, hashes = self.open_region(), self.open_region(group=1), hashes_of(3)
        before = self.memory.fill(16)
        self.store_all(first, hashes[:2], [0, 1])
        self.store_all(second, hashes[1:], [2, 3])
        self.assertEqual(list(first.lookup(hashes) != 0), [True, True, False])
        self.assertEqual(list(second.lookup(hashes) != 0), [False, True, True])
        self.finish(second, second.load([(9, hashes[1])]))
        np.testing.assert_array_equal(self.memory.rows[9], before[2])


class RegionLayersTest(RegionTestCase):
    LAYERS = 8
    disk_blocks = 256
    record = kvtier.ModelRecord(
        "layered", groups=[kvtier.KvGroup(LAYERS, layer_bytes=BLOCK_BYTES // LAYERS)]
    )

    def layers_of(self, rows):
        return rows.reshape(len(rows), self.LAYERS, -1)

    def watch(self, region, transfer, rows, expected):
        """Looks at the counter as an engine does, until all layers are there, and compares each
        layer as soon as it is counted. Returns the counts that were seen."""
        seen = [0]
        while seen[-1] < self.LAYERS:
            layers = region.layers_loaded(transfer)
            self.assertGreaterEqual(layers, seen[-1])
            if layers > seen[-1]:
                np.testing.assert_array_equal(
                    self.layers_of(rows)[:, :layers], self.layers_of(expected)[:, :layers]
                )
                seen.append(layers)
        return seen

    def test_layers_are_there_when_they_are_counted(self):
        region, hashes = self.open_region(), hashes_of(10)
        before = self.memory.fill(20)
        self.store_all(region, hashes)
        for _ in range(20):
            self.memory.rows[12:22] = 0
            transfer = region.load_many(np.arange(12, 22), hashes, in_layers=True)
            self.watch(region, transfer, self.memory.rows[12:22], before[:10])
            self.assertEqual(self.finish(region, transfer).copied, 10)
            self.assertEqual(region.layers_loaded(transfer), self.LAYERS)

    def test_waiting_for_layers(self):
        region, hashes = self.open_region(), hashes_of(10)
        before = self.memory.fill(21)
        self.store_all(region, hashes)
        self.memory.rows[12:22] = 0
        transfer = region.load_many(np.arange(12, 22), hashes, in_layers=True)
        for layers in range(1, self.LAYERS + 1):
            region.wait_layers(transfer, layers)
            np.testing.assert_array_equal(
                self.layers_of(self.memory.rows)[12:22, :layers],
                self.layers_of(before)[:10, :layers],
            )
        region.wait_layers(transfer, self.LAYERS, timeout_ms=0)
        self.finish(region, transfer)
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "too_many_layers"):
            region.wait_layers(transfer, self.LAYERS + 1)

    def test_a_block_that_is_missing_ends_the_wait(self):
        region, hashes = self.open_region(), hashes_of(4)
        self.memory.fill(22)
        self.store_all(region, hashes[:3])
        transfer = region.load_many(np.arange(8, 12), hashes, in_layers=True)
        with self.assertRaisesRegex(kvtier.CancelledError, "load_incomplete"):
            region.wait_layers(transfer, 1)
        with self.assertRaisesRegex(kvtier.CancelledError, "load_incomplete"):
            region.layers_loaded(transfer)
        end = self.finish(region, transfer)
        self.assertEqual((end.copied, end.failed), (3, {3: Miss.UNKNOWN}))

    def test_blocks_on_disk_come_before_a_layer_is_counted(self):
        region, hashes = self.open_region(), hashes_of(8)
        before = self.memory.fill(23)
        self.store_all(region, hashes[:5])
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        region = self.open_region()
        self.store_all(region, hashes[5:], [5, 6, 7])
        self.memory.rows[12:20] = 0
        transfer = region.load_many(np.arange(12, 20), hashes, in_layers=True)
        self.watch(region, transfer, self.memory.rows[12:20], before[:8])
        self.assertEqual(self.finish(region, transfer).copied, 8)

    def test_a_killed_daemon_ends_the_wait(self):
        region, hashes = self.open_region(), hashes_of(4)
        self.memory.fill(24)
        self.store_all(region, hashes)
        transfer = region.load_many(np.arange(8, 12), hashes, in_layers=True)
        self.daemon.kill()
        # The load may have ended before the daemon did.
        try:
            while region.layers_loaded(transfer) < self.LAYERS:
                pass
        except kvtier.UnavailableError:
            with self.assertRaises(kvtier.UnavailableError):
                region.wait_layers(transfer, self.LAYERS)

    def test_only_loads_in_layers_are_counted(self):
        region, hashes = self.open_region(), hashes_of(2)
        self.memory.fill(25)
        self.store_all(region, hashes)
        transfer = region.load_many([8, 9], hashes)
        with self.assertRaisesRegex(kvtier.NotFoundError, "unknown_transfer"):
            region.layers_loaded(transfer)
        self.finish(region, transfer)


class ManyBlocksTest(RegionTestCase):
    BLOCKS = 6000
    LAYERS = 8
    record = kvtier.ModelRecord("many", groups=[kvtier.KvGroup(LAYERS, layer_bytes=512)])
    more_settings = ("host.bytes=64MiB", "cache.slab_bytes=1MiB")

    def test_a_load_of_thousands_of_blocks_is_counted_layer_by_layer(self):
        memory = SharedRows(self, rows=self.BLOCKS, row_bytes=512 * self.LAYERS)
        region = self.open_region(memory=memory, blocks=self.BLOCKS)
        hashes = np.random.default_rng(1).integers(0, 256, (self.BLOCKS, 32), np.uint8)
        before = memory.fill(26)
        stored = self.finish(region, region.store_many(np.arange(self.BLOCKS), hashes))
        self.assertEqual(stored.copied, self.BLOCKS)
        memory.rows[:] = 0
        transfer = region.load_many(np.arange(self.BLOCKS), hashes, in_layers=True)
        seen = [0]
        while seen[-1] < self.LAYERS:
            region.wait_layers(transfer, seen[-1] + 1)
            seen.append(region.layers_loaded(transfer))
            np.testing.assert_array_equal(
                memory.rows[:, : 512 * seen[-1]], before[:, : 512 * seen[-1]]
            )
        self.assertEqual(self.finish(region, transfer).copied, self.BLOCKS)


class BurstTest(RegionTestCase):
    """More is stored at once than host memory and the disk can take."""

    BLOCKS = 4096
    host_blocks = 48
    disk_blocks = 2 * BLOCKS
    more_settings = ("cache.max_wait_ms=20",)

    def test_what_was_reported_as_stored_stays(self):
        memory = SharedRows(self, rows=self.BLOCKS)
        region = self.open_region(memory=memory, blocks=self.BLOCKS)
        hashes = np.random.default_rng(2).integers(0, 256, (self.BLOCKS, 32), np.uint8)
        end = self.finish(region, region.store_many(np.arange(self.BLOCKS), hashes))
        self.assertEqual(end.copied + len(end.failed), self.BLOCKS)
        self.assertLessEqual(set(end.failed.values()), {Miss.HOST_FULL})
        stored = [hashes[i].tobytes() for i in range(self.BLOCKS) if i not in end.failed]
        gone = np.count_nonzero(region.lookup(stored) == 0)
        self.assertEqual(gone, 0, f"of {end.copied} that were reported as stored")


class RegionArgumentsTest(RegionTestCase):
    def test_a_layout_that_leaves_the_memory_is_refused(self):
        for options, reason in (
            ({"blocks": ROWS + 1}, "bad_region_layout"),
            ({"blocks": 0}, "bad_region_layout"),
            ({"block_stride": BLOCK_BYTES - 1}, "bad_region_layout"),
            ({"pieces": [(0, BLOCK_BYTES, BLOCK_BYTES - 64)]}, "region_block_bytes"),
            ({"pieces": [(1 << 63, BLOCK_BYTES, BLOCK_BYTES)]}, "bad_region_layout"),
        ):
            with self.subTest(options):
                with self.assertRaisesRegex(kvtier.InvalidArgumentError, reason):
                    self.open_region(**options)
        self.assertTrue(self.connection.is_connected())

    def test_a_refused_layout_takes_its_descriptor_along(self):
        unused = SharedRows(self)
        for _ in range(20):
            with self.assertRaisesRegex(kvtier.InvalidArgumentError, "bad_region_layout"):
                self.open_region(memory=unused, blocks=ROWS + 1)
        region, hashes = self.open_region(), hashes_of(2)
        before = self.memory.fill(18)
        self.store_all(region, hashes)
        self.finish(region, region.load_many([8, 9], hashes))
        np.testing.assert_array_equal(self.memory.rows[8:10], before[:2])
        self.assertFalse(unused.rows.any())

    def test_memory_must_be_as_large_as_is_said(self):
        small = SharedRows(self, rows=ROWS - 1)
        small.byte_count += BLOCK_BYTES
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "bad_region_memory"):
            self.open_region(memory=small)

    def test_a_descriptor_is_needed_and_its_kind_must_fit(self):
        options = {"bytes": self.memory.byte_count, "blocks": ROWS}
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "no_descriptor"):
            self.connection.open_region(RECORD, **options)
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "bad_region_memory"):
            self.connection.open_region(RECORD, fd=reading, **options)
        with self.assertRaisesRegex(kvtier.UnsupportedError, "region_memory_kind"):
            self.connection.open_region(
                RECORD,
                memory=kvtier.RegionMemory.CUDA_IPC,
                ipc_handle=bytes(64),
                device=0,
                **options,
            )

    def test_bad_columns_are_refused_before_anything_is_sent(self):
        region, hashes = self.open_region(), hashes_of(2)
        for call, reason in (
            (lambda: region.store_many([0], hashes), "bad_count"),
            (lambda: region.store_many([0, 1], hashes, parents=hashes[:1]), "bad_count"),
            (lambda: region.store_many([0, -1], hashes), "bad_block"),
            (lambda: region.store_many([0, 1 << 32], hashes), "bad_block"),
            (lambda: region.store_many([0.0, 1.0], hashes), "bad_block"),
            (lambda: region.store_many([0, ROWS], hashes), "block_out_of_range"),
            (lambda: region.store_many([0, 1], hashes, tokens=BLOCK_TOKENS + 1), "bad_token_count"),
            (lambda: region.store_many([0, 1], hashes, tokens=1 << 16), "bad_tokens"),
            (lambda: region.store_many([0, 1], b"".join(hashes)[:-1]), "bad_hash"),
            (lambda: region.load_many([0, 1], [hashes[0], b"short"]), "bad_hash"),
            (lambda: region.load_many([0, ROWS], hashes), "block_out_of_range"),
            (lambda: region.store([]), "empty_request"),
            (lambda: region.load([]), "empty_request"),
            (lambda: region.load_many([], []), "empty_request"),
        ):
            with self.assertRaisesRegex(kvtier.InvalidArgumentError, reason):
                call()

    def test_hashes_may_be_an_array(self):
        region, hashes = self.open_region(), hashes_of(3)
        rows = np.frombuffer(b"".join(hashes), np.uint8).reshape(3, 32)
        before = self.memory.fill(17)
        self.finish(region, region.store_many(np.arange(3, dtype=np.int64), rows, rows, 16, 1))
        np.testing.assert_array_equal(region.lookup(rows) != 0, [True] * 3)
        self.finish(region, region.load_many(np.array([4, 5, 6], np.uint32), rows[::-1]))
        np.testing.assert_array_equal(self.memory.rows[4:7], before[2::-1])


if __name__ == "__main__":
    unittest.main()
