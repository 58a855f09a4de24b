# SPDX-License-Identifier: Apache-2.0
"""Refusals of the attention calls of kvtier.kernels, and their arguments for the library, without a
GPU."""

import math
import unittest
from unittest import mock

import kvtier
from harness.fake_kernels import BLOCK, DIM, HEADS, STREAM, KernelsTest, pool_layer, queries, tables
from harness.fake_tensor import FakeTensor
from kvtier import kernels
from kvtier.kernels import _launch
from kvtier.kernels._launch import abi


class AttentionTest(KernelsTest):
    def setUp(self):
        super().setUp()
        self.cache = kernels.PagedKv(*pool_layer())

    def test_decode_tells_the_library_everything(self):
        sinks, lse = FakeTensor(32, dtype="float32"), FakeTensor(2, 32, dtype="float32")
        query = queries(strides=(4096, 128, 1))
        out = kernels.decode(
            query,
            self.cache,
            tables(),
            soft_cap=30.0,
            window_tokens=100,
            sinks=sinks,
            split_tokens=256,
            tables_settled=True,
            lse=lse,
            workspace=self.workspace,
        )
        call = self.the_call()
        p = call.params
        self.assertEqual(call.name, "kvt_decode")
        self.assertEqual(call.more, (0x7200_0000, 4096, STREAM))
        self.assertEqual((p.query, p.output), (query.data_ptr(), out.data_ptr()))
        self.assertEqual((p.query_sequence_stride, p.query_head_stride), (4096, 128))
        self.assertEqual((p.q_heads, p.sequences.sequences, p.sequences.table_stride), (32, 2, 40))
        self.assertEqual((p.soft_cap, p.window_tokens, p.split_tokens), (30.0, 100, 256))
        self.assertEqual((p.tables_settled, p.sinks, p.lse), (1, sinks.data_ptr(), lse.data_ptr()))
        self.assertAlmostEqual(p.softmax_scale, 128**-0.5, places=6)
        self.assertEqual(p.kv.block_stride, BLOCK)

    def test_prefill_tells_where_each_sequences_queries_begin(self):
        starts = FakeTensor(3, dtype="int32", address=0x7400_0000)
        kernels.prefill(
            queries(500),
            self.cache,
            tables(),
            starts,
            splits=4,
            tables_settled=True,
            workspace=self.workspace,
        )
        p = self.the_call().params
        self.assertEqual(p.tables_settled, 1)
        self.assertEqual((p.query_tokens, p.query_starts), (500, 0x7400_0000))
        self.assertEqual((p.causal, p.splits, p.output_token_stride), (1, 4, 4096))

    def test_decode_shared_zeroes_its_workspace_again_when_shapes_or_types_change(self):
        members = FakeTensor(2, dtype="int32")
        fp8 = kernels.PagedKv(*pool_layer(dtype="float8_e4m3fn"))
        for rows, cache in ((2, self.cache), (2, self.cache), (3, self.cache), (3, fp8)):
            kernels.decode_shared(
                queries(rows),
                cache,
                tables(rows),
                tables(1),
                members,
                workspace=self.workspace,
            )
        shapes = [call.args[3] for call in self.workspace.memory.call_args_list]
        self.assertEqual(shapes[0], shapes[1])
        self.assertNotEqual(shapes[1], shapes[2])
        self.assertNotEqual(shapes[2], shapes[3])
        self.assertEqual(self.library.calls[0].params.prefixes.sequences, 1)

    def test_mla_decode_reads_one_latent_row_for_each_token(self):
        latent = FakeTensor(99, 64, 576, strides=(64 * 640, 640, 1), address=0x7700_0000_0000)
        query = FakeTensor(2, 100, 576)
        out = kernels.mla_decode(query, latent, tables(), 0.1, workspace=self.workspace)
        self.assertEqual(out.shape, (2, 100, 512))
        p = self.the_call().params
        self.assertEqual(
            (p.latent, p.block_stride, p.token_stride), (latent.data_ptr(), 40960, 640)
        )
        self.assertEqual((p.q_heads, p.page_tokens, p.output_head_stride), (100, 64, 512))
        self.assertEqual((p.query_sequence_stride, p.sequences.max_kv_length), (57600, 40 * 64))

    def test_mla_decode_takes_scales_of_a_float8_cache(self):
        latent, query = FakeTensor(99, 64, 576, dtype="float8_e4m3fn"), FakeTensor(2, 16, 576)
        for scales, strides in (
            (FakeTensor(dtype="float32"), (0, 0, 0)),
            (FakeTensor(99, 64, dtype="float32", strides=(640, 10)), (640, 10, 0)),
        ):
            self.library.calls.clear()
            kernels.mla_decode(
                query, latent, tables(), 0.1, latent_scales=scales, workspace=self.workspace
            )
            p = self.the_call().params
            own = p.latent_scales
            self.assertEqual((own.block_stride, own.token_stride, own.head_stride), strides)
            self.assertEqual((p.dtype, p.latent_dtype, own.values), (0, 2, scales.data_ptr()))
        self.library.calls.clear()
        with self.refused("bad_latent_scales", "[99, 64]"):
            kernels.mla_decode(
                query, latent, tables(), 0.1, latent_scales=FakeTensor(99, dtype="float32")
            )
        with self.refused("bad_latent_scales", "bfloat16 latent"):
            kernels.mla_decode(
                query,
                FakeTensor(99, 64, 576),
                tables(),
                0.1,
                latent_scales=FakeTensor(dtype="float32"),
            )

    def test_mla_decode_refuses_rows_of_another_length(self):
        latent, query = FakeTensor(99, 64, 576), FakeTensor(2, 16, 576)
        with self.refused("bad_query", "[2, any, 576]"):
            kernels.mla_decode(FakeTensor(2, 16, 512), latent, tables(), 0.1)
        with self.refused("bad_query", "129 heads"):
            kernels.mla_decode(FakeTensor(2, 129, 576), latent, tables(), 0.1)
        with self.refused("bad_latent", "[any, any, 576]"):
            kernels.mla_decode(query, FakeTensor(99, 64, 1, 576), tables(), 0.1)
        with self.refused("bad_latent", "48 tokens"):
            kernels.mla_decode(query, FakeTensor(99, 48, 576), tables(), 0.1)
        with self.refused("bad_output", "[2, 16, 512]"):
            kernels.mla_decode(query, latent, tables(), 0.1, output=query)
        with self.refused("bad_softmax_scale"):
            kernels.mla_decode(query, latent, tables(), 0.0)

    def test_queries_that_do_not_fit_the_cache_are_refused(self):
        for query, text in (
            (queries(3), "3 rows for 2 sequences"),
            (queries(heads=12), "12 heads of 128"),
            (FakeTensor(2, 32, 64), "32 heads of 64"),
            (queries(dtype="float16"), "float16 over a bfloat16 cache"),
            (queries(dtype="float32"), "is float32"),
            (queries(device="cpu"), "on cpu"),
            (queries(device="cuda:1"), "cuda:1"),
        ):
            with self.subTest(text), self.refused("bad_query", text):
                kernels.decode(query, self.cache, tables())

    def test_numbers_that_are_none_or_without_bound_are_refused_by_name(self):
        starts = FakeTensor(3, dtype="int32")
        latent, absorbed = FakeTensor(99, 64, 576), FakeTensor(2, 16, 576)
        for value in (math.nan, math.inf, -math.inf, -1.0, 1e39):
            for call in (
                lambda **one: kernels.decode(queries(), self.cache, tables(), **one),
                lambda **one: kernels.prefill(queries(), self.cache, tables(), starts, **one),
            ):
                for name in ("softmax_scale", "soft_cap"):
                    with self.refused(f"bad_{name}", f"{name} is {value}, not"):
                        call(**{name: value})
            with self.refused("bad_softmax_scale", f"softmax_scale is {value}, not a finite"):
                kernels.mla_decode(absorbed, latent, tables(), value)

    def test_a_split_that_cannot_be_is_refused_with_what_can(self):
        for value in (-1, 100, 128, 300):
            with self.refused("bad_split_tokens", f"{value}, not 0 or a power of two from 256"):
                kernels.decode(queries(), self.cache, tables(), split_tokens=value)

    def test_what_no_kernel_is_built_for_is_named_with_what_is(self):
        starts = FakeTensor(3, dtype="int32")

        def cache(dim, heads=1):
            return kernels.PagedKv(*(FakeTensor(9, 16, heads, dim) for _ in range(2)))

        def prefill(query, layer, table):
            return kernels.prefill(query, layer, table, starts)

        wide, many = FakeTensor(2, 4, 96), tables(9000)
        for reason, text, call in (
            ("head_dim", "96, built: 64, 128, 256", lambda: prefill(wide, cache(96), tables())),
            ("head_dim", "96, built: 64", lambda: kernels.decode(wide, cache(96), tables())),
            (
                "q_heads",
                "17 over 1 KV heads, built: 1 to 16 for each",
                lambda: kernels.decode(FakeTensor(2, 17, 64), cache(64), tables()),
            ),
            (
                "q_heads",
                "65 over 1 KV heads, built: 1 to 64 for each",
                lambda: prefill(FakeTensor(2, 65, 64), cache(64), tables()),
            ),
            (
                "sequences",
                "9000 with 8 KV heads, built: 65536 pairs",
                lambda: kernels.decode(queries(9000), self.cache, many),
            ),
        ):
            with self.subTest(text), self.assertRaises(kvtier.UnsupportedError) as raised:
                call()
            self.assertEqual(raised.exception.reason, f"unsupported_{reason}")
            self.assertIn(text, raised.exception.context)

    def test_tensors_on_the_cpu_are_refused_with_the_device_that_is_needed(self):
        starts, cpu = FakeTensor(3, dtype="int32"), queries(device="cpu")
        members, key = FakeTensor(2, dtype="int32"), FakeTensor(2, HEADS, DIM, device="cpu")
        slots = FakeTensor(2, dtype="int64")
        # As it is on a machine: torch refuses to make a CPU the current GPU.
        refuse = mock.patch.object(_launch, "on_device", side_effect=ValueError("torch"))
        with refuse:
            for call in (
                lambda: kernels.decode(cpu, self.cache, tables()),
                lambda: kernels.prefill(cpu, self.cache, tables(), starts),
                lambda: kernels.decode_shared(cpu, self.cache, tables(), tables(1), members),
                lambda: kernels.kv_write(key, key, self.cache, slots),
                lambda: kernels.PagedKv(FakeTensor(9, 16, 1, 64, device="cpu"), key),
                lambda: kernels.SequenceTables(FakeTensor(2, 4, dtype="int32", device="cpu"), key),
            ):
                with self.assertRaises(kvtier.InvalidArgumentError) as raised:
                    call()
                self.assertIn("on cpu, not", raised.exception.context)
                self.assertIn("Hopper", raised.exception.context)

    def test_results_and_lists_of_the_wrong_shape_are_refused(self):
        starts = FakeTensor(3, dtype="int32")
        lse = FakeTensor(2, 31, dtype="float32")
        for reason, arguments in (
            ("bad_output", {"output": queries(3)}),
            ("bad_lse", {"lse": lse}),
            ("bad_sinks", {"sinks": FakeTensor(8, dtype="float32")}),
            ("bad_softmax_scale", {"softmax_scale": 0.0}),
            ("bad_window_tokens", {"window_tokens": -1}),
        ):
            with self.subTest(reason), self.refused(reason):
                kernels.decode(queries(), self.cache, tables(), **arguments)
        with self.refused("bad_query_starts", "[2]"):
            kernels.prefill(queries(), self.cache, tables(1), starts)
        with self.refused("bad_splits", "65, 0 to 64"):
            kernels.prefill(queries(), self.cache, tables(), starts, splits=65)

    def test_a_batch_of_none_queues_nothing(self):
        out = kernels.decode(queries(0), self.cache, tables(0))
        self.assertEqual((out.shape, self.library.calls), ((0, 32, DIM), []))

    def test_the_librarys_refusal_is_an_exception_with_its_reason(self):
        for status, kind in (
            (abi.KVT_KERNEL_INVALID_ARGUMENT, kvtier.InvalidArgumentError),
            (abi.KVT_KERNEL_UNSUPPORTED, kvtier.UnsupportedError),
            (abi.KVT_KERNEL_LAUNCH_FAILED, kvtier.InternalError),
        ):
            self.library.status = status
            with self.assertRaises(kind) as raised:
                kernels.decode(queries(), self.cache, tables(), workspace=self.workspace)
            said = raised.exception.context.partition("; ")
            self.assertEqual(said[0], "kvt_decode: why not")
            self.assertEqual("9.0 (Hopper)" in said[2], kind is kvtier.UnsupportedError)

    def test_a_refusal_names_what_the_library_objected_to(self):
        self.library.detail = b"kv.head_dim is 96; kernels are built for 64"
        self.library.status = abi.KVT_KERNEL_UNSUPPORTED
        for workspace_bytes in (4096, 0):
            self.library.workspace_bytes = workspace_bytes
            with self.assertRaisesRegex(kvtier.UnsupportedError, "why not: kv.head_dim is 96;"):
                kernels.decode(queries(), self.cache, tables(), workspace=self.workspace)
        # CUDA's refusal has nothing to do with the arguments.
        self.library.status = abi.KVT_KERNEL_LAUNCH_FAILED
        with self.assertRaises(kvtier.InternalError) as raised:
            kernels.decode(queries(), self.cache, tables(), workspace=self.workspace)
        self.assertNotIn("head_dim", str(raised.exception))

    def test_parameters_without_a_workspace_size_are_refused_for_the_calls_own_reason(self):
        self.library.workspace_bytes = 0
        for status, kind in (
            (abi.KVT_KERNEL_INVALID_ARGUMENT, kvtier.InvalidArgumentError),
            (abi.KVT_KERNEL_UNSUPPORTED, kvtier.UnsupportedError),
            (abi.KVT_KERNEL_WORKSPACE_TOO_SMALL, kvtier.UnsupportedError),
        ):
            self.library.status = status
            with self.assertRaises(kind):
                kernels.decode(queries(), self.cache, tables(), workspace=self.workspace)
        self.workspace.memory.assert_not_called()


if __name__ == "__main__":
    unittest.main()
