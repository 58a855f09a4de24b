# SPDX-License-Identifier: Apache-2.0
"""The pool's memory as torch tensors, where torch is installed."""

import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, RECORD, DaemonTestCase, LatentTestCase

try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "torch is not installed")
class TorchTest(DaemonTestCase):
    def test_a_tensor_is_the_pools_memory(self):
        pool = self.attach()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            tensors, arrays = pool.torch_layer(1), pool.layer(1)
            tensors.k[block] = 2.5
            tensors.v[block, 3, 1] = torch.arange(32.0)
            self.assertTrue((arrays.k[block] == 2.5).all())
            np.testing.assert_array_equal(arrays.v[block, 3, 1], np.arange(32))
            self.assertEqual(tensors.k.data_ptr(), arrays.k.ctypes.data)
            self.assertEqual(tuple(tensors.v.shape), arrays.v.shape)

    def test_scales_are_the_pools_memory_too(self):
        pool = self.attach(kvtier.ModelRecord("e4m3", 2, 2, 32, 32, dtype="fp8", scale_bytes=8))
        memory = pool.memory()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            memory.torch_scales(1).k[block] = 0.5
            memory.torch_scales(1).v[block] = 0.25
            self.assertTrue((memory.layer_scales(1).k[block] == 0.5).all())
            self.assertTrue((memory.layer_scales(1).v[block] == 0.25).all())

    def test_the_common_tensor_is_k_and_v(self):
        pool = self.attach()
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            pool.memory().torch_layer_kv(0)[block, 1] = 4
            self.assertTrue((pool.layer(0).v[block] == 4).all())
            self.assertEqual(pool.memory().torch_layer_kv(0).shape[1:], (2, BLOCK_TOKENS, 2, 32))

    def test_every_dtype_has_a_tensor_of_its_own_kind(self):
        for dtype in kvtier.DType:
            if not hasattr(torch, dtype.torch_name):
                continue
            with self.subTest(dtype):
                record = kvtier.ModelRecord(f"model of {dtype.name}", 1, 1, 8, 8, dtype=dtype)
                connection = self.connect()
                pool = connection.attach(connection.register_model(record), pool_bytes=65536)
                self.assertEqual(pool.torch_layer(0).k.dtype, getattr(torch, dtype.torch_name))
                connection.close()

    def test_bfloat16_tensors_and_uint16_arrays_are_the_same_bits(self):
        record = kvtier.ModelRecord("bfloat16", RECORD.layers, 2, 32, 32)
        pool = self.attach(record)
        with pool.acquire(new_blocks=1) as got:
            block = got.new_blocks[0].index
            pool.torch_layer(0).k[block] = 1.0
            self.assertTrue((pool.layer(0).k[block] == 0x3F80).all())


@unittest.skipUnless(torch, "torch is not installed")
class LatentTorchTest(LatentTestCase):
    def test_a_latent_cache_has_rows_for_mla_decode(self):
        pool = self.attach(self.record)
        for layer in (0, 60):
            view = pool.torch_layer(layer)
            rows = view.k[:, :, 0]
            self.assertEqual(tuple(rows.shape[1:]), (BLOCK_TOKENS, 576))
            self.assertEqual(rows.stride()[1:], (576, 1))
            self.assertEqual(view.v.numel(), 0)


if __name__ == "__main__":
    unittest.main()
