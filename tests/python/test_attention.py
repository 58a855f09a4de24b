# SPDX-License-Identifier: Apache-2.0
"""Attention computed by a real daemon over host memory."""

import dataclasses
import subprocess
import sys
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, RECORD, DaemonTestCase, prompt

Q_HEADS = 4
KV_HEADS = 2
DIM = 32
SCALE = 0.2
OUTPUT_OFFSET = 64 * 1024
LSE_OFFSET = 128 * 1024

# Uses a workspace, and an array in one, of which nothing else is referred to.
LONE_WORKSPACES = """
import gc, sys, kvtier
from harness.daemon_test_case import RECORD
def workspace():
    connection = kvtier.connect(sys.argv[1])
    return connection.attach(connection.register_model(RECORD), 0).open_workspace(4096)
lone = workspace()
array = workspace().array(0, (4,), kvtier.DType.FLOAT32)[1:]
gc.collect()
array[:] = 2
print(lone.byte_count >= 4096, array.sum())
"""


def attention(q, k, v):
    """q [rows, q_heads, dim] are the last rows of k, v [tokens, kv_heads, dim]: output and LSE."""
    rows, tokens = len(q), len(k)
    k, v = (np.repeat(x, Q_HEADS // KV_HEADS, axis=1).astype(np.float64) for x in (k, v))
    scores = SCALE * np.einsum("qhd,khd->qhk", q.astype(np.float64), k)
    hidden = np.arange(tokens)[None, :] > np.arange(tokens - rows, tokens)[:, None]
    scores[np.broadcast_to(hidden[:, None, :], scores.shape)] = -np.inf
    lse = np.log(np.exp(scores).sum(axis=2))
    return np.einsum("qhk,khd->qhd", np.exp(scores - lse[..., None]), v), lse


class AttentionTest(DaemonTestCase):
    def fill(self, pool, sequence, tokens, seed):
        """Writes random keys and values of all tokens into the second layer; returns them."""
        random = np.random.default_rng(seed)
        shape = (tokens, KV_HEADS, DIM)
        k, v = (random.standard_normal(shape, dtype=np.float32) for _ in range(2))
        slots = sequence.slot_mapping(0, tokens)
        layer = pool.layer(1)
        layer.k[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS] = k
        layer.v[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS] = v
        return k, v

    def test_a_step_and_a_prefill_give_what_numpy_gives(self):
        pool = self.attach()
        random = np.random.default_rng(5)
        lengths = [(1, 37), (20, 20)]
        sequences, kv, handles = [], [], []
        for number, (_, tokens) in enumerate(lengths):
            sequence = pool.open_sequence(prompt(blocks=3, seed=number)[:tokens])
            self.addCleanup(sequence.close)
            sequence.wait()
            kv.append(self.fill(pool, sequence, tokens, number))
            handles += sequence.block_handles(-(-tokens // BLOCK_TOKENS))
            sequences.append(sequence)
        with pool.open_workspace(256 * 1024) as workspace:
            self.assertGreaterEqual(workspace.byte_count, 256 * 1024)
            rows = sum(asked for asked, _ in lengths)
            float32 = kvtier.DType.FLOAT32
            queries = workspace.array(0, (rows, Q_HEADS, DIM), float32)
            queries[:] = random.standard_normal(queries.shape, dtype=np.float32)
            took_ns = workspace.attend(
                1,
                lengths,
                handles,
                q_heads=Q_HEADS,
                softmax_scale=SCALE,
                query_dtype=float32,
                output_offset=OUTPUT_OFFSET,
                lse_offset=LSE_OFFSET,
            )
            self.assertGreater(took_ns, 0)
            output = workspace.array(OUTPUT_OFFSET, queries.shape, float32)
            lse = workspace.array(LSE_OFFSET, (rows, Q_HEADS), float32)
            first = 0
            for (asked, _), (k, v) in zip(lengths, kv):
                part = slice(first, first + asked)
                expected, expected_lse = attention(queries[part], k, v)
                np.testing.assert_allclose(output[part], expected, rtol=0, atol=1e-5)
                np.testing.assert_allclose(lse[part], expected_lse, rtol=0, atol=1e-4)
                first += asked

    def attend(self, workspace, blocks, **changes):
        arguments = {
            "q_heads": Q_HEADS,
            "softmax_scale": SCALE,
            "query_dtype": kvtier.DType.FLOAT32,
            "output_offset": OUTPUT_OFFSET,
            **changes,
        }
        return workspace.attend(0, [(1, 16)], blocks, **arguments)

    def test_blocks_of_others_and_nonsense_are_refused(self):
        pool, other = self.attach(), self.attach()
        with pool.acquire(new_blocks=1) as got, other.acquire(new_blocks=1) as foreign:
            with pool.open_workspace(256 * 1024) as workspace:
                with self.assertRaises(kvtier.StaleHandleError):
                    self.attend(workspace, foreign.new_blocks)
                # As if it were of this connection.
                block = foreign.new_blocks[0]._replace(attachment=got.new_blocks[0].attachment)
                with self.assertRaises(kvtier.NotOwnerError):
                    self.attend(workspace, [block])
                with self.assertRaises(kvtier.InvalidArgumentError):
                    self.attend(workspace, got.new_blocks, q_heads=3)
                with self.assertRaises(kvtier.InvalidArgumentError):
                    self.attend(workspace, got.new_blocks, output_offset=1 << 40)
                with self.assertRaises(kvtier.InvalidArgumentError):
                    self.attend(workspace, got.new_blocks, key_scales=[0.5])
                with self.assertRaises(kvtier.UnsupportedError):
                    self.attend(workspace, got.new_blocks, query_dtype=kvtier.DType.BFLOAT16)
                with self.assertRaises(kvtier.InvalidArgumentError):
                    workspace.array(0, (1 << 30,), kvtier.DType.FLOAT32)
                self.assertGreater(self.attend(workspace, got.new_blocks), 0)

    def test_scales_of_a_float8_cache_are_multiplied_with_its_numbers(self):
        pool = self.attach(dataclasses.replace(RECORD, dtype=kvtier.DType.FLOAT8_E4M3))
        float16 = kvtier.DType.FLOAT16
        with pool.acquire(new_blocks=1) as got, pool.open_workspace(256 * 1024) as workspace:
            # Every key is 0, every value 1: weights are equal, the output is the value's scale.
            block = pool.memory().block_bytes()[got.new_blocks[0].index]
            layer_bytes = block.size // RECORD.layers
            block[:] = 0
            block[layer_bytes // 2 : layer_bytes] = 0x38
            output = workspace.array(OUTPUT_OFFSET, (KV_HEADS, Q_HEADS // KV_HEADS * DIM), float16)
            for value_scales in ([0.5, 3.0], np.array([0.5, 3.0]), iter((0.5, 3.0))):
                output[:] = 0
                asked = {"query_dtype": float16, "key_scales": [2.0], "value_scales": value_scales}
                self.attend(workspace, got.new_blocks, **asked)
                np.testing.assert_array_equal(output[0], 0.5)
                np.testing.assert_array_equal(output[1], 3.0)
            # One that is 0 is refused, and not taken for none.
            with self.assertRaises(kvtier.InvalidArgumentError):
                self.attend(workspace, got.new_blocks, query_dtype=float16, key_scales=np.zeros(1))

    def test_a_workspace_ends_with_its_connection(self):
        pool = self.attach()
        workspace = pool.open_workspace(4096)
        self.daemon.kill()
        with pool.acquire(new_blocks=1) as got:
            self.assertFalse(got.available)
        with self.assertRaises(kvtier.UnavailableError):
            self.attend(workspace, [])
        self.daemon.start()
        with pool.acquire(new_blocks=1) as got:
            with self.assertRaises(kvtier.StaleHandleError):
                self.attend(workspace, got.new_blocks)
            workspace.close()
            with pool.open_workspace(256 * 1024) as workspace:
                self.attend(workspace, got.new_blocks)

    def test_a_workspace_and_its_arrays_keep_the_objects_that_they_need(self):
        command = [sys.executable, "-c", LONE_WORKSPACES, self.daemon.socket]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "True 6.0\n"), done.stderr)

    def test_only_so_many_are_open_at_once(self):
        pool = self.attach()
        workspaces = [pool.open_workspace(4096) for _ in range(16)]
        with self.assertRaises(kvtier.LimitExceededError):
            pool.open_workspace(4096)
        workspaces.pop().close()
        pool.open_workspace(4096).close()

    def test_a_closed_workspace_gives_its_memory_back(self):
        pool = self.attach()
        most = 100 * 1024 * 1024  # twice as much is more than the daemon gives
        small, large = pool.open_workspace(4096), pool.open_workspace(most)
        with self.assertRaises(kvtier.LimitExceededError):
            pool.open_workspace(most)
        large.close()
        small.close()
        # Under the number of the small one.
        pool.open_workspace(most).close()


class SecondDeviceTest(AttentionTest):
    """The same, in a pool that is not on the first device."""

    device = '["host", "host"]'

    def attach(self, record=RECORD, device=1):
        return super().attach(record, device)


if __name__ == "__main__":
    unittest.main()
