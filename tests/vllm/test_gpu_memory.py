# SPDX-License-Identifier: Apache-2.0
"""Which of the daemon's devices an engine's GPU is."""

import types
import unittest
import uuid

import kvtier
from kvtier._gpu_memory import region_arguments


class RegionArgumentsTest(unittest.TestCase):
    gpus = [uuid.UUID(int=number) for number in (1, 2, 3)]

    def arguments_for(self, gpu):
        devices = [types.SimpleNamespace(uuid=one) for one in self.gpus]
        connection = types.SimpleNamespace(devices=lambda: devices)
        return region_arguments(connection, {"bytes": 64, "gpu_uuid": gpu})

    def test_a_gpu_is_found_by_its_uuid(self):
        self.assertEqual(self.arguments_for(self.gpus[2]), {"bytes": 64, "device": 2})

    def test_a_gpu_that_is_not_served_is_an_error_that_names_the_key(self):
        with self.assertRaises(kvtier.InvalidArgumentError) as raised:
            self.arguments_for(uuid.UUID(int=4))
        self.assertEqual(raised.exception.reason, "unknown_gpu")
        self.assertIn('set its pool.device to "all"', str(raised.exception))
        self.assertIn("kvtierd --version", str(raised.exception), "it may serve no GPU at all")


if __name__ == "__main__":
    unittest.main()
