# SPDX-License-Identifier: Apache-2.0
"""The pool's memory as numpy arrays."""

import dataclasses
import gc
import subprocess
import sys
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    RECORD,
    DaemonTestCase,
    LatentTestCase,
    prompt,
)
from kvtier import DType
from kvtier.model import ViewPlan

MIB = 1 << 20


class LayoutTest(unittest.TestCase):
    def test_the_layout_of_llama_3_1_8b_is_the_documented_one(self):
        record = kvtier.ModelRecord("llama", 32, 8, 128, 128)
        layout = record.layout()
        self.assertEqual(layout.block_stride, 2 * MIB)
        self.assertEqual(layout.layer_stride, 64 * 1024)
        self.assertEqual(layout.v_offset, 32 * 1024)
        plan = ViewPlan(record, layout, blocks=1000)
        self.assertEqual(plan.k(31).offset, 31 * 64 * 1024)
        self.assertEqual(plan.v(0).shape, (1000, 16, 8, 128))
        self.assertEqual(plan.kv(0).strides, (2 * MIB, 32 * 1024, 2048, 256, 2))

    def test_scales_lie_behind_the_keys_and_values_of_their_layer(self):
        record = kvtier.ModelRecord("llama", 32, 8, 128, 128, dtype="fp8", scale_bytes=8)
        layout = record.layout()
        self.assertEqual(layout.layer_stride, 32 * 1024 + 16 * 8 * 8)
        scales = ViewPlan(record, layout, blocks=1000).scales(1)
        self.assertEqual(scales.k.offset, layout.layer_stride + 32 * 1024)
        self.assertEqual(scales.v.offset, scales.k.offset + 4)
        self.assertEqual(scales.k.shape, (1000, 16, 8))
        self.assertEqual(scales.k.strides, (layout.block_stride, 64, 8))

    def test_a_record_without_scales_by_token_has_none(self):
        for scale_bytes in (0, 4, 16):
            record = kvtier.ModelRecord("m", 1, 1, 8, 8, dtype="fp8", scale_bytes=scale_bytes)
            with self.assertRaises(kvtier.UnsupportedError) as raised:
                ViewPlan(record, record.layout(), blocks=1).scales(0)
            self.assertEqual(raised.exception.reason, "no_scales_by_token")

    def test_a_field_out_of_range_is_named(self):
        for field, value in (("layers", 0), ("kv_heads", 1 << 20), ("block_tokens", -1)):
            with self.assertRaises(kvtier.InvalidArgumentError) as raised:
                dataclasses.replace(RECORD, **{field: value}).layout()
            self.assertIn(field, str(raised.exception))

    def test_a_dtype_may_be_a_text_or_a_dtype_of_numpy_or_torch(self):
        class TorchLike:
            def __str__(self):
                return "torch.float8_e4m3fn"

        named = {
            "bf16": DType.BFLOAT16,
            "float16": DType.FLOAT16,
            "FP8": DType.FLOAT8_E4M3,
            np.float32: DType.FLOAT32,
            np.dtype("int8"): DType.INT8,
            TorchLike(): DType.FLOAT8_E4M3,
            DType.FLOAT16: DType.FLOAT16,
        }
        for given, expected in named.items():
            record = kvtier.ModelRecord("m", 1, 1, 8, 8, dtype=given)
            self.assertIs(record.dtype, expected)
            self.assertIs(kvtier.KvGroup(1, 1, 8, 8, dtype=given).dtype, expected)
        for wrong in ("float12", 99, None):
            with self.assertRaisesRegex(kvtier.InvalidArgumentError, "bfloat16"):
                kvtier.ModelRecord("m", 1, 1, 8, 8, dtype=wrong)

    def test_an_opaque_group_has_sizes_and_no_views(self):
        group = kvtier.KvGroup(3, block_tokens=32, layer_bytes=4096)
        layout = kvtier.ModelRecord("opaque", groups=[group]).layout()
        self.assertEqual((layout.block_stride, layout.layer_stride), (3 * 4096, 4096))
        self.assertEqual((layout.k_token_stride, layout.element_bytes), (0, 0))
        plan = ViewPlan(group, layout, blocks=2)
        for view in (plan.k, plan.v, plan.kv):
            with self.assertRaisesRegex(kvtier.UnsupportedError, "opaque_layout"):
                view(0)

    def test_heads_and_bytes_of_a_layer_exclude_each_other(self):
        group = kvtier.KvGroup(3, 1, 8, 8, layer_bytes=4096)
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "bad_kv_heads"):
            kvtier.ModelRecord("both", groups=[group]).layout()

    def test_interleaved_keys_and_values_lie_beside_each_other(self):
        record = dataclasses.replace(RECORD, kv_layout=kvtier.KvLayout.INTERLEAVED)
        layout = record.layout()
        self.assertEqual((layout.v_offset, layout.k_head_stride), (32 * 4, 2 * 32 * 4))
        self.assertEqual(layout.k_token_stride, RECORD.kv_heads * layout.k_head_stride)
        self.assertEqual(layout.block_stride, RECORD.layout().block_stride)
        plan = ViewPlan(record, layout, blocks=8)
        self.assertEqual(plan.v(1).offset - plan.k(1).offset, 32 * 4)
        self.assertEqual(plan.kv(1).shape, (8, 2, 16, 2, 32))
        with self.assertRaisesRegex(kvtier.UnsupportedError, "model_layout"):
            opaque = kvtier.KvGroup(3, layer_bytes=64, kv_layout=kvtier.KvLayout.INTERLEAVED)
            kvtier.ModelRecord("opaque", groups=[opaque]).layout()

    def test_k_and_v_of_unequal_size_have_no_common_array(self):
        record = dataclasses.replace(RECORD, k_head_dim=24)
        plan = ViewPlan(record, record.layout(), blocks=8)
        self.assertEqual(plan.k(0).shape[-1], 24)
        self.assertEqual(plan.v(0).shape[-1], 32)
        with self.assertRaises(kvtier.UnsupportedError):
            plan.kv(0)


class MemoryTest(DaemonTestCase):
    def test_each_element_lies_where_the_protocol_puts_it(self):
        pool = self.attach()
        memory = pool.memory()
        layout = pool.model.layout
        flat = memory.block_bytes()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            for layer in range(RECORD.layers):
                kv = memory.layer(layer)
                kv.k[block, 3, 1, 5] = 1.5 + layer
                kv.v[block, 7, 0, 2] = -2.5 - layer
                k = layer * layout.layer_stride + ((3 * 2 + 1) * 32 + 5) * 4
                v = layer * layout.layer_stride + layout.v_offset + (7 * 2 * 32 + 2) * 4
                self.assertEqual(flat[block, k : k + 4].view(np.float32)[0], 1.5 + layer)
                self.assertEqual(flat[block, v : v + 4].view(np.float32)[0], -2.5 - layer)

    def test_all_layers_together_cover_a_block_exactly_once(self):
        pool = self.attach()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            flat = pool.memory().block_bytes()[block]
            flat[:] = 0
            for layer in range(RECORD.layers):
                kv = pool.layer(layer)
                kv.k[block] += 1
                kv.v[block] += 1
            np.testing.assert_array_equal(flat.view(np.float32), np.ones(BLOCK_BYTES // 4))

    def test_scales_and_elements_together_cover_a_block_exactly_once(self):
        pool = self.attach(kvtier.ModelRecord("e4m3", 2, 2, 32, 32, dtype="fp8", scale_bytes=8))
        memory = pool.memory()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            memory.block_bytes()[block] = 0
            for layer in range(2):
                kv, scales = memory.layer(layer), memory.layer_scales(layer)
                for array in (kv.k, kv.v, scales.k.view(np.uint32), scales.v.view(np.uint32)):
                    array[block] += np.array(0x01010101, np.uint32).astype(array.dtype)
            self.assertTrue((memory.block_bytes()[block] == 1).all())

    def test_arrays_share_memory_between_processes_mappings(self):
        writer, reader = self.attach(), self.attach()
        with writer.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            before = reader.layer(0).k[block, 0, 0, 0].copy()
            writer.layer(0).k[block, 0, 0, 0] = before + 1
            self.assertEqual(reader.layer(0).k[block, 0, 0, 0], before + 1)

    def test_every_dtype_has_a_view_of_its_size(self):
        expected = {
            DType.FLOAT32: "float32",
            DType.FLOAT16: "float16",
            DType.BFLOAT16: "uint16",
            DType.FLOAT8_E4M3: "uint8",
            DType.FLOAT8_E5M2: "uint8",
            DType.INT8: "int8",
        }
        for dtype, name in expected.items():
            with self.subTest(dtype):
                record = kvtier.ModelRecord(f"model of {name}", 1, 1, 8, 8, dtype=dtype)
                connection = self.connect()
                pool = connection.attach(connection.register_model(record), pool_bytes=65536)
                kv = pool.layer(0)
                self.assertEqual(kv.k.dtype, np.dtype(name))
                self.assertEqual(kv.k.shape, (pool.info().blocks, BLOCK_TOKENS, 1, 8))
                self.assertEqual(kv.k.strides[-1], dtype.itemsize)
                self.assertTrue(kv.k.flags.writeable)
                connection.close()

    def test_layers_outside_the_model_are_refused(self):
        memory = self.attach().memory()
        for layer in (-1, RECORD.layers):
            with self.assertRaises(kvtier.InvalidArgumentError):
                memory.layer(layer)

    def test_the_memory_is_the_same_object_while_the_daemon_is(self):
        pool = self.attach()
        self.assertIs(pool.memory(), pool.memory())

    def test_arrays_outlive_everything_they_came_from(self):
        pool = self.attach()
        got = pool.acquire(new_blocks=1)
        k = pool.layer(0).k[got.new_blocks[0].index]
        k[:] = 3
        pool.connection.close()
        del pool, got
        gc.collect()
        self.daemon.kill()
        self.assertTrue((k == 3).all())

    def test_a_pool_of_host_memory_has_no_arrays_for_a_gpu(self):
        with self.assertRaises(kvtier.UnsupportedError):
            self.attach().memory().cuda_layer(0)


class OwnershipTest(DaemonTestCase):
    def test_closing_a_connection_closes_what_came_from_it(self):
        pool = self.attach()
        sequence = pool.open_sequence(prompt(blocks=2))
        pool.connection.close()
        self.assertTrue(pool.closed and sequence.closed)
        for call in (pool.info, sequence.info, pool.connection.stats):
            with self.assertRaises(kvtier.InvalidArgumentError) as raised:
                call()
            self.assertEqual(raised.exception.reason, "closed")

    def test_a_sequence_keeps_its_pool_and_connection_alive(self):
        watcher = self.connect()
        connection = kvtier.connect(self.daemon.socket)
        pool = connection.attach(connection.register_model(RECORD))
        sequence = pool.open_sequence(prompt(blocks=2))
        del connection, pool
        gc.collect()
        self.assertTrue(sequence.check())
        self.assertEqual(len(sequence.block_table()), 2)
        del sequence
        gc.collect()
        watcher.attach(watcher.register_model(RECORD))
        self.daemon.settle()
        self.assertEqual(watcher.stats().pool_blocks_private, 0)

    def test_a_model_of_another_connection_is_taken_by_its_number_here(self):
        first, second = self.connect(), self.connect()
        here = first.register_model(RECORD)
        for known in (kvtier.ModelRecord("another", 1, 1, 8, 8), RECORD):
            second.register_model(known)
            with second.attach(here, pool_bytes=4 * BLOCK_BYTES) as pool:
                self.assertEqual(pool.model.record, RECORD)
                self.assertEqual(pool.info().block_bytes, BLOCK_BYTES)

    def test_threads_that_still_wait_when_the_program_ends_do_no_harm(self):
        code = (
            "import kvtier, sys, threading, time\n"
            "connection = kvtier.connect(sys.argv[1])\n"
            "started = threading.Event()\n"
            "def work():\n"
            "    while True:\n"
            "        connection.ping()\n"
            "        started.set()\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "started.wait()\n"
        )
        for _ in range(5):
            done = subprocess.run([sys.executable, "-c", code, self.daemon.socket])
            self.assertEqual(done.returncode, 0)

    def test_closing_twice_is_closing_once(self):
        pool = self.attach()
        for _ in range(2):
            pool.close()
            pool.connection.close()

    def test_leaving_the_with_statement_closes(self):
        with kvtier.connect(self.daemon.socket) as connection:
            model = connection.register_model(RECORD)
            with connection.attach(model) as pool, pool.open_sequence([1, 2]) as sequence:
                self.assertFalse(sequence.closed)
            self.assertTrue(pool.closed and sequence.closed)
        self.assertTrue(connection.closed)


class LatentMemoryTest(LatentTestCase):
    def test_a_latent_cache_is_one_array_of_rows_side_by_side(self):
        pool = self.attach(self.record)
        self.assertEqual(pool.info().block_bytes, 61 * BLOCK_TOKENS * 576 * 2)
        for layer in (0, 60):
            kv = pool.layer(layer)
            self.assertEqual(kv.k.shape, (pool.info().blocks, BLOCK_TOKENS, 1, 576))
            self.assertEqual(kv.k.strides[1], 576 * 2)
            self.assertEqual(kv.v.size, 0)


if __name__ == "__main__":
    unittest.main()
