# SPDX-License-Identifier: Apache-2.0
"""Configurations that KvtierConnector takes and refuses, with vLLM's classes and without an engine."""

import types
import unittest
from unittest import mock

try:
    from kvtier.vllm.connector import KvtierConnector
    from vllm.config import KVTransferConfig, ParallelConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
except ImportError as error:
    raise unittest.SkipTest(f"no vLLM: {error}") from error


def transfer_config(options):
    return KVTransferConfig(
        kv_connector="KvtierConnector",
        kv_connector_module_path="kvtier.vllm",
        kv_role="kv_both",
        kv_connector_extra_config=options,
    )


class ConnectorOptionsTest(unittest.TestCase):
    def refusal(self, options=None, sleeps=False, **parallel):
        engine = types.SimpleNamespace(
            kv_transfer_config=transfer_config(options or {}),
            parallel_config=types.SimpleNamespace(**{"tensor_parallel_size": 1, **parallel}),
            device_config=types.SimpleNamespace(device_type="cuda"),
            model_config=types.SimpleNamespace(enable_cumem_allocator=sleeps),
        )
        with self.assertRaises(ValueError) as caught:
            KvtierConnector(engine, KVConnectorRole.SCHEDULER, None)
        return str(caught.exception)

    def test_what_is_no_option_or_no_value_of_one_is_refused(self):
        for options, message in (
            ({"keep_kv_cache": "maybe"}, "true or false"),
            ({"always_load": "yes"}, "true or false"),
            ({"retention": "disk"}, '"extended" or "memory"'),
            ({"retry_min_ms": 0, "retry_max_ms": 0}, "a number from 1"),
            ({"lookup_timeout_ms": "fast"}, "a number from 0"),
            ({"weights_digest": "all"}, '"sample" or "whole"'),
            ({"identity": 7}, "a printable text"),
            ({"socket": "/tmp/" + "x" * 200}, "at most 107 bytes"),
            ({"locality": "LOCAL"}, "no option locality"),
            ({"retension": "memory"}, "retention is meant"),
        ):
            with self.subTest(options):
                self.assertIn(message, self.refusal(options))

    def test_parallelism_that_splits_sequences_or_layers_is_refused(self):
        for kind in ("pipeline", "prefill_context", "decode_context"):
            message = self.refusal(**{f"{kind}_parallel_size": 2})
            self.assertIn(f"not {kind} parallelism", message)

    def test_an_engine_that_goes_on_after_a_failed_step_is_refused(self):
        self.assertIn("fault-tolerance", self.refusal(enable_fault_tolerance=True))

    def test_the_log_says_where_ranks_on_several_hosts_have_no_hits(self):
        self.assertTrue(hasattr(ParallelConfig, "nnodes_within_dp") and hasattr(ParallelConfig, "use_ray"))
        for gpus, warns, parallel in (
            (8, True, {"nnodes_within_dp": 2}),
            (8, True, {"use_ray": True, "tensor_parallel_size": 16}),
            (8, False, {"use_ray": True, "tensor_parallel_size": 8}),
            (8, False, {"use_ray": False, "tensor_parallel_size": 16}),
            (0, False, {"use_ray": True, "tensor_parallel_size": 2}),  # an actor that Ray lets see none
        ):
            expect = self.assertLogs if warns else self.assertNoLogs
            with self.subTest(parallel), mock.patch("torch.cuda.device_count", lambda: gpus):
                with expect("vllm.kvtier", "WARNING"), self.assertRaises(AttributeError):  # without a KV cache
                    self.refusal(**parallel)

    def test_a_gpu_s_memory_that_vllm_maps_and_unmaps_is_refused(self):
        self.assertIn("no sleep mode", self.refusal(sleeps=True))

    def test_text_that_says_false_keeps_nothing(self):
        """And so leaves sleep mode possible."""
        for value, sleeps in (("false", True), (False, True), ("true", False), (True, False)):
            config = transfer_config({"keep_kv_cache": value})
            self.assertEqual(KvtierConnector.supports_sleep_mode(config), sleeps)


class FailedLoadsTest(unittest.TestCase):
    """vLLM takes blocks of failed loads only of models with one group, be it cached by hash or not, and
    ends with an error otherwise."""

    def failures(self, groups):
        """The blocks and the requests that are told of a load that failed. groups: of vLLM; only the
        first is cached by hash."""
        worker = types.SimpleNamespace(
            poll=lambda: None,
            take_loaded=lambda: ({"r"}, {"r"}),
            take_failed_blocks=lambda: {7},
        )
        connector = KvtierConnector.__new__(KvtierConnector)
        connector._worker, connector._after_kernels, connector._idle_steps = worker, None, 0
        connector._cache_groups = ["the first"]
        connector._kv_cache_config = types.SimpleNamespace(
            kv_cache_groups=groups, prefix_cacheable_group_ids=(0,)
        )
        requests = connector.get_transfer_results(set()).failed_recving
        return connector.get_block_ids_with_load_errors(), requests

    def test_of_one_group_the_blocks_are_told(self):
        self.assertEqual(self.failures(["the first"]), ({7}, set()))

    def test_of_several_groups_the_requests_are_told_although_one_is_cached_by_hash(self):
        self.assertEqual(self.failures(["the first", "a ring"]), (set(), {"r"}))


if __name__ == "__main__":
    unittest.main()
