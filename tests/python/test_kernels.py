# SPDX-License-Identifier: Apache-2.0
"""Refusals of kvtier.kernels, and its arguments for the library, without a GPU: everything but
attention."""

import ctypes
import os
import unittest
from unittest import mock

import kvtier
from harness.c_layout import COMPILER, declared_functions, differences
from harness.fake_kernels import (
    BLOCK,
    DIM,
    HEADS,
    K_ADDRESS,
    TOKENS,
    V_ADDRESS,
    KernelsTest,
    pool_layer,
    queries,
)
from harness.fake_tensor import FakeTensor
from harness.paths import SOURCE
from kvtier import kernels
from kvtier.kernels import _launch
from kvtier.kernels._launch import abi

try:
    import torch
except ImportError:
    torch = None

HEADERS = SOURCE / "kernels" / "include" / "kvtier"


class AbiTest(unittest.TestCase):
    def test_every_function_of_the_headers_is_declared(self):
        texts = [path.read_text() for path in HEADERS.glob("*.h")]
        self.assertEqual(declared_functions(texts, "KVT_KERNEL_API"), set(abi.functions))

    @unittest.skipUnless(COMPILER, "no C++ compiler")
    def test_every_structure_is_laid_out_as_in_the_headers(self):
        self.assertGreaterEqual(len(abi.structures), 11)
        self.assertEqual(differences(abi, "kvtier/kernel_table.h", "kernels/include"), "")

    def test_a_library_of_another_version_is_refused(self):
        other = mock.Mock(_name="libkvtier_kernels.so")
        other.kvt_kernels_table.return_value = None
        with self.assertRaises(kvtier.LibraryNotFoundError):
            _launch.check_version(other)
        other.kvt_kernels_table.assert_called_once_with(abi.KVT_KERNELS_ABI)

    def test_a_library_whose_structures_have_other_sizes_is_refused(self):
        table = abi.kvt_kernel_table(
            table_bytes=ctypes.sizeof(abi.kvt_kernel_table),
            decode_params_bytes=ctypes.sizeof(abi.kvt_decode_params),
            prefill_params_bytes=ctypes.sizeof(abi.kvt_prefill_params),
            kv_write_params_bytes=ctypes.sizeof(abi.kvt_kv_write_params),
        )
        other = mock.Mock(_name="libkvtier_kernels.so")
        other.kvt_kernels_table.return_value = ctypes.pointer(table)
        _launch.check_version(other)
        table.prefill_params_bytes += 8
        with self.assertRaisesRegex(kvtier.LibraryNotFoundError, "kvt_prefill_params"):
            _launch.check_version(other)

    @unittest.skipUnless(_launch.LIBRARY_VARIABLE in os.environ, "the kernels were not built")
    def test_the_library_is_loaded_with_its_functions_declared(self):
        library = _launch.load()
        self.assertEqual(library.kvt_kernel_status_text.restype, ctypes.c_char_p)
        for status in (abi.KVT_KERNEL_UNSUPPORTED, abi.KVT_KERNEL_OUT_OF_MEMORY):
            self.assertTrue(library.kvt_kernel_status_text(status).decode())
        # Refused before any GPU is looked for.
        self.assertEqual(
            library.kvt_decode(ctypes.byref(abi.kvt_decode_params()), None, 0, None),
            abi.KVT_KERNEL_INVALID_ARGUMENT,
        )

    def test_a_named_library_that_is_not_there_is_an_error_that_names_it(self):
        with mock.patch.dict("os.environ", {_launch.LIBRARY_VARIABLE: "/nowhere/kernels.so"}):
            with self.assertRaises(kvtier.LibraryNotFoundError) as raised:
                _launch.load.__wrapped__()
        self.assertIn("/nowhere/kernels.so", str(raised.exception))


class CacheTest(KernelsTest):
    def test_a_pool_layer_is_described_by_its_strides(self):
        abi = kernels.PagedKv(*pool_layer()).abi
        self.assertEqual((abi.key, abi.value), (K_ADDRESS, V_ADDRESS))
        self.assertEqual((abi.block_stride, abi.token_stride, abi.head_stride), (BLOCK, 1024, 128))
        self.assertEqual((abi.kv_heads, abi.head_dim, abi.page_tokens), (HEADS, DIM, TOKENS))
        self.assertEqual(abi.dtype, 0)

    def test_a_dimension_of_one_has_the_stride_that_it_would_have(self):
        k = FakeTensor(9, 16, 1, 128, strides=(2048, 128, 5, 1))
        abi = kernels.PagedKv(k, k).abi
        self.assertEqual((abi.token_stride, abi.head_stride), (128, 128))

    def test_what_the_kernels_cannot_read_is_refused(self):
        k, v = pool_layer()
        for reason, key, value, text in (
            ("bad_key", FakeTensor(9, 16, 8), v, "[any, any, any, any]"),
            ("bad_key", FakeTensor(9, 16, 8, 128, device="cpu"), v, "on cpu, not"),
            ("bad_key", FakeTensor(9, 16, 8, 128, dtype="int64"), v, "is int64"),
            ("bad_key", FakeTensor(9, 24, 8, 128), v, "24 tokens"),
            ("bad_key", FakeTensor(9, 16, 8, 128, address=8), v, "0x8, not aligned"),
            ("bad_key", FakeTensor(9, 16, 8, 128, strides=(1, 9, 1024, 9)), v, "last dimension"),
            ("bad_key", FakeTensor(9, 16, 8, 100), v, "200] bytes"),
            ("bad_key", FakeTensor(9, 16, 8, 128, strides=(0, 1024, 128, 1)), v, "[0, "),
            ("bad_value", k, FakeTensor(1000, 16, 8, 128), "strides"),
            ("bad_value", k, FakeTensor(1000, 16, 8, 64), "[1000, 16, 8, 128]"),
            ("bad_value", k, FakeTensor(1000, 16, 8, 128, dtype="float16"), "float16"),
            ("bad_value", k, FakeTensor(1000, 16, 8, 128, device="cuda:1"), "on cuda:0"),
        ):
            with self.subTest(text), self.refused(reason, text):
                kernels.PagedKv(key, value)

    def test_scales_may_be_for_all_for_a_head_or_for_a_token_and_head(self):
        fp8 = pool_layer(dtype="float8_e4m3fn")
        for shape, expected in (
            ((), (0, 0, 0)),
            ((1,), (0, 0, 0)),
            ((HEADS,), (0, 0, 1)),
            ((1000, TOKENS, HEADS), (128, 8, 1)),
        ):
            scales = FakeTensor(*shape, dtype="float32", address=0x7300_0000)
            cache = kernels.PagedKv(*fp8, scales, scales)
            found = cache.abi.value_scales
            strides = (found.block_stride, found.token_stride, found.head_stride)
            self.assertEqual((found.values, strides), (0x7300_0000, expected), shape)
            self.assertEqual(cache.has_scales_by_token, len(shape) == 3)

    def test_scales_of_another_shape_or_for_a_wider_cache_are_refused(self):
        fp8 = pool_layer(dtype="float8_e4m3fn")
        for shape in ((HEADS + 1,), (4, 4), (1000, TOKENS, 1)):
            with self.subTest(shape), self.refused("bad_key_scales"):
                kernels.PagedKv(*fp8, FakeTensor(*shape, dtype="float32"))
        with self.refused("bad_key_scales", "bfloat16 cache"):
            kernels.PagedKv(*pool_layer(), FakeTensor(1, dtype="float32"))

    def test_tables_are_int32_and_have_room_for_the_longest_sequence(self):
        lengths = FakeTensor(2, dtype="int32")
        with self.refused("bad_block_table", "int64"):
            kernels.SequenceTables(FakeTensor(2, 9, dtype="int64"), lengths)
        with self.refused("bad_kv_lengths", "[3]"):
            kernels.SequenceTables(FakeTensor(3, 9, dtype="int32"), lengths)
        cache = kernels.PagedKv(*pool_layer())
        table = FakeTensor(2, 9, dtype="int32")
        self.assertEqual(
            kernels.SequenceTables(table, lengths).abi(TOKENS, cache.key.device).max_kv_length, 144
        )
        with self.refused("bad_max_kv_length", "145, 0 to 144"):
            kernels.SequenceTables(table, lengths, 145).abi(TOKENS, cache.key.device)


class KvWriteTest(KernelsTest):
    def setUp(self):
        super().setUp()
        self.cache = kernels.PagedKv(*pool_layer())
        self.rows = FakeTensor(5, HEADS, DIM)
        self.slots = FakeTensor(5, dtype="int64", address=0x7500_0000)

    def test_keys_that_lie_head_by_head_are_taken_as_they_are(self):
        rows = FakeTensor(5, HEADS, DIM, strides=(DIM, 5 * DIM, 1))
        kernels.kv_write(rows, self.rows, self.cache, self.slots)
        p = self.the_call().params
        self.assertEqual((p.key_token_stride, p.key_head_stride), (DIM, 5 * DIM))
        self.assertEqual((p.value_token_stride, p.tokens, p.query), (1024, 5, None))
        self.assertEqual((p.rope.style, p.slot_mapping), (0, 0x7500_0000))

    def test_the_rope_turns_the_query_in_place_unless_told_otherwise(self):
        positions = FakeTensor(5, dtype="int32")
        rope = kernels.Rope(
            kernels.RopeStyle.NEOX, positions, FakeTensor(4096, 64, dtype="float32")
        )
        query = queries(5)
        kernels.kv_write(self.rows, self.rows, self.cache, self.slots, rope=rope, query=query)
        p = self.the_call().params
        self.assertEqual((p.rope.style, p.rope.rotary_dim, p.query_heads), (1, 64, 32))
        self.assertEqual(p.query, p.query_output)
        self.assertEqual(p.query_output_token_stride, 4096)

    def test_what_does_not_fit_is_refused(self):
        write = kernels.kv_write
        with self.refused("bad_key", "[any, 8, 128]"):
            write(FakeTensor(5, 4, DIM), self.rows, self.cache, self.slots)
        with self.refused("bad_key", "float16"):
            write(FakeTensor(5, HEADS, DIM, dtype="float16"), self.rows, self.cache, self.slots)
        with self.refused("bad_slot_mapping", "int32"):
            write(self.rows, self.rows, self.cache, FakeTensor(5, dtype="int32"))
        with self.refused("bad_cos_sin", "rotary_dim 40"):
            rope = kernels.Rope(
                kernels.RopeStyle.GPTJ,
                FakeTensor(5, dtype="int32"),
                FakeTensor(9, 40, dtype="float32"),
            )
            write(self.rows, self.rows, self.cache, self.slots, rope=rope)
        with self.refused("bad_scales", "by token"):
            cache = kernels.PagedKv(*pool_layer(dtype="float8_e4m3fn"))
            write(self.rows, self.rows, cache, self.slots, dynamic_scales=True)


@unittest.skipUnless(torch, "torch is not installed")
class WorkspaceTest(unittest.TestCase):
    def setUp(self):
        self.workspace = kernels.Workspace()
        self.beside = torch.zeros(1)

    def memory(self, kernel, byte_count, shape=()):
        return self.workspace.memory(kernel, byte_count, self.beside, shape)

    def test_memory_is_zero_at_first_and_kept_until_more_is_needed(self):
        first = self.memory("decode", 1000)
        self.assertEqual((first.dtype, int(first.sum())), (torch.uint8, 0))
        first.fill_(7)
        self.assertEqual(self.memory("decode", 500).data_ptr(), first.data_ptr())
        self.assertEqual(int(first[0]), 7)
        grown = self.memory("decode", 2000)
        self.assertEqual((grown.numel(), int(grown.sum())), (2000, 0))

    def test_kernels_do_not_share_memory(self):
        first, second = self.memory("decode", 100), self.memory("append", 100)
        self.assertNotEqual(first.data_ptr(), second.data_ptr())
        self.assertEqual(self.workspace.byte_count, 200)

    def test_memory_is_zero_again_for_another_shape(self):
        self.memory("decode_shared", 100, (2, 1)).fill_(7)
        self.assertEqual(int(self.memory("decode_shared", 100, (2, 1))[0]), 7)
        self.assertEqual(int(self.memory("decode_shared", 100, (3, 1)).sum()), 0)


class MergeTest(KernelsTest):
    def test_merge_takes_dense_parts(self):
        partials = FakeTensor(3, 7, 32, DIM, dtype="float32")
        lse = FakeTensor(3, 7, 32, dtype="float32")
        kernels.merge_lse(partials, lse, queries(7))
        p = self.the_call().params
        self.assertEqual((p.parts, p.tokens, p.heads, p.head_dim), (3, 7, 32, DIM))
        self.assertEqual((p.part_stride, p.lse_part_stride), (7 * 32 * DIM, 7 * 32))
        self.library.calls.clear()
        with self.refused("bad_partial_lse"):
            kernels.merge_lse(partials, FakeTensor(3, 7, 31, dtype="float32"), queries(7))


if __name__ == "__main__":
    unittest.main()
