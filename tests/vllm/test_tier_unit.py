# SPDX-License-Identifier: Apache-2.0
"""The parts of the vLLM tier, without vLLM and without a daemon."""

import mmap
import os
import tempfile
import threading
import types
import unittest

import numpy as np

from fake_region import FakeDaemon
from kvtier import Presence, Retention
from kvtier._host_view import NotSharedError, find_host_view
from kvtier._link import LinkState
from kvtier.vllm import identity
from kvtier.vllm.link import LookupLink
from kvtier.vllm.rows import Chains, block_hash
from kvtier.vllm.transfers import Job, Transfers

ROW_BYTES = 4096
ROWS = 8
# For what another thread does; only a failing test waits so long.
PATIENCE_S = 30


def key(number, group=0):
    return number.to_bytes(32, "little") + group.to_bytes(4, "big")


def spec(tokens_per_block=(32,), blocks_per_chunk=1, **config):
    """As much of an OffloadingSpec as the tier reads."""
    groups = [
        types.SimpleNamespace(group_id=i, tokens_per_block=tokens, layer_names=(f"layer.{i}",))
        for i, tokens in enumerate(tokens_per_block)
    ]
    sizes = dict.fromkeys(("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size"), 1)
    settings = {
        "groups": groups,
        "model": types.SimpleNamespace(name="org/model", dtype="bfloat16"),
        "cache": types.SimpleNamespace(tokens_per_hash=tokens_per_block[0]),
        "parallel": types.SimpleNamespace(**sizes),
        "kv_cache_layout": "LBHNC",
        **config,
    }
    return types.SimpleNamespace(
        config=types.SimpleNamespace(**settings),
        tokens_per_block=tuple(tokens_per_block),
        blocks_per_chunk=blocks_per_chunk,
    )


def engine(**model):
    """As much of a VllmConfig as the tier reads."""
    configuration = {"rope_theta": 10000.0, "_name_or_path": "anywhere"}
    settings = {
        "model": "org/model",
        "revision": "main",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "quantization": None,
        "seed": 0,
        "hf_config": types.SimpleNamespace(to_dict=lambda: configuration, _commit_hash=None),
        **model,
    }
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(**settings),
        cache_config=types.SimpleNamespace(prefix_caching_hash_algo="sha256"),
        load_config=types.SimpleNamespace(load_format="auto"),
    )


class HostViewTest(unittest.TestCase):
    def map_file(self, path, offset=0):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, offset + ROWS * ROW_BYTES)
        memory = mmap.mmap(fd, ROWS * ROW_BYTES, mmap.MAP_SHARED, offset=offset)
        rows = np.frombuffer(memory, dtype=np.int8).reshape(ROWS, ROW_BYTES)
        return fd, memoryview(rows)

    def check(self, view, expected_offset):
        """A byte written into the file at the place found shows in the view."""
        found = find_host_view(view)
        self.addCleanup(found.close)
        sizes = (found.rows, found.row_bytes, found.row_stride)
        self.assertEqual(sizes, (ROWS, ROW_BYTES, ROW_BYTES))
        self.assertEqual(found.offset, expected_offset)
        self.assertEqual(found.file_bytes, expected_offset + ROWS * ROW_BYTES)
        os.pwrite(found.fd, b"\x2a", found.offset + 5 * found.row_stride + 7)
        self.assertEqual(view[5, 7], 42)

    def test_the_file_behind_a_shared_mapping_is_found(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            _, view = self.map_file(file.name)
            self.check(view, 0)

    def test_a_mapping_may_begin_within_the_file_whose_name_is_gone(self):
        path = tempfile.mktemp(dir="/dev/shm")
        _, view = self.map_file(path, offset=mmap.PAGESIZE)
        os.unlink(path)
        self.check(view, mmap.PAGESIZE)

    def test_a_mapping_that_the_kernel_shows_in_parts_is_one(self):
        path = tempfile.mktemp(dir="/dev/shm")
        fd, _ = self.map_file(path)
        os.unlink(path)
        memory = mmap.mmap(fd, ROWS * ROW_BYTES, mmap.MAP_SHARED)
        memory.madvise(mmap.MADV_DONTFORK, 2 * mmap.PAGESIZE, mmap.PAGESIZE)
        self.check(memoryview(np.frombuffer(memory, np.int8).reshape(ROWS, ROW_BYTES)), 0)

    def test_private_memory_is_refused(self):
        for memory in (np.zeros((ROWS, ROW_BYTES), np.int8), np.zeros((1, 1 << 24), np.int8)):
            with self.assertRaises(NotSharedError):
                find_host_view(memoryview(memory))

    def test_a_view_without_rows_is_refused(self):
        for view in (np.zeros(ROW_BYTES), np.zeros((4, 4, 4)), np.zeros((ROWS, ROW_BYTES)).T):
            with self.assertRaises(ValueError):
                find_host_view(memoryview(view))


class IdentityTest(unittest.TestCase):
    ROOT = bytes(range(32))

    def record(self, the_spec=None, the_engine=None, row_bytes=ROW_BYTES, root=ROOT, label=""):
        the_spec, the_engine = the_spec or spec(), the_engine or engine()
        facts = identity.row_facts(the_spec, the_engine, row_bytes, "0.32.0", label)
        weights = identity.loaded_weights(the_engine, label) or "unknown"
        made = facts.record(root, weights, [identity.row_group(the_spec, row_bytes)])
        self.assertEqual(made.layout().block_stride, made.groups[0].layer_bytes)  # or it raises
        return made

    def test_the_same_engine_has_the_same_record(self):
        self.assertEqual(self.record(), self.record())
        self.assertEqual(self.record().groups[0].layer_bytes, ROW_BYTES)

    def test_whatever_changes_the_bytes_changes_the_record(self):
        rope = types.SimpleNamespace(to_dict=lambda: {"rope_theta": 5e5}, _commit_hash=None)
        commit = types.SimpleNamespace(to_dict=engine().model_config.hf_config.to_dict,
                                       _commit_hash="abc")
        dummy, scales, fp8 = engine(), engine(), spec()
        dummy.load_config.load_format = "dummy"
        scales.cache_config.calculate_kv_scales = True
        scales.kv_transfer_config = types.SimpleNamespace(engine_id="one")
        fp8.config.model.dtype = "fp8"
        wide = spec()
        wide.config.parallel.tp_size = 2
        records = [
            self.record(),
            self.record(the_engine=engine(model="org/other")),
            self.record(the_engine=engine(quantization="fp8")),
            self.record(the_engine=engine(dtype="float16")),
            self.record(the_engine=engine(hf_config=rope)),
            self.record(the_engine=engine(hf_config=commit)),
            self.record(the_engine=dummy),
            self.record(the_engine=scales),
            self.record(the_spec=fp8),
            self.record(the_spec=wide),
            self.record(the_spec=spec(kv_cache_layout="BLNHC")),
            self.record(the_spec=spec(blocks_per_chunk=2)),
            self.record(the_spec=spec((64,))),
            self.record(root=bytes(32)),
            self.record(row_bytes=2 * ROW_BYTES),
            self.record(label="a"),
            self.record(label="b"),
        ]
        for i, one in enumerate(records):
            for other in records[:i]:
                self.assertNotEqual(one, other)

    def directory(self, weights, times=None):
        """The path of a model with these bytes as its weights."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "model.safetensors")
        with open(path, "wb") as file:
            file.write(weights)
        if times is not None:
            os.utime(path, times)
        return directory.name

    def test_the_same_weights_at_another_path_and_time_are_the_same(self):
        first = self.record(the_engine=engine(model=self.directory(b"weights", (1, 1))))
        again = self.record(the_engine=engine(model=self.directory(b"weights", (2, 2))))
        self.assertEqual(first, again)

    def test_other_weights_with_the_same_size_and_times_are_others(self):
        first = self.record(the_engine=engine(model=self.directory(b"weights", (1, 1))))
        other = self.record(the_engine=engine(model=self.directory(b"Weights", (1, 1))))
        self.assertNotEqual(first, other)

    def test_weights_that_nobody_can_tell_have_no_name_but_the_user_s(self):
        in_a_bucket = engine(model=self.directory(b"w"), model_weights="s3://bucket/model")
        with tempfile.TemporaryDirectory() as empty:
            for unknown in (engine(), in_a_bucket, engine(model=empty)):
                self.assertIsNone(identity.loaded_weights(unknown, ""))
                self.assertEqual(identity.loaded_weights(unknown, "mine"), "named:mine")

    def test_a_commit_of_the_hub_names_weights(self):
        config = types.SimpleNamespace(to_dict=dict, _commit_hash="c0ffee")
        self.assertEqual(identity.loaded_weights(engine(hf_config=config), ""), "commit:c0ffee")

    def test_a_draft_model_s_weights_are_weights(self):
        the_engine = engine(model=self.directory(b"weights"))
        names = {identity.loaded_weights(the_engine, "")}
        for weights in (b"one draft", b"another"):
            draft = self.directory(weights)
            the_engine.speculative_config = types.SimpleNamespace(method="draft", model=draft)
            names.add(identity.loaded_weights(the_engine, ""))
        self.assertEqual(len(names), 3)
        self.assertNotIn(None, names)

    def test_long_names_stay_different(self):
        names = ["org/" + "x" * 300, "org/y" + "x" * 300]
        records = [self.record(the_engine=engine(model=name)) for name in names]
        self.assertNotEqual(records[0].name, records[1].name)

    def test_what_cannot_be_identified_is_refused(self):
        with self.assertRaises(identity.UnknownModelError):
            identity.row_facts(spec(), None, ROW_BYTES, "0.32.0")
        identity.row_facts(spec(), None, ROW_BYTES, "0.32.0", label="mine")
        with self.assertRaises(ValueError):
            self.record(root=bytes(16))


class RowsTest(unittest.TestCase):
    def request(self, ends, name="r"):
        return types.SimpleNamespace(req_id=name, get_offload_key_position=ends.get)

    def test_blocks_of_other_groups_have_other_hashes(self):
        self.assertEqual(block_hash(key(7)), key(7)[:32])
        hashes = {block_hash(key(7, group)) for group in range(3)}
        self.assertEqual(len(hashes), 3)
        self.assertEqual({len(one) for one in hashes}, {32})

    def test_a_request_s_blocks_are_a_chain_over_several_stores(self):
        chains = Chains(spec(blocks_per_chunk=2))
        request = self.request({key(i): 64 * (i + 1) for i in range(4)})
        first = chains.store_rows([key(0), key(1)], request, Retention.EXTENDED)
        self.assertEqual(first.parents, [None, block_hash(key(0))])
        self.assertEqual(first.depths.tolist(), [0, 1])
        self.assertEqual(first.tokens.tolist(), [64, 64])
        then = chains.store_rows([key(2), key(3)], request, Retention.EXTENDED)
        self.assertEqual(then.parents, [block_hash(key(1)), block_hash(key(2))])
        self.assertEqual(then.depths.tolist(), [2, 3])
        chains.forget("r")
        again = chains.store_rows([key(3)], request, Retention.EXTENDED)
        self.assertEqual(again.parents, [None])

    def test_groups_have_chains_of_their_own(self):
        chains = Chains(spec((32, 64)))
        ends = {key(0): 32, key(1): 64, key(1, 1): 64, key(2, 1): 128}
        rows = chains.store_rows(list(ends), self.request(ends), Retention.MEMORY)
        parents = [None, block_hash(key(0)), None, block_hash(key(1, 1))]
        self.assertEqual(rows.parents, parents)
        self.assertEqual(rows.tokens.tolist(), [32, 32, 64, 64])
        self.assertEqual(rows.depths.tolist(), [0, 1, 0, 1])

    def test_a_vllm_that_does_not_say_where_blocks_end_has_chains_of_one(self):
        rows = Chains(spec()).store_rows(
            [key(0), key(1)], types.SimpleNamespace(req_id="r"), Retention.EXTENDED
        )
        self.assertEqual(rows.parents, [None, None])


class LinkCase(unittest.TestCase):
    """A link to a fake daemon; `answers` get the daemon's requests."""

    def setUp(self):
        self.daemon = FakeDaemon()
        self.rows = np.zeros((ROWS, ROW_BYTES), np.uint8)
        self.answers, self.answered = [], threading.Condition()

    def open_link(self, attach=None):
        attach = attach or (lambda: self.daemon.attach(self.rows))
        link = LookupLink(attach, self.on_answer, retry_min_s=0.001, retry_max_s=0.002)
        self.addCleanup(link.close)
        return link

    def on_answer(self, answer):
        with self.answered:
            self.answers.append(answer)
            self.answered.notify_all()

    def ask(self, link, *numbers):
        """The answer to one question."""
        count = len(self.answers)
        link.ask([key(number) for number in numbers])
        with self.answered:
            self.assertTrue(self.answered.wait_for(lambda: len(self.answers) > count, PATIENCE_S))
            return self.answers[count][1]

    def ask_until(self, link, expected):
        """Asks again until the answer is as expected."""
        for _ in range(100_000):
            if self.ask(link, 1) == expected:
                return
        self.fail(f"never answered {expected}")


class TransfersTest(LinkCase):
    def setUp(self):
        super().setUp()
        self.link = self.open_link()
        self.ask_until(self.link, [Presence(0)])
        self.transfers = Transfers(self.link, settle_s=0.01)
        self.chains = Chains(spec())

    def store(self, job, *numbers):
        keys = [key(number) for number in numbers]
        request = types.SimpleNamespace(req_id="r")
        rows = np.array(numbers, dtype=np.uint32)
        what = self.chains.store_rows(keys, request, Retention.EXTENDED)
        self.transfers.store(Job(job, False, keys), rows, what)

    def load(self, job, *numbers, into):
        keys = [key(number) for number in numbers]
        hashes = [block_hash(one) for one in keys]
        self.transfers.load(Job(job, True, keys), np.array(into, dtype=np.uint32), hashes)

    def test_rows_come_back_as_they_were_stored(self):
        self.rows[1], self.rows[2] = 11, 22
        self.store(7, 1, 2)
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.failed, ended.skipped), (7, {}, 0))
        self.load(8, 2, 1, into=(4, 5))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.copied_keys(), [key(2), key(1)])
        self.assertEqual((self.rows[4, 0], self.rows[5, 0]), (22, 11))
        self.store(9, 1)
        self.assertEqual([ended.skipped for ended in self.transfers.take_ended()], [1])

    def test_loads_of_the_first_step_wait_until_the_region_is_open(self):
        """Otherwise the first request of an engine would compute blocks that the daemon has."""
        self.store(1, 1)
        too_early = [None, None, None]

        def attach():
            return too_early.pop() if too_early else self.daemon.attach(self.rows)

        self.transfers = Transfers(self.open_link(attach), settle_s=0)
        self.load(2, 1, into=(3,))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.copied_keys(), [key(1)])

    def test_loads_of_the_first_step_fail_if_there_is_no_daemon(self):
        self.daemon.reachable = False
        self.transfers = Transfers(self.open_link(), settle_s=0)
        self.load(2, 1, into=(3,))
        self.transfers.drain()
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unavailable"})

    def test_a_load_that_finds_the_daemon_gone_is_begun_by_the_next_one(self):
        """Or a worker that has not looked since the restart would compute what its scheduler was
        promised."""
        self.store(1, 1)
        self.transfers.take_ended()
        self.daemon.restart()
        self.load(2, 1, into=(3,))
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.copied_keys()), (2, [key(1)]))

    def test_a_store_that_finds_the_daemon_gone_is_begun_by_the_next_one(self):
        self.daemon.restart()
        self.store(1, 1)
        self.transfers.drain()
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.copied_keys()), (1, [key(1)]))
        self.assertEqual(set(self.daemon.blocks), {block_hash(key(1))})

    def test_stores_of_the_first_step_begin_when_the_region_is_open(self):
        too_early = [None, None, None]

        def attach():
            return too_early.pop() if too_early else self.daemon.attach(self.rows)

        self.transfers = Transfers(self.open_link(attach), settle_s=0)
        self.store(1, 1)
        self.transfers.drain()
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.copied_keys(), [key(1)])

    def test_a_store_does_not_wait_for_ever_for_a_daemon_that_does_not_answer(self):
        self.transfers = Transfers(self.open_link(lambda: None), settle_s=0)
        self.store(1, 1)
        self.assertEqual(self.transfers.take_ended(), [])
        self.transfers.drain()
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unavailable"})

    def test_a_job_is_reported_only_when_its_transfer_has_ended(self):
        self.daemon.region.hold = True
        self.store(1, 1)
        self.store(2, 2)
        self.assertEqual(self.transfers.take_ended(), [])
        self.daemon.region.release()
        self.assertEqual({ended.job.number for ended in self.transfers.take_ended()}, {1, 2})
        self.assertEqual(self.transfers.take_ended(), [])

    def turn(self):
        """The engine gets other weights."""
        self.transfers.turn()
        self.link.reopen()

    def test_a_load_that_other_weights_overtake_fails_when_it_has_ended(self):
        self.store(1, 1)
        self.transfers.take_ended()
        old = self.daemon.region
        old.hold = True
        self.load(2, 1, into=(4,))
        self.turn()
        self.assertEqual(self.transfers.take_ended(), [])
        old.release()
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.failed), (2, {0: "old_epoch"}))

    def test_a_load_that_had_ended_before_the_weights_changed_fails_too(self):
        self.store(1, 1)
        self.load(2, 1, into=(4,))
        self.transfers.drain()
        self.turn()
        ended = {one.job.number: one.failed for one in self.transfers.take_ended()}
        self.assertEqual(ended, {1: {}, 2: {0: "old_epoch"}})

    def test_a_store_that_was_begun_goes_on_where_it_was_begun(self):
        old = self.daemon.region
        old.hold = True
        self.store(1, 1)
        self.turn()
        self.load(2, 9, into=(4,))  # waits for the region of the new weights
        self.assertIsNot(self.daemon.region, old)
        old.release()
        ended = {one.job.number: one.failed for one in self.transfers.take_ended()}
        self.assertEqual(ended, {1: {}, 2: {0: "unknown"}})

    def test_a_store_that_has_not_begun_when_the_weights_change_never_does(self):
        self.transfers = Transfers(self.open_link(lambda: None), settle_s=0)
        self.store(1, 1)
        self.turn()
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "old_epoch"})
        self.assertEqual(self.daemon.blocks, {})

    def test_of_a_load_what_could_be_copied_is_kept(self):
        self.store(1, 1)
        self.transfers.take_ended()
        self.load(2, 9, 1, into=(3, 4))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unknown"})
        self.assertEqual((ended.copied_keys(), ended.failed_keys()), ([key(1)], [key(9)]))

    def test_jobs_under_way_when_the_daemon_dies_fail_once(self):
        self.daemon.region.hold = True
        self.store(1, 1, 2)
        self.daemon.die()
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "unavailable", 1: "unavailable"})
        self.store(2, 1)
        self.transfers.drain()
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.failed), (2, {0: "unavailable"}))
        self.assertIs(self.link.state, LinkState.DOWN)

    def test_a_load_that_was_cut_off_is_not_reported_at_once(self):
        """Or its row would be used while the daemon may still write it."""
        self.store(1, 1)
        self.transfers.take_ended()
        self.daemon.region.hold = True
        self.load(2, 1, into=(4,))
        self.daemon.die()
        self.assertEqual(self.transfers.take_ended(), [])
        self.transfers.drain()
        (ended,) = self.transfers.take_ended()
        self.assertEqual((ended.job.number, ended.failed), (2, {0: "unavailable"}))

    def test_draining_waits_for_transfers(self):
        region = self.daemon.region
        region.hold = True
        self.store(1, 1)
        drained = threading.Thread(target=self.transfers.drain)
        drained.start()
        region.release()
        drained.join(PATIENCE_S)
        self.assertFalse(drained.is_alive())
        self.assertEqual([ended.job.number for ended in self.transfers.take_ended()], [1])

    def test_a_refused_transfer_is_a_failed_job(self):
        def refuse(*_):
            raise ValueError("bad rows")

        self.daemon.region.load_many = refuse
        with self.assertLogs("vllm.kvtier", "WARNING"):
            self.load(1, 1, into=(0,))
        (ended,) = self.transfers.take_ended()
        self.assertEqual(ended.failed, {0: "refused"})


if __name__ == "__main__":
    unittest.main()
