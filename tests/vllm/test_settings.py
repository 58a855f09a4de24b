# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's settings keep blocks apart, asked of the installed vLLM."""

import dataclasses
import os
import pathlib
import tempfile
import types
import unittest
from unittest import mock

import tiny_model
import vllm.config
from vllm.engine.arg_utils import EngineArgs

from kvtier import _settings
from kvtier.vllm import identity, settings

# The fields that count. One that is neither here nor among the harmless ones counts, too; look whether it should,
# and add it here or there.
COUNTED = {
    ("", vllm.config.VllmConfig): """
        additional_config attention_config cache_config diffusion_config kernel_config load_config lora_config
        mamba_config model_config parallel_config speculative_config""",
    ("attention_config", vllm.config.AttentionConfig): """
        backend_per_kind disable_flashinfer_q_quantization hisparse_config indexer_kv_dtype indexer_sparse_logits
        minimax_m3_msa_decode_backend sparse_mla_force_mqa use_non_causal use_prefill_query_quantization
        use_trtllm_attention""",
    ("cache_config", vllm.config.CacheConfig): """
        kv_cache_dtype_skip_layers kv_sharing_fast_prefill replayssm_buffer_len swa_bounded_replay use_replayssm""",
    ("draft_model_config", vllm.config.ModelConfig): """
        code_revision disable_sliding_window dtype model_class_overrides model_impl multimodal_config quantization
        quantization_config""",
    ("kernel_config", vllm.config.KernelConfig): "linear_backend linear_backend_per_quant moe_backend",
    ("load_config", vllm.config.LoadConfig): "ignore_patterns model_loader_extra_config",
    ("lora_config", vllm.config.LoRAConfig): """
        enable_mixed_moe_lora_format enable_moe_shared_loras enable_tower_connector_lora target_modules""",
    ("mamba_config", vllm.config.MambaConfig): """
        backend enable_stochastic_rounding ssu_algorithm stochastic_rounding_philox_rounds""",
    ("model_config", vllm.config.ModelConfig): """
        code_revision disable_sliding_window model_class_overrides model_impl multimodal_config quantization_config""",
    ("multimodal_config", vllm.config.MultiModalConfig): """
        media_io_kwargs mm_device_do_normalize mm_encoder_attn_dtype mm_encoder_fp8_scale_path video_pruning_method
        video_pruning_rate""",
    ("parallel_config", vllm.config.ParallelConfig): "cp_kv_cache_interleave_size dcp_kv_cache_interleave_size",
    ("speculative_config", vllm.config.SpeculativeConfig): """
        attention_backend code_revision disable_lookahead_block_hashes draft_load_config draft_model_config
        index_share_for_mtp_iteration kv_cache_dtype model moe_backend parallel_drafting quantization
        use_heterogeneous_vocab""",
}


class SettingsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = str(pathlib.Path(folder.name) / "model")
        tiny_model.make_model(pathlib.Path(cls.model))

    def facts(self, **arguments):
        arguments = {"model": self.model, "max_model_len": 256, **arguments}
        engine = EngineArgs(**arguments).create_engine_config()
        return identity.block_facts(engine, ["full"], "0.32", "")

    def test_each_field_counts_or_is_harmless(self):
        for (section, kind), counted in COUNTED.items():
            names = {field.name for field in dataclasses.fields(kind)}
            with self.subTest(section):
                self.assertEqual(names - settings.LISTS.get(section, set()) - set(counted.split()), set())

    def test_harmless_settings_keep_nothing_apart(self):
        as_default = self.facts()
        self.assertNotIn("settings", as_default.extra)
        for arguments in (
            {"max_num_seqs": 7, "gpu_memory_utilization": 0.5, "enforce_eager": True, "seed": 3},
            {"served_model_name": "chat", "master_port": 29999, "enable_lora": True},
            {"load_format": "runai_streamer", "max_num_batched_tokens": 512},
        ):
            with self.subTest(**arguments), mock.patch.dict(os.environ, VLLM_LOGGING_LEVEL="ERROR"):
                self.assertEqual(self.facts(**arguments), as_default)

    def test_schemes_of_online_quantization_are_apart(self):
        schemes = [{"linear": "fp8_per_tensor"}, {"linear": "mxfp4"}, {"linear": "mxfp4", "ignore": ["lm_head"]}]
        facts = [self.facts(quantization="online", quantization_config=one) for one in schemes]
        self.assertEqual(len({one.extra["settings"] for one in facts}), len(schemes))
        self.assertEqual(facts[1], self.facts(quantization="online", quantization_config=schemes[1]))

    def test_layers_that_are_left_out_of_a_cache_s_type_are_told(self):
        lists = (["1"], ["2"], ["1", "2"])
        facts = [self.facts(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=one) for one in lists]
        self.assertEqual(len({one.extra["settings"] for one in facts}), len(lists))

    def test_variables_that_choose_types_of_numbers_are_told(self):
        before = self.facts()
        with mock.patch.dict(os.environ, VLLM_MARLIN_INPUT_DTYPE="fp8", VLLM_HOST_IP="127.0.0.1"):
            self.assertNotEqual(self.facts(), before)
        with mock.patch.dict(os.environ, VLLM_HOST_IP="127.0.0.1", VLLM_BUILD_COMMIT="a", VLLM_UNKNOWN="1"):
            self.assertEqual(self.facts(), before)


class ChangedTest(unittest.TestCase):
    """Configurations that no vLLM has."""

    def changed(self, config, **harmless):
        return _settings.changed(config, {name: set(names) for name, names in harmless.items()})

    def test_a_field_of_a_newer_version_counts_if_it_is_not_at_its_default(self):
        @dataclasses.dataclass
        class Part:
            new: int = 1
            port: int = 2

        @dataclasses.dataclass
        class Config:
            part: Part = dataclasses.field(default_factory=Part)
            option: Part | None = None

        self.assertEqual(self.changed(Config(Part(port=3)), part=["port"]), {})
        seen = [Config(), Config(Part(new=2)), Config(Part(port=3)), Config(option=Part())]
        told = [self.changed(one) for one in seen]
        for i, one in enumerate(told):
            self.assertNotIn(one, told[:i])

    def test_a_path_is_told_by_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            told = []
            for name, content in (("a", "1"), ("b", "1"), ("a", "2")):
                (pathlib.Path(folder) / name).write_text(content)
                told.append(self.changed(types.SimpleNamespace(scales=f"{folder}/{name}")))
        self.assertEqual(told[0], told[1])
        self.assertNotEqual(told[0], told[2])

    def test_a_thing_that_cannot_be_told_is_like_no_other(self):
        for thing in (object(), lambda: None):
            config = types.SimpleNamespace(thing=thing)
            self.assertNotEqual(self.changed(config), self.changed(config))


if __name__ == "__main__":
    unittest.main()
