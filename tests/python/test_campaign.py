# SPDX-License-Identifier: Apache-2.0
"""tools/campaign: its counts and files, the bytes it expects, and where it damages. Its parts run
on real daemons for minutes and are no test of this tree's: tools/campaign.sh."""

import contextlib
import ctypes
import importlib.util
import io
import json
import lzma
import mmap
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/campaign"


def load(name):
    """The tool is a folder that python3 runs, not a package: its modules are loaded by path."""
    spec = importlib.util.spec_from_file_location(name, TOOL / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


record = load("record")
blocks = load("blocks")
world = load("world")
damage = load("damage")
soak = load("soak")
simulations = load("simulations")
write_stream = load("write_stream")
recording = load("recording")
recorder = load("recorder")
engine_findings = load("engine_findings")


class CampaignTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-campaign-test-")
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "campaign.json"
        # Failures are printed at once.
        output = contextlib.redirect_stdout(io.StringIO())
        output.__enter__()
        self.addCleanup(output.__exit__, None, None, None)

    def job(self, seconds=0.0, first_seed=5):
        return record.Job("part", record.Record(self.path, 1), seconds, first_seed)

    def part(self):
        return json.loads(self.path.read_text())["parts"]["part"]


class RecordTest(CampaignTest):
    def test_a_part_without_time_has_one_round(self):
        self.assertEqual(list(self.job().seeds()), [5])
        self.assertEqual((self.part()["rounds"], self.part()["next_seed"]), (1, 6))

    def test_a_later_run_goes_on_with_the_next_seed_and_adds_what_it_counts(self):
        for _ in range(2):
            job = self.job(first_seed=100)
            for _ in job.seeds(10):
                job.count("kills", 3)
                job.peak("most", 7)
        self.assertEqual(self.part()["counts"], {"kills": 6})
        self.assertEqual(self.part()["peaks"], {"most": 7})
        self.assertEqual(self.part()["next_seed"], 120)

    def test_a_failure_names_its_seed_in_the_file_and_in_the_table(self):
        job = self.job()
        for seed in job.seeds():
            job.fail(seed, "a wrong byte", log="x" * 10_000 + "the end")
        failure = self.part()["failures"][0]
        self.assertEqual(failure["again"], "tools/campaign.sh --only part --seed 5")
        self.assertTrue(failure["log"].endswith("the end"))
        self.assertLess(len(failure["log"]), 5000)
        self.assertIn("| seed 5 |", record.Record(self.path, 1).to_markdown())

    def test_a_part_that_fails_again_and_again_is_over(self):
        job = self.job(seconds=3600)
        for seed in job.seeds():
            job.fail(seed, "a wrong byte")
        self.assertEqual(len(self.part()["failures"]), record.MAX_FAILURES)

    def test_a_part_that_cannot_run_says_why(self):
        self.job().skip("no fuzzer is built")
        self.assertIn("not run: no fuzzer is built", record.Record(self.path, 1).to_markdown())

    def test_jobs_that_share_a_range_are_dealt_different_seeds(self):
        record_of_all = record.Record(self.path, 1)
        dealt = iter((40, 45))
        first = record.Job("part", record_of_all, 0.0, 5, deal=lambda step: next(dealt))
        self.assertEqual(list(first.seeds(5)) + list(first.seeds(5)), [40, 45])
        self.assertEqual(self.part()["next_seed"], 50)

    def test_processes_that_share_a_range_are_dealt_different_seeds(self):
        dealer = record.Dealer(1000)
        fork = multiprocessing.get_context("fork")
        queue = fork.SimpleQueue()
        take = lambda: queue.put([dealer.take(3) for _ in range(20)])
        processes = [fork.Process(target=take) for _ in range(4)]
        for process in processes:
            process.start()
        dealt = [seed for _ in processes for seed in queue.get()]
        for process in processes:
            process.join()
        self.assertEqual(sorted(dealt), list(range(1000, 1240, 3)))
        self.assertEqual(dealer.take(1), 1240)
        dealer.close()

    def test_what_another_machine_has_done_is_added(self):
        for path in (self.path, self.path.with_name("other.json")):
            job = record.Job("part", record.Record(path, 1), 0.0, 5 if path == self.path else 100)
            for seed in job.seeds(10):
                job.count("kills", 3)
                job.peak("most", seed)
                job.fail(seed, "a wrong byte")
        merged = record.Record(self.path, 1)
        merged.merge(json.loads(self.path.with_name("other.json").read_text()))
        part = merged.document()["parts"]["part"]
        self.assertEqual((part["counts"], part["peaks"], part["rounds"]), ({"kills": 6}, {"most": 100}, 2))
        self.assertEqual((part["first_seed"], part["next_seed"]), (5, 110))
        self.assertEqual([failure["seed"] for failure in part["failures"]], [5, 100])
        with self.assertRaises(ValueError):
            merged.merge({"schema": "another/1"})

    def test_a_part_that_was_run_elsewhere_is_not_called_skipped(self):
        self.job().skip("no fuzzer is built")
        other = record.Record(self.path.with_name("other.json"), 1)
        for _ in record.Job("part", other, 0.0, 5).seeds():
            pass
        merged = record.Record(self.path, 1)
        merged.merge(other.document())
        self.assertEqual(merged.document()["parts"]["part"]["skipped"], "")

    def test_another_file_is_refused(self):
        self.path.write_text('{"schema": "another/1"}')
        with self.assertRaises(ValueError):
            record.Record(self.path, 1)


class FindingsTest(CampaignTest):
    def test_what_a_killed_worker_has_counted_is_there(self):
        path = self.path.with_name("findings")
        file = engine_findings.FindingsFile(path)
        worker = os.fork()
        if worker == 0:
            with open(path, "r+b") as opened:
                mine = engine_findings.Findings(mmap.mmap(opened.fileno(), 0), 3)
            mine.add("kept blocks checked")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(worker, 0)
        self.assertEqual(file.of[3].get("kept blocks checked"), 1)
        self.assertEqual(file.sum("kept blocks checked"), 1)
        self.assertEqual(file.sum("wrong blocks"), 0)

    def test_large_blocks_have_other_bytes_for_each_hash_and_place(self):
        one, other = (blocks.bytes_of(blocks.block_hash(i), 1 << 16) for i in range(2))
        self.assertEqual(len(one), 1 << 16)
        self.assertTrue((one.view("uint64") != other.view("uint64")).all())
        self.assertEqual(len(set(one.view("uint64").tolist())), 1 << 13)


class ProgramsTest(CampaignTest):
    """With programs in the place of the build's that print what those print."""

    def setUp(self):
        super().setUp()
        self.build = self.path.parent
        (self.build / "bin").mkdir()
        environment = mock.patch.dict(os.environ, KVTIER_BUILD_DIRECTORY=str(self.build))
        environment.start()
        self.addCleanup(environment.stop)

    def make_program(self, name, text):
        path = self.build / "bin" / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def test_seeds_that_fail_are_named_and_the_others_counted(self):
        self.make_program(
            "kvtier-sim",
            'echo "seed 5012 failed; again with: ..." >&2\n'
            'echo "kvtier-sim: 199 seeds hold, 1 fail; 700 events, 80 crashes, 9 blocks"\n'
            "exit 1\n",
        )
        simulations.run_simulations(self.job(first_seed=5000))
        part = self.part()
        self.assertEqual([failure["seed"] for failure in part["failures"]], [5012])
        self.assertEqual(part["counts"], {"histories held": 199, "events": 700, "deaths": 80})
        self.assertEqual(part["next_seed"], 5200)

    def test_a_simulator_that_dies_is_a_failure(self):
        self.make_program("kvtier-sim", "exit 3\n")
        simulations.run_simulations(self.job())
        self.assertIn("without a summary", self.part()["failures"][0]["what"])

    def make_fuzzer(self, text):
        fuzzer = self.make_program("fuzz_one", text)
        tests = self.build / "tests/fuzz"
        tests.mkdir(parents=True)
        line = f'add_test([=[fuzz_one]=] "{fuzzer}" "-max_total_time=60" "-max_len=8" "found" "corpus")'
        (tests / "CTestTestfile.cmake").write_text(f"# It's made by cmake.\n{line}\n")

    def test_fuzzers_are_those_of_the_builds_tests(self):
        self.make_fuzzer('echo "stat::number_of_executed_units: 123"\n')
        simulations.run_fuzzers(self.job())
        self.assertEqual(self.part()["counts"]["inputs of fuzz_one"], 123)
        self.assertEqual(self.part()["failures"], [])

    def test_an_input_that_fails_is_in_the_report(self):
        self.make_fuzzer(
            'for word; do case $word in -exact_artifact_path=*) printf AB >"${word#*=}" ;; esac; done\n'
        )
        simulations.run_fuzzers(self.job())
        self.assertIn("fuzz_one failed on the input 4142", self.part()["failures"][0]["what"])


class DamageTest(unittest.TestCase):
    def test_the_bytes_of_a_block_follow_from_its_hash(self):
        one, other = blocks.block_hash(1), blocks.block_hash(2)
        self.assertEqual(blocks.bytes_of(one).nbytes, blocks.BLOCK_BYTES)
        self.assertTrue((blocks.bytes_of(one) == blocks.bytes_of(one)).all())
        self.assertFalse((blocks.bytes_of(one) == blocks.bytes_of(other)).all())

    def test_slots_are_found_by_the_hash_in_their_headers(self):
        memory = bytearray(3 * blocks.SLOT_BYTES)
        wanted = blocks.block_hash("wanted")
        memory[blocks.SLOT_BYTES : blocks.SLOT_BYTES + 8] = b"KVTSLOT1"
        memory[blocks.SLOT_BYTES + 64 : blocks.SLOT_BYTES + 96] = wanted
        self.assertEqual(damage.slots_in(memory, 0), {wanted: blocks.SLOT_BYTES})
        self.assertEqual(damage.slots_in(memory, 2 * blocks.SLOT_BYTES), {})

    def test_a_flipped_byte_is_always_another_one(self):
        memory = bytearray(range(256))
        for place in range(256):
            damage.flip(memory, place, random.Random(place))
        self.assertTrue(all(memory[place] != place for place in range(256)))


class Stream:
    """A stream as it is recorded: every request is answered unless it is told otherwise."""

    def __init__(self):
        self.bytes = b""
        self._requests = 0

    def ask(self, kind, value=0, file=0, content=b""):
        self._requests += 1
        event = write_stream.Event(kind, self._requests, value, file, content)
        self.bytes += write_stream.pack(event)
        return self._requests

    def answer(self, request, failed=0):
        event = write_stream.Event(write_stream.ANSWER, request, failed, 0, b"")
        self.bytes += write_stream.pack(event)

    def do(self, *request):
        self.answer(self.ask(*request))

    def create(self, number, name):
        self.do(write_stream.CREATE, 0, number, name)
        self.do(write_stream.SYNC_DIRECTORY, 0, 0, b"/")

    def cuts(self, count=200):
        """The disk that so many power losses at the end leave."""
        disk = write_stream.Disk()
        for event in write_stream.unpack(self.bytes):
            disk.advance(event)
        return [disk.cut(random.Random(seed)) for seed in range(count)]

    def contents(self, name):
        return {bytes(cut[name]) for cut in self.cuts() if name in cut}


class PowerLossTest(unittest.TestCase):
    def setUp(self):
        self.stream = Stream()

    def test_what_was_synced_is_there(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"old")
        self.stream.do(write_stream.SYNC, 0, 1)
        self.assertEqual(self.stream.contents("/a"), {b"old"})

    def test_what_was_not_synced_is_kept_or_lost(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"old")
        self.stream.do(write_stream.SYNC, 0, 1)
        self.stream.do(write_stream.WRITE, 0, 1, b"new")
        self.assertEqual(self.stream.contents("/a"), {b"old", b"new"})

    def test_a_write_that_failed_is_what_was_written_of_it(self):
        self.stream.create(1, b"/a")
        for failed, offset in ((3, 0), (5, 90)):  # the second one as a whole
            write = self.stream.ask(write_stream.WRITE, offset, 1, b"bytes")
            self.stream.answer(write, failed)
        self.stream.answer(self.stream.ask(write_stream.TRUNCATE, 0, 1), 1)
        self.stream.answer(self.stream.ask(write_stream.ALLOCATE, 50, 1), 1)
        self.assertEqual({len(one) for one in self.stream.contents("/a")}, {0, 2})
        self.stream.do(write_stream.SYNC, 0, 1)
        self.assertEqual(self.stream.contents("/a"), {b"by"})

    def test_a_sync_that_was_not_answered_promises_nothing(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"new")
        self.stream.ask(write_stream.SYNC, 0, 1)
        self.assertIn(b"", self.stream.contents("/a"))

    def test_a_sync_promises_nothing_of_a_write_that_was_under_way_when_it_arrived(self):
        self.stream.create(1, b"/a")
        write = self.stream.ask(write_stream.WRITE, 0, 1, b"new")
        sync = self.stream.ask(write_stream.SYNC, 0, 1)
        self.stream.answer(write)
        self.stream.answer(sync)
        self.assertIn(b"", self.stream.contents("/a"))

    def test_a_write_is_torn_between_sectors_and_a_later_one_may_outlive_an_earlier(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, bytes(8192))
        self.stream.do(write_stream.SYNC, 0, 1)
        self.stream.do(write_stream.WRITE, 0, 1, b"1" * 4096)
        self.stream.do(write_stream.WRITE, 4096, 1, b"2" * 4096)
        contents = self.stream.contents("/a")
        self.assertIn(bytes(4096) + b"2" * 4096, contents)
        self.assertIn(b"1" * 4096 + bytes(4096), contents)
        halves = {content[:1024] for content in contents}
        self.assertIn(b"1" * 512 + bytes(512), halves)

    def test_a_sector_has_what_was_written_to_it_in_order(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"ab")
        self.stream.do(write_stream.WRITE, 2, 1, b"cd")
        sectors = {content.rstrip(b"\0") for content in self.stream.contents("/a")}
        self.assertEqual(sectors, {b"", b"ab", b"abcd"})

    def test_bytes_may_outlive_the_size_that_they_speak_of(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"size 3.")
        self.stream.do(write_stream.SYNC, 0, 1)
        self.stream.do(write_stream.ALLOCATE, 9, 1)
        self.stream.do(write_stream.WRITE, 0, 1, b"size 9.")
        self.assertEqual(
            self.stream.contents("/a"),
            {b"size 3.", b"size 9.", b"size 3.\0\0", b"size 9.\0\0"},
        )

    def test_a_truncate_that_was_lost_gives_back_the_old_bytes(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"old bytes")
        self.stream.do(write_stream.SYNC, 0, 1)
        self.stream.do(write_stream.TRUNCATE, 0, 1)
        self.stream.do(write_stream.WRITE, 0, 1, b"new")
        contents = self.stream.contents("/a")
        self.assertEqual(contents, {b"old bytes", b"", b"new", b"\0\0\0"})

    def test_what_was_written_before_a_truncate_ends_with_it(self):
        self.stream.create(1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"x" * 1000)
        self.stream.do(write_stream.TRUNCATE, 600, 1)
        self.stream.do(write_stream.SYNC, 0, 1)
        self.assertEqual(self.stream.contents("/a"), {b"x" * 600})

    def test_names_are_kept_in_order_and_a_synced_directory_keeps_them(self):
        self.stream.create(1, b"/kept")
        self.stream.do(write_stream.CREATE, 0, 2, b"/a")
        self.stream.do(write_stream.RENAME, 0, 1, b"/kept\0/moved\0")
        self.stream.do(write_stream.UNLINK, 0, 2, b"/a")
        names = {tuple(cut) for cut in self.stream.cuts()}
        self.assertEqual(names, {("/kept",), ("/a", "/kept"), ("/a", "/moved"), ("/moved",)})

    def test_a_file_that_was_synced_has_no_name_before_its_directory_is_synced(self):
        self.stream.do(write_stream.CREATE, 0, 1, b"/a")
        self.stream.do(write_stream.WRITE, 0, 1, b"new")
        self.stream.do(write_stream.SYNC, 0, 1)
        self.assertEqual({tuple(cut) for cut in self.stream.cuts()}, {(), ("/a",)})
        self.assertEqual(self.stream.contents("/a"), {b"new"})

    def test_files_move_with_their_directory_and_are_written_where_they_were(self):
        self.stream.do(write_stream.MAKE_DIRECTORY, 0, 0, b"/d")
        self.stream.create(1, b"/d/a")
        self.stream.do(write_stream.RENAME, 0, 0, b"/d\0/e\0")
        self.stream.do(write_stream.SYNC_DIRECTORY, 0, 0, b"/")
        for cut in self.stream.cuts(5):
            with tempfile.TemporaryDirectory() as directory:
                write_stream.write_tree(cut, pathlib.Path(directory))
                self.assertEqual(os.listdir(pathlib.Path(directory, "e")), ["a"])

    def test_a_stream_that_was_cut_off_ends_with_its_last_whole_event(self):
        self.stream.create(1, b"/a")
        whole = len(list(write_stream.unpack(self.stream.bytes)))
        self.assertEqual(len(list(write_stream.unpack(self.stream.bytes[:-1]))), whole - 1)


class RecordingTest(CampaignTest):
    """Recordings that are made by hand: promises at a moment, and losses."""

    def setUp(self):
        super().setUp()
        self.stream = Stream()
        self.hashes = [block for prompt in blocks.conversations(1) for block in prompt]
        self.note(seed=1, prompts=1, blocks=100, keys="none")

    def note(self, **what):
        self.stream.ask(write_stream.NOTE, 0, 0, json.dumps(what).encode())

    def look(self, number, on_disk):
        self.note(look=number)
        self.note(seen=number, on_disk=on_disk)

    def write(self, block):
        self.stream.do(write_stream.WRITE, 4096, 1, b"KVTSLOT1" + bytes(56) + block + bytes(4000))

    def load(self):
        with lzma.open(self.path, "wb") as file:
            file.write(self.stream.bytes)
        return recording.Recording(self.path)

    def moment(self):
        return len(list(write_stream.unpack(self.stream.bytes)))

    def test_a_block_is_promised_between_two_looks_that_both_found_it(self):
        self.look(1, [3, 4])
        between = self.moment()
        self.look(2, [4, 5])
        loaded = self.load()
        self.assertEqual(loaded.promised(between), {self.hashes[4]})
        self.assertEqual(loaded.promised(self.moment()), set())

    def test_a_block_that_was_written_between_the_looks_may_have_left_meanwhile(self):
        self.look(1, [4])
        self.write(self.hashes[4])
        between = self.moment()
        self.look(2, [4])
        self.assertEqual(self.load().promised(between), set())

    def test_nothing_is_promised_while_the_keys_end_with_the_daemon(self):
        self.note(seed=1, prompts=1, blocks=100, keys="memory")
        self.look(1, [3])
        between = self.moment()
        self.look(2, [3])
        loaded = self.load()
        self.assertEqual(loaded.settings(between).keys, "memory")
        self.assertEqual(loaded.promised(between), set())

    def test_with_keys_on_disk_what_two_looks_found_is_promised(self):
        self.note(seed=2, prompts=3, blocks=100, keys="persist")
        self.look(1, [3])
        between = self.moment()
        self.look(2, [3])
        loaded = self.load()
        self.assertEqual(loaded.promised(between), {self.hashes[3]})
        self.assertEqual(loaded.hashes, self.hashes + recording.blocks_of(3))

    def test_an_evicted_block_is_gone_from_the_answer_on(self):
        self.look(1, [])
        before = self.moment()
        self.note(gone=7)
        loaded = self.load()
        self.assertEqual(loaded.gone(before), set())
        self.assertEqual(loaded.gone(before + 1), {recording.doomed_hash(1, 7)})
        self.assertIn(recording.doomed_hash(1, 7), loaded.all_blocks(before + 1))

    def test_an_erased_block_is_gone_until_it_is_written_again(self):
        self.look(1, [4])
        self.write(self.hashes[4])
        self.note(erasing=True)
        self.note(erased=True)
        erased = self.moment()
        self.write(self.hashes[4])
        loaded = self.load()
        self.assertEqual(loaded.gone(erased), set(self.hashes))
        self.assertEqual(loaded.gone(self.moment()), set(self.hashes) - {self.hashes[4]})

    def test_a_stream_without_notes_is_no_recording(self):
        self.stream = Stream()
        self.stream.create(1, b"/a")
        with self.assertRaises(ValueError):
            self.load()


class MountTest(unittest.TestCase):
    """The file system that records, where one can be mounted."""

    def setUp(self):
        build = pathlib.Path(os.environ["KVTIERD"]).parent.parent
        environment = mock.patch.dict(os.environ, KVTIER_BUILD_DIRECTORY=str(build))
        environment.start()
        self.addCleanup(environment.stop)
        if not world.program("kvtier-record-writes").exists() or not os.path.exists("/dev/fuse"):
            self.skipTest("no kvtier-record-writes was built, or there is no /dev/fuse")

    def test_what_was_done_to_files_can_be_done_again(self):
        with recorder.Mount() as mount:
            (mount.root / "d").mkdir()
            path = mount.root / "d/a"
            path.write_bytes(b"x" * 10_000)
            with open(path, "r+b") as file:
                file.seek(5)
                file.write(b"y")
                file.truncate(9_000)
                os.fsync(file.fileno())
            path.rename(mount.root / "d/b")
            (mount.root / "c").write_bytes(b"c")
            (mount.root / "c").unlink()
            mount.note(seen="all")
            directory = os.open(mount.root, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
            mount.end()
            events = list(write_stream.unpack(mount.stream.read_bytes()))
        disk = write_stream.Disk()
        for event in events:
            disk.advance(event)
        left = disk.cut(random.Random(1))
        self.assertEqual(left, {"/d": None, "/d/b": b"x" * 5 + b"y" + b"x" * 8_994})
        notes = [bytes(event.content) for event in events if event.kind == write_stream.NOTE]
        self.assertEqual(notes, [b'{"seen": "all"}'])

    @unittest.skipUnless(os.geteuid() == 0, "mounts a full disk as root only")
    def test_what_a_full_disk_did_not_take_is_not_recorded_as_written(self):
        with recorder.Mount() as mount:
            full = mount.root.parent / "backing"
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", full], check=True)
            try:
                file = os.open(mount.root / "a", os.O_WRONLY | os.O_CREAT, 0o600)
                written = 0
                with self.assertRaises(OSError):
                    for _ in range(40):
                        written += os.write(file, b"x" * 5_000)
                with self.assertRaises(OSError):
                    os.posix_fallocate(file, 0, 1 << 20)
                os.fsync(file)
                os.close(file)
                directory = os.open(mount.root, os.O_RDONLY)
                os.fsync(directory)
                os.close(directory)
                mount.end()
                there = (full / "a").read_bytes()
                disk = write_stream.Disk()
                for event in write_stream.unpack(mount.stream.read_bytes()):
                    disk.advance(event)
            finally:
                mount.end()
                subprocess.run(["umount", full], check=True)
        self.assertEqual(len(there), written)
        self.assertEqual(bytes(disk.cut(random.Random(1))["/a"]), there)


class SoakTest(unittest.TestCase):
    def test_memory_that_grows_to_the_end_is_told_from_memory_that_is_flat(self):
        flat = [(30, 14, 40 << 20)] * 30
        self.assertEqual(soak.grown(flat), "")
        growing = [(30, 14, (40 + i) << 20) for i in range(60)]
        self.assertIn("resident memory", soak.grown(growing))
        leaking = [(30 + i, 14, 40 << 20) for i in range(30)]
        self.assertIn("descriptors", soak.grown(leaking))

    def test_workers_of_io_uring_are_no_threads_of_the_daemon(self):
        named, done = threading.Event(), threading.Event()

        def work(name):
            ctypes.CDLL(None).prctl(15, name)  # PR_SET_NAME
            named.set()
            done.wait()

        before = soak.threads(os.getpid())
        for name, counted in ((b"iou-wrk-1234", 0), (b"worker", 1)):
            thread = threading.Thread(target=work, args=(name,))
            thread.start()
            named.wait()
            self.assertEqual(soak.threads(os.getpid()), before + counted)
            done.set()
            thread.join()
            named.clear()
            done.clear()

    def test_what_is_allocated_at_the_beginning_is_no_growth(self):
        samples = [(30, 14, min(40, 10 + i) << 20) for i in range(120)]
        self.assertEqual(soak.grown(samples), "")


if __name__ == "__main__":
    unittest.main()
