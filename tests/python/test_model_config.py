# SPDX-License-Identifier: Apache-2.0
"""Records made from models' configurations, as transformers has them, without transformers."""

import dataclasses
import json
import os
import pathlib
import tempfile
import unittest
from unittest import mock

import kvtier
from harness.model_cache import COMMIT, LLAMA, model_cache
from kvtier import DType, HitRule, ModelRecord
from kvtier._facts import short
from kvtier._model_config import weights


def record(config=(), /, **fields):
    """The record of a Llama with another configuration."""
    return ModelRecord.from_config({**LLAMA, **dict(config)}, **{"name": "m", **fields})


class Configuration:
    """As transformers' objects, which keep name and commit beside to_dict()."""

    def __init__(self, values, name="", commit=None):
        self._values, self._name_or_path, self._commit_hash = values, name, commit

    def to_dict(self):
        return dict(self._values)


class GeometryTest(unittest.TestCase):
    def test_llama_3_1_8b_has_the_documented_geometry(self):
        one = record()
        self.assertEqual(
            (one.layers, one.kv_heads, one.k_head_dim, one.v_head_dim, one.dtype, one.block_tokens),
            (32, 8, 128, 128, DType.BFLOAT16, 16),
        )
        self.assertEqual(one.layout().block_stride, 2 << 20)

    def test_extra_facts_are_texts(self):
        for value, shown in ((1, "1"), ("\udc80", r"'\\udc80'")):
            with self.assertRaisesRegex(kvtier.InvalidArgumentError, f"not_text.*extra: {shown}"):
                record(extra={"a": value}).layout()

    def test_kv_heads_are_divided_by_the_ranks_and_repeated_where_there_are_more(self):
        self.assertEqual(record(tensor_parallel_size=4).kv_heads, 2)
        self.assertEqual(record(tensor_parallel_size=16).kv_heads, 1)
        with self.assertRaises(kvtier.InvalidArgumentError) as caught:
            record(tensor_parallel_size=3)
        self.assertEqual(caught.exception.reason, "bad_tensor_parallel")

    def test_a_head_size_of_its_own_counts_before_the_one_that_is_computed(self):
        self.assertEqual(record({"head_dim": 64}).k_head_dim, 64)

    def test_heads_that_are_not_grouped_are_as_many_as_those_of_queries(self):
        gpt2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float32"}
        one = ModelRecord.from_config(gpt2, name="gpt2")
        self.assertEqual((one.layers, one.kv_heads, one.k_head_dim), (12, 12, 64))

    def test_a_latent_cache_is_one_row_for_all_ranks(self):
        latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128}
        self.assertEqual(
            (record(latent).kv_heads, record(latent).k_head_dim, record(latent).v_head_dim),
            (1, 576, 0),
        )
        (group,) = record(latent, tensor_parallel_size=8).all_groups()
        self.assertEqual((group.k_head_dim, group.v_head_dim, group.replicated), (576, 0, True))

    def test_layers_with_a_window_are_a_group_of_their_own(self):
        kinds = ["sliding_attention"] * 26 + ["full_attention"] * 6
        full, window = record({"layer_types": kinds, "sliding_window": 1024}).all_groups()
        self.assertEqual((full.layers, full.hit_rule), (6, HitRule.ALL))
        self.assertEqual(
            (window.layers, window.hit_rule, window.window_tokens), (26, HitRule.TRAILING, 1024)
        )

    def test_a_window_of_which_no_layer_is_said_to_have_it_is_kept_in_full(self):
        self.assertEqual(record({"sliding_window": 4096}).all_groups(), record().all_groups())

    def test_the_text_of_a_model_of_images_counts(self):
        config = {"vision_config": {"num_hidden_layers": 3}, "text_config": LLAMA}
        self.assertEqual(ModelRecord.from_config(config, name="m").layers, 32)

    def test_layers_whose_state_is_not_told_are_refused(self):
        for other in (
            {"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8},
            {"layers_block_type": ["mamba"] * 32},
            {"num_kv_shared_layers": 10},
            {"is_encoder_decoder": True},
        ):
            with self.assertRaises(kvtier.UnsupportedError) as caught:
                record(other)
            self.assertEqual(caught.exception.reason, "other_layers")
            self.assertIn("groups", caught.exception.context)

    def test_what_is_no_configuration_is_refused_with_what_is_missing(self):
        no_heads = {key: value for key, value in LLAMA.items() if "head" not in key}
        for config, said in (
            ({}, "num_hidden_layers"),
            ({"num_hidden_layers": "32"}, "num_hidden_layers"),
            ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
            (no_heads, "num_key_value_heads"),
            ({**LLAMA, "hidden_size": None}, "head_dim"),
            ({**LLAMA, "layer_types": ["full_attention"], "sliding_window": 9}, "layer_types"),
            ({**LLAMA, "torch_dtype": None}, "dtype="),
            (7, "int is no model"),
        ):
            with self.assertRaises(kvtier.InvalidArgumentError, msg=said) as caught:
                ModelRecord.from_config(config, name="m")
            self.assertIn(said, str(caught.exception))
        with self.assertRaisesRegex(kvtier.InvalidArgumentError, "name="):
            ModelRecord.from_config(LLAMA)


class IdentityTest(unittest.TestCase):
    def test_revision_rope_quantization_and_dtype_tell_models_apart(self):
        variants = [
            record(),
            record(revision=COMMIT),
            record(dtype="fp8"),
            record({"rope_theta": 10000.0}),
            record({"rope_scaling": {"factor": 4.0, "rope_type": "llama3"}}),
            record({"quantization_config": {"quant_method": "awq", "bits": 4}}),
            record({"quantization_config": {"quant_method": "awq", "bits": 8}}),
            record(extra={"lora": "sql"}),
        ]
        for position, one in enumerate(variants):
            self.assertNotIn(one, variants[:position])
        self.assertTrue(variants[5].extra["quantization"].startswith("awq "))

    def test_old_and_new_names_of_the_same_rope_are_one_model(self):
        new = {key: value for key, value in LLAMA.items() if not key.startswith("rope")}
        new["rope_parameters"] = {"factor": 8, "rope_type": "llama3", "rope_theta": 500000}
        self.assertEqual(ModelRecord.from_config(new, name="m"), record())
        old = record({"rope_scaling": {"factor": 8.0, "type": "llama3"}})
        self.assertEqual(old, record())

    def test_what_does_not_change_the_bytes_is_not_in_it(self):
        self.assertEqual(record({"transformers_version": "5.23.0", "use_cache": False}), record())

    def test_an_object_tells_its_name_and_commit(self):
        one = ModelRecord.from_config(Configuration(LLAMA, "meta-llama/Llama-3.1-8B", COMMIT))
        self.assertEqual((one.name, one.revision), ("meta-llama/Llama-3.1-8B", COMMIT))
        given = ModelRecord.from_config(Configuration(LLAMA, "a"), name="b", revision="v2")
        self.assertEqual((given.name, given.revision), ("b", "v2"))

    def test_an_object_and_a_file_give_the_same_record(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "config.json"
            path.write_text(json.dumps(LLAMA))
            for source in (path, str(path), directory):
                self.assertEqual(ModelRecord.from_config(source, name="m"), record())

    def test_the_library_takes_the_record_and_finds_models_apart(self):
        for one in (record(), record(tensor_parallel_size=8, tensor_parallel_rank=7)):
            self.assertGreater(one.layout().block_stride, 0)
        long = record({"rope_scaling": {"long_factor": [1.0 + i / 7 for i in range(64)]}})
        self.assertGreater(long.layout().block_stride, 0)
        other = record({"rope_scaling": {"long_factor": [2.0 + i / 7 for i in range(64)]}})
        self.assertNotEqual(long.extra, other.extra)

    def test_texts_that_a_record_cannot_hold_are_told_apart_in_it(self):
        wide, narrow, bytes_of_a_path = "run/v\u30001", "run/v\u00a01", "run/v\udc801"
        self.assertEqual(short("run/v1"), "run/v1")
        seen = {short(text) for text in (wide, narrow, bytes_of_a_path, "run/v?1", "9" * 200)}
        self.assertEqual(len(seen), 5)
        for text in seen:
            record(extra={"label": text}).layout()
        for name in (wide, narrow, bytes_of_a_path, "run\n1"):
            ModelRecord.from_config(LLAMA, name=name).layout()


class PretrainedTest(unittest.TestCase):
    def test_a_model_in_the_cache_is_found_with_its_commit(self):
        with model_cache("org/llama"):
            for revision in ("", "main", COMMIT):
                one = ModelRecord.from_pretrained("org/llama", revision=revision)
                self.assertEqual((one.name, one.revision, one.layers), ("org/llama", COMMIT, 32))

    def test_the_cache_is_looked_for_where_the_hubs_library_keeps_it(self):
        with model_cache("org/llama") as snapshot, tempfile.TemporaryDirectory() as home:
            hub = snapshot.parents[2]
            (pathlib.Path(home) / "huggingface").mkdir()
            (pathlib.Path(home) / "huggingface/hub").symlink_to(hub)
            for given in (
                {"XDG_CACHE_HOME": home},
                {"XDG_CACHE_HOME": "/nowhere", "HF_HOME": "$HOME/huggingface"},
                {"HF_HOME": "~/huggingface"},
                {"HF_HOME": "/nowhere", "HUGGINGFACE_HUB_CACHE": "~/huggingface/hub"},
                {"HUGGINGFACE_HUB_CACHE": "/nowhere", "HF_HUB_CACHE": "$HOME/huggingface/hub"},
            ):
                with self.subTest(given), mock.patch.dict(os.environ, HOME=home):
                    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
                        os.environ.pop(name, None)
                    os.environ.update(given)
                    found = ModelRecord.from_pretrained("org/llama")
                    self.assertEqual(found.revision, COMMIT)
            with mock.patch.dict(os.environ, HOME=home):
                found = weights("org/llama", cache="~/huggingface/hub")
                self.assertEqual(found, f"commit:{COMMIT}")

    def test_a_directory_of_the_cache_has_the_same_commit(self):
        with model_cache("org/llama") as snapshot:
            for revision in ("", "main"):
                one = ModelRecord.from_pretrained(snapshot, name="org/llama", revision=revision)
                self.assertEqual(one, ModelRecord.from_pretrained("org/llama"))

    def test_fields_can_be_given(self):
        with model_cache("org/llama"):
            one = ModelRecord.from_pretrained(
                "org/llama", dtype="fp8", block_tokens=32, extra={"scales": "v1"}
            )
        self.assertEqual((one.dtype, one.block_tokens), (DType.FLOAT8_E4M3, 32))
        self.assertEqual((one.extra["scales"], "rope" in one.extra), ("v1", True))

    def test_what_is_not_on_this_machine_is_not_found(self):
        with model_cache("org/llama", branch="v1"):
            for name, revision in (("org/llama", ""), ("org/other", "v1"), ("org/llama", "0" * 40)):
                with self.assertRaises(kvtier.NotFoundError) as caught:
                    ModelRecord.from_pretrained(name, revision=revision)
                self.assertIn(name, caught.exception.context)
        with tempfile.TemporaryDirectory() as empty:
            with self.assertRaisesRegex(kvtier.NotFoundError, "config.json"):
                ModelRecord.from_pretrained(empty)

    def test_directories_without_a_commit_are_told_apart_by_their_files(self):
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as copy:
            path = pathlib.Path(directory)
            for place in (path, pathlib.Path(copy)):
                (place / "config.json").write_text(json.dumps(LLAMA))
                (place / "model.safetensors").write_bytes(b"1")
            first = ModelRecord.from_pretrained(directory)
            self.assertEqual(ModelRecord.from_pretrained(copy), first)
            (path / "model.safetensors").write_bytes(b"2")
            other = ModelRecord.from_pretrained(directory)
            self.assertEqual(dataclasses.replace(other, revision=first.revision), first)
            self.assertNotEqual(other.revision, first.revision)
            self.assertRegex(other.revision, "^files:[0-9a-f]{32}$")
            # A commit that the caller gives is not known to be that of the directory.
            for revision in ("main", COMMIT):
                named = [ModelRecord.from_pretrained(one, revision=revision) for one in (directory, copy)]
                self.assertEqual(named[0].revision, f"{revision} {other.revision}")
                self.assertEqual(named[1].revision, f"{revision} {first.revision}")
            (path / "model.safetensors").unlink()
            self.assertIsNone(weights(directory, COMMIT))
            self.assertEqual(weights("org/absent", COMMIT), f"commit:{COMMIT}")

    def test_a_file_that_is_no_configuration_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "config.json"
            for text in ("{", "[1, 2]", "[" * 100_000):
                path.write_text(text)
                with self.assertRaises(kvtier.InvalidArgumentError, msg=text[:9]) as caught:
                    ModelRecord.from_pretrained(directory)
                self.assertEqual(caught.exception.reason, "bad_config")


if __name__ == "__main__":
    unittest.main()
