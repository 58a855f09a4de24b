# SPDX-License-Identifier: Apache-2.0
"""The pool in a GPU's memory, through torch; skipped where there is none."""

import ctypes
import gc
import hashlib
import unittest

import kvtier
from harness.daemon_test_case import BLOCK_BYTES, BLOCK_TOKENS, RECORD, DaemonTestCase, prompt

try:
    import torch
except ImportError:
    torch = None


def compute(sequence, tokens, first=0):
    """Puts the stand-in for KV into the slots of tokens first.. and waits for the stream."""
    device = sequence.memory().torch_layer(0).k.device
    slots = torch.from_numpy(sequence.slot_mapping(first)).to(device)
    values = torch.tensor([float(token) for token in tokens[first:]], device=device)
    for layer in range(RECORD.layers):
        kv = sequence.memory().torch_layer(layer)
        kv.k[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS] = values[:, None, None] + layer
        kv.v[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS] = -values[:, None, None] - layer
    torch.cuda.synchronize(device)


def holds(sequence, tokens):
    """Whether the KV of all `tokens` is what `compute` would have put there."""
    device = sequence.memory().torch_layer(0).k.device
    slots = torch.from_numpy(sequence.slot_mapping(0, len(tokens))).to(device)
    values = torch.tensor([float(token) for token in tokens], device=device)[:, None, None]
    for layer in range(RECORD.layers):
        kv = sequence.memory().torch_layer(layer)
        k = kv.k[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS]
        v = kv.v[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS]
        if not bool(((k == values + layer) & (v == -values - layer)).all()):
            return False
    return True


def ipc_handle_of(tensor):
    """The handle of the allocation that begins where the tensor does."""
    handle = (ctypes.c_char * 64)()
    code = ctypes.CDLL("libcuda.so.1").cuIpcGetMemHandle(
        handle, ctypes.c_uint64(tensor.data_ptr())
    )
    if code != 0:
        raise RuntimeError(f"cuIpcGetMemHandle: {code}")
    return bytes(handle)


@unittest.skipUnless(torch and torch.cuda.is_available(), "no GPU, or no torch that can use it")
class GpuTest(DaemonTestCase):
    device = "cuda:0"
    pool_blocks = 128  # 2 MiB
    host_blocks = 300
    disk_blocks = 600

    def run_through(self, tokens):
        """Opens, computes the missing tokens, finishes. Returns the sequence's last info."""
        pool = self.attach()
        with pool.open_sequence(tokens, leave_tokens=0) as sequence:
            self.assertTrue(sequence.wait(timeout_ms=30_000))
            info = sequence.info()
            compute(sequence, tokens, info.cached_tokens)
            self.assertTrue(holds(sequence, tokens))
            sequence.mark_computed(len(tokens))
            sequence.finish()
        # The memory of a connection that is closed can be had by a restarted daemon.
        pool.connection.close()
        return info

    def test_tensors_lie_in_the_pools_memory_with_its_strides(self):
        pool = self.attach()
        layout = pool.model.layout
        self.assertEqual(pool.info().device_kind, kvtier.DeviceKind.CUDA)
        with pool.acquire(new_blocks=1) as got:
            kv = pool.torch_layer(1)
            self.assertTrue(kv.k.is_cuda)
            self.assertEqual(kv.v.data_ptr() - kv.k.data_ptr(), layout.v_offset)
            kv.v[got.new_blocks[0].index, 3, 1, 5] = 1.5
            torch.cuda.synchronize()
            offset = layout.layer_stride + layout.v_offset
            offset += 3 * layout.v_token_stride + layout.v_head_stride + 5 * 4
            data = pool.read(got.new_blocks[0], offset, 4)
            self.assertEqual(data, torch.tensor([1.5]).numpy().tobytes())

    def test_an_engines_tensor_is_a_region(self):
        # Large enough that torch's allocator makes an allocation for it alone. Its layers lie one
        # after the other, each with a part of every block.
        rows, parts = 4096, RECORD.layers
        part_bytes = BLOCK_BYTES // parts
        tensor = torch.randint(0, 256, (parts, rows, part_bytes), dtype=torch.uint8, device="cuda")
        before = tensor[:, :20].clone()
        torch.cuda.synchronize()
        with self.connect().open_region(
            RECORD,
            memory=kvtier.RegionMemory.CUDA_IPC,
            ipc_handle=ipc_handle_of(tensor),
            bytes=tensor.numel(),
            blocks=rows,
            pieces=[(i * rows * part_bytes, part_bytes, part_bytes) for i in range(parts)],
            device=0,
        ) as region:
            hashes = [hashlib.sha256(bytes([i])).digest() for i in range(20)]
            end = region.wait(region.store_many(range(20), b"".join(hashes)), timeout_ms=10_000)
            self.assertEqual((end.copied, end.failed), (20, {}))
            tensor.zero_()
            torch.cuda.synchronize()
            end = region.wait(
                region.load_many(range(100, 120), b"".join(hashes)), timeout_ms=10_000
            )
            self.assertEqual((end.copied, end.failed), (20, {}))
            self.assertTrue(bool((tensor[:, 100:120] == before).all()))

    def test_a_prefix_comes_back_from_the_pool_and_after_a_restart_from_disk(self):
        tokens = list(prompt(blocks=20, extra_tokens=5))
        self.assertEqual(self.run_through(tokens).cached_tokens, 0)
        self.assertEqual(self.run_through(tokens).pool_tokens, len(tokens))
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        info = self.run_through(tokens)
        self.assertEqual(info.disk_tokens, len(tokens))

    def test_forks_copy_their_last_block_on_the_gpu(self):
        tokens = list(prompt(blocks=2, extra_tokens=3))
        with self.attach().open_sequence(tokens) as sequence:
            sequence.wait()
            compute(sequence, tokens)
            sequence.mark_computed(len(tokens))
            with sequence.fork() as fork:
                fork.append([1])
                compute(fork, [*tokens, 1], len(tokens))
                self.assertTrue(holds(fork, [*tokens, 1]))
                self.assertTrue(holds(sequence, tokens))

    def test_memory_is_given_back_only_when_no_tensor_is_left(self):
        pool = self.attach()
        tensor = pool.torch_layer(0).k
        with self.assertRaises(kvtier.WrongStateError):
            pool.unmap_device()
        pool.connection.close()
        self.assertEqual(tensor[0, 0, 0, 0].item(), tensor[0, 0, 0, 0].item())
        del tensor
        gc.collect()
        other = self.attach()
        other.torch_layer(0)
        gc.collect()
        other.unmap_device()


if __name__ == "__main__":
    unittest.main()
