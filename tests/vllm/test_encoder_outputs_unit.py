# SPDX-License-Identifier: Apache-2.0
"""Requests with images when vLLM may have outputs of its encoder that are of other weights, without vLLM."""

import gc
import types
import unittest

from kvtier.vllm.connector_scheduler import SchedulerSide
from kvtier.vllm.encoder_outputs import EncoderOutputs, find_outputs
from kvtier.vllm.known_request import KnownRequest
from kvtier.vllm.step_plan import Tensors
from test_connector_unit import SchedulerCase, request


class OldImagesTest(SchedulerCase):
    def setUp(self):
        super().setUp()
        self.answers_at_once = True
        self.images = {}  # in vLLM's cache of outputs
        self.begin_with()

    def begin_with(self, **engine):
        outputs = EncoderOutputs(types.SimpleNamespace(**engine), lambda: self.images)
        self.side = SchedulerSide(self.lookups, self.groups, self.workers, outputs=outputs)
        self.side.bind(self.manager)

    def is_stored(self, *images):
        """Whether the blocks are that a new request with these images computes."""
        one = request(64)
        one.mm_features = [types.SimpleNamespace(identifier=image) for image in images]
        self.side.allocated(one, self.manager.table("r", [1, 2, 3, 4]), self.match(one))
        if isinstance(self.images, dict):
            self.images.update(dict.fromkeys(images))
        self.step(one, 64)
        stores = self.step().stores
        self.side.finished(one)
        return bool(stores)

    def test_an_image_that_was_encoded_before_the_weights_changed_is_not_stored(self):
        self.assertTrue(self.is_stored("cat"))
        self.side.turn()
        with self.assertLogs("vllm.kvtier", "WARNING"):
            self.assertFalse(self.is_stored("cat"))
        self.assertFalse(self.is_stored("dog", "cat"))
        self.assertTrue(self.is_stored("dog"))
        self.assertTrue(self.is_stored())

    def test_vllm_s_own_cache_keeps_kv_of_it_until_it_is_reset_again(self):
        self.is_stored("cat")
        self.side.turn()
        self.is_stored("cat")
        self.images.clear()
        self.assertFalse(self.is_stored("cat"))
        self.images.clear()
        self.side.turn()
        self.assertTrue(self.is_stored("cat"))

    def test_a_pause_empties_the_cache_of_outputs_behind_the_reset(self):
        self.is_stored("cat")
        self.side.turn()
        self.images.clear()
        self.assertTrue(self.is_stored("cat"))

    def test_outputs_that_engines_share_are_of_unknown_weights_after_a_change(self):
        self.begin_with(ec_transfer_config=object())
        self.assertTrue(self.is_stored("cat"))
        self.side.turn()
        with self.assertLogs("vllm.kvtier", "WARNING") as log:
            self.assertFalse(self.is_stored("dog"))
        self.assertNotIn("reset_encoder_cache", log.output[0])  # which changes nothing

    def test_a_cache_of_outputs_that_cannot_be_read_may_have_all_of_them(self):
        for unreadable in (None, len):
            with self.subTest(unreadable):
                self.images = {}
                self.begin_with()
                self.assertTrue(self.is_stored("cat"))
                self.images = unreadable
                self.side.turn()
                with self.assertLogs("vllm.kvtier", "WARNING"):
                    self.assertFalse(self.is_stored("dog"))
                self.assertTrue(self.is_stored())


class AdaptersTest(unittest.TestCase):
    """Adapters of the encoder have outputs by their names."""

    def are_old(self, digest, image="cat", name="an adapter"):
        features = [types.SimpleNamespace(identifier=image)]
        adapter = types.SimpleNamespace(lora_name=name)
        known = KnownRequest(types.SimpleNamespace(mm_features=features, lora_request=adapter))
        known.tensors = digest and Tensors(1, digest)
        return self.outputs.are_old(known)

    def test_outputs_of_other_tensors_under_the_name_are_old(self):
        lora = types.SimpleNamespace(enable_tower_connector_lora=True)
        self.outputs = EncoderOutputs(types.SimpleNamespace(lora_config=lora))
        self.assertFalse(self.are_old(b"one"))
        self.assertTrue(self.are_old(b"two"))
        self.assertTrue(self.are_old(b"two"))
        self.assertFalse(self.are_old(b"two", name="another"))
        self.outputs.turn()  # and the cache of outputs is empty
        self.assertFalse(self.are_old(b"two"))

    def test_the_log_says_both_when_outputs_of_tensors_and_then_all_are_old(self):
        lora = types.SimpleNamespace(enable_tower_connector_lora=True)
        self.outputs = EncoderOutputs(types.SimpleNamespace(lora_config=lora, ec_transfer_config=object()))
        self.are_old(b"one")
        with self.assertLogs("vllm.kvtier", "WARNING") as log:
            self.are_old(b"two")
            self.outputs.turn()
            self.are_old(b"two")
            self.are_old(b"two", image="dog")
        self.assertEqual(["reset_encoder_cache" in one for one in log.output], [True, False])

    def test_adapters_of_language_layers_do_not_change_them(self):
        self.outputs = EncoderOutputs()
        self.assertEqual([self.are_old(one) for one in (b"one", b"two", None)], [False] * 3)


class Scheduler:
    """vLLM's, which makes its connector before its cache of outputs."""

    def __init__(self):
        self.found = find_outputs()
        self.encoder_cache_manager = types.SimpleNamespace(cached={"cat": set()})

    def reset_encoder_cache(self):
        pass


class FindTest(unittest.TestCase):
    def test_the_cache_is_found_when_the_scheduler_is_made(self):
        scheduler = Scheduler()
        self.assertEqual(list(scheduler.found()), ["cat"])
        found = scheduler.found
        del scheduler
        gc.collect()  # the frames that were looked through know each other
        self.assertIsNone(found())
        self.assertIsNone(find_outputs()())

    def test_another_manager_s_outputs_are_not_known(self):
        scheduler = Scheduler()
        scheduler.encoder_cache_manager = object()
        self.assertIsNone(scheduler.found())

    def test_vllm_has_it_by_these_names(self):
        try:
            from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
            from vllm.v1.core.sched.scheduler import Scheduler as Real
        except ImportError as error:
            self.skipTest(f"no vLLM: {error}")
        self.assertTrue(hasattr(Real, "reset_encoder_cache"))
        self.assertEqual(EncoderCacheManager(1).cached, {})


if __name__ == "__main__":
    unittest.main()
