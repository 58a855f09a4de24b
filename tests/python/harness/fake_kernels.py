# SPDX-License-Identifier: Apache-2.0
"""kvtier.kernels over a library that only takes notes, with tensors that are none."""

import contextlib
import types
import unittest
from unittest import mock

import kvtier
from kvtier import kernels
from kvtier.kernels import _launch
from kvtier.kernels._launch import abi

from .fake_tensor import FakeTensor

STREAM = 77
# Llama-3.1-8B: 32 layers of K and V, 16 tokens, 8 heads of 128.
LAYERS, TOKENS, HEADS, DIM = 32, 16, 8, 128
BLOCK = LAYERS * 2 * TOKENS * HEADS * DIM
K_ADDRESS = 0x7000_0000_0000
V_ADDRESS = K_ADDRESS + TOKENS * HEADS * DIM * 2


def pool_layer(blocks=1000, **changes):
    """Keys and values of the first layer of a pool, in place."""
    strides = (BLOCK, HEADS * DIM, DIM, 1)
    shape = (blocks, TOKENS, HEADS, DIM)
    k = FakeTensor(*shape, strides=strides, address=K_ADDRESS, **changes)
    return k, FakeTensor(*shape, strides=strides, address=V_ADDRESS, **changes)


def tables(sequences=2, entries=40, **changes):
    table = FakeTensor(sequences, entries, dtype="int32", **changes)
    return kernels.SequenceTables(table, FakeTensor(sequences, dtype="int32"))


def queries(rows=2, heads=32, **changes):
    return FakeTensor(rows, heads, DIM, address=0x7100_0000_0000, **changes)


class FakeLibrary:
    """Takes every call and keeps a copy of its parameters; answers `status`."""

    def __init__(self):
        self.calls = []
        self.status = abi.KVT_KERNEL_OK
        self.workspace_bytes = 4096
        self.detail = b""

    def __getattr__(self, name):
        if name == "kvt_kernel_status_text":
            return lambda status: b"why not"
        if name == "kvt_kernel_last_error_detail":
            return lambda: self.detail
        if name.endswith("_workspace_bytes"):
            return lambda params: self.workspace_bytes

        def call(params, *more):
            kept = type(params._obj).from_buffer_copy(params._obj)
            self.calls.append(types.SimpleNamespace(name=name, params=kept, more=more))
            return self.status

        return call


class KernelsTest(unittest.TestCase):
    def setUp(self):
        self.library = FakeLibrary()
        self.workspace = mock.Mock(spec=kernels.Workspace)
        self.workspace.memory.return_value = FakeTensor(4096, dtype="uint8", address=0x7200_0000)
        for target, name, value in (
            (_launch, "load", lambda: self.library),
            (_launch, "on_device", lambda tensor, stream: contextlib.nullcontext(STREAM)),
        ):
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def the_call(self):
        (call,) = self.library.calls
        return call

    @contextlib.contextmanager
    def refused(self, reason, text=""):
        """The block is refused for `reason`, with `text` in the particulars; nothing is queued."""
        with self.assertRaises(kvtier.InvalidArgumentError) as raised:
            yield
        self.assertEqual(raised.exception.reason, reason)
        self.assertIn(text, raised.exception.context)
        self.assertEqual(self.library.calls, [])
