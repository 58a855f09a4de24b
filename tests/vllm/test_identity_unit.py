# SPDX-License-Identifier: Apache-2.0
"""The names of models and weights, without vLLM."""

import dataclasses
import importlib.util
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

from kvtier import KvGroup
from kvtier.vllm import identity


def engine(**model):
    """As much of a VllmConfig as the connector's identity reads."""
    configuration = {"rope_theta": 10000.0, "_name_or_path": "anywhere"}
    settings = {
        "model": "org/model",
        "revision": "main",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "quantization": None,
        "seed": 0,
        "hf_config": types.SimpleNamespace(to_dict=lambda: configuration, _commit_hash=None),
        **model,
    }
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(**settings),
        cache_config=types.SimpleNamespace(
            prefix_caching_hash_algo="sha256", cache_dtype="auto"
        ),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=1),
        load_config=types.SimpleNamespace(load_format="auto"),
        device_config=types.SimpleNamespace(device_type="cpu"),
    )


class IdentityTest(unittest.TestCase):
    ROOT = bytes(range(32))

    def setUp(self):
        if importlib.util.find_spec("vllm") is None:
            # Its variables are in no record as long as they have their defaults.
            fake = types.SimpleNamespace(envs=types.SimpleNamespace(environment_variables={}))
            modules = mock.patch.dict(sys.modules, {"vllm": fake})
            modules.start()
            self.addCleanup(modules.stop)

    def record(self, the_engine=None, specs=("full",), vllm="0.32", root=ROOT, label=""):
        the_engine = the_engine or engine()
        facts = identity.block_facts(the_engine, specs, vllm, label)
        weights = identity.loaded_weights(the_engine, label) or "unknown"
        group = KvGroup(layers=2, layer_bytes=4096, block_tokens=32)
        made = facts.record(root, weights, [group])
        self.assertGreaterEqual(made.layout().block_stride, 2 * 4096)  # or it raises
        return made

    def test_the_same_engine_has_the_same_record(self):
        self.assertEqual(self.record(), self.record())

    def test_whatever_changes_the_bytes_changes_the_record(self):
        rope = types.SimpleNamespace(to_dict=lambda: {"rope_theta": 5e5}, _commit_hash=None)
        commit = types.SimpleNamespace(to_dict=engine().model_config.hf_config.to_dict,
                                       _commit_hash="abc")
        dummy, scales, fp8, wide = engine(), engine(), engine(), engine()
        dummy.load_config.load_format = "dummy"
        scales.cache_config.calculate_kv_scales = True
        scales.kv_transfer_config = types.SimpleNamespace(engine_id="one")
        fp8.cache_config.cache_dtype = "fp8"
        wide.parallel_config.tensor_parallel_size = 2
        records = [
            self.record(),
            self.record(the_engine=engine(model="org/other")),
            self.record(the_engine=engine(quantization="fp8")),
            self.record(the_engine=engine(dtype="float16")),
            self.record(the_engine=engine(hf_config=rope)),
            self.record(the_engine=engine(hf_config=commit)),
            self.record(the_engine=dummy),
            self.record(the_engine=scales),
            self.record(the_engine=fp8),
            self.record(the_engine=wide),
            self.record(specs=("window",)),
            self.record(specs=("full", "window")),
            self.record(vllm="0.33"),
            self.record(root=bytes(32)),
            self.record(label="a"),
            self.record(label="b"),
        ]
        for i, one in enumerate(records):
            for other in records[:i]:
                self.assertNotEqual(one, other)

    def test_the_longest_sequence_counts_where_it_changes_what_shorter_ones_are(self):
        rope = {"rope_parameters": {"rope_type": "longrope"}}
        scaled = types.SimpleNamespace(to_dict=lambda: rope, _commit_hash=None)
        for more, is_one in (
            ({}, True),
            ({"hf_config": scaled}, False),
            ({"architectures": ["Llama4ForConditionalGeneration"]}, False),
        ):
            with self.subTest(**more):
                short, long = (self.record(engine(max_model_len=n, **more)) for n in (4096, 65536))
                self.assertEqual(short == long, is_one)

    def test_processors_for_which_vllm_arranges_keys_in_other_ways_are_apart(self):
        records = []
        for tiles in (True, False):
            with mock.patch(
                "torch.cpu._is_amx_tile_supported", lambda: tiles, create=True
            ):
                records.append(self.record())
        self.assertNotEqual(records[0], records[1])

    def test_the_engine_s_own_way_to_read_images_counts(self):
        def record(options):
            configuration = types.SimpleNamespace(mm_processor_kwargs=options)
            return self.record(engine(multimodal_config=configuration))

        records = [record(one) for one in (None, {"do_normalize": False}, {"do_normalize": True})]
        self.assertEqual(records[0], self.record())
        self.assertNotEqual(records[0], records[1])
        self.assertNotEqual(records[1], records[2])

    def name(self, version, specs=("FullAttentionSpec",), device="cpu", cache="auto", draft=None, **model):
        """The name of a version of vLLM with such an engine."""
        the_engine = engine(**{"dtype": "torch.bfloat16", **model})
        self.draft(the_engine, "eagle", draft)
        the_engine.device_config.device_type = device
        the_engine.cache_config.cache_dtype = cache
        return identity.version_name(version, the_engine, specs)

    def test_only_versions_that_were_shown_to_give_the_same_bytes_have_one_name(self):
        self.assertEqual(self.name("0.32.0"), self.name("0.32.1"))
        self.assertEqual(self.name("0.32.0"), self.name("0.31.0"))
        windows = ("FullAttentionSpec", "SlidingWindowSpec")
        self.assertEqual(self.name("0.32.0", windows), self.name("0.31.2", windows))
        for other in ("0.30.0", "0.34.0", "0.3.1"):
            self.assertNotEqual(self.name("0.32.0"), self.name(other))

    def test_versions_are_apart_with_numbers_that_were_not_compared(self):
        for more in (
            {"device": "cuda"},
            {"specs": ("FullAttentionSpec", "MambaSpec")},
            {"cache": "fp8"},
            {"dtype": "torch.float16"},
            {"quantization": "fp8"},
            {"draft": engine().model_config},
        ):
            with self.subTest(**more):
                self.assertEqual(self.name("0.32.0", **more), "0.32")
                self.assertEqual(self.name("0.31.0", **more), "0.31")
        self.assertEqual(self.name("0.32.0", cache="bfloat16"), self.name("0.32.0"))

    def test_a_field_that_a_layer_does_not_use_tells_nothing_of_it(self):
        @dataclasses.dataclass
        class Spec:
            block_size: int
            head_size: int = 64
            modes: list = dataclasses.field(default_factory=list)

        before = Spec

        @dataclasses.dataclass
        class Spec(before):  # as the next version of vLLM has it
            is_draft: bool = False

        self.assertEqual(identity.described(before(32)), identity.described(Spec(32)))
        others = [Spec(32), Spec(16), Spec(32, 128), Spec(32, modes=[1]), Spec(32, is_draft=True)]
        self.assertEqual(len({identity.described(one) for one in others}), len(others))

    def directory(self, weights, times=None):
        """The path of a model with these bytes as its weights."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "model.safetensors")
        with open(path, "wb") as file:
            file.write(weights)
        if times is not None:
            os.utime(path, times)
        return directory.name

    def test_the_same_weights_at_another_path_and_time_are_the_same(self):
        first = self.record(the_engine=engine(model=self.directory(b"weights", (1, 1))))
        again = self.record(the_engine=engine(model=self.directory(b"weights", (2, 2))))
        self.assertEqual(first, again)

    def test_other_weights_with_the_same_size_and_times_are_others(self):
        first = self.record(the_engine=engine(model=self.directory(b"weights", (1, 1))))
        other = self.record(the_engine=engine(model=self.directory(b"Weights", (1, 1))))
        self.assertNotEqual(first, other)

    def test_weights_in_a_cache_of_their_own_have_its_commit(self):
        with tempfile.TemporaryDirectory() as cache:
            os.makedirs(f"{cache}/models--org--model/refs")
            os.makedirs(f"{cache}/models--org--model/snapshots/{'b' * 40}")
            with open(f"{cache}/models--org--model/refs/main", "w") as reference:
                reference.write("b" * 40)
            config = types.SimpleNamespace(_commit_hash="a" * 40)
            one = engine(model="org/model", hf_config=config)
            self.assertEqual(identity.loaded_weights(one, ""), f"commit:{'a' * 40}")
            one.load_config.download_dir = cache
            self.assertEqual(identity.loaded_weights(one, ""), f"commit:{'b' * 40}")

    def test_weights_that_nobody_can_tell_have_no_name_but_the_user_s(self):
        in_a_bucket = engine(model=self.directory(b"w"), model_weights="s3://bucket/model")
        with tempfile.TemporaryDirectory() as empty:
            pinned = engine(model=empty, revision="b" * 40)
            for unknown in (engine(), in_a_bucket, engine(model=empty), pinned):
                self.assertIsNone(identity.loaded_weights(unknown, ""))
                self.assertEqual(identity.loaded_weights(unknown, "mine"), "named:mine")

    def test_a_commit_of_the_hub_names_weights(self):
        config = types.SimpleNamespace(to_dict=dict, _commit_hash="c0ffee")
        self.assertEqual(identity.loaded_weights(engine(hf_config=config), ""), "commit:c0ffee")

    def test_a_draft_model_s_weights_are_weights(self):
        the_engine = engine(model=self.directory(b"weights"))
        names = {identity.loaded_weights(the_engine, "")}
        for weights in (b"one draft", b"another"):
            draft = self.directory(weights)
            self.draft(the_engine, "draft", engine(model=draft).model_config)
            names.add(identity.loaded_weights(the_engine, ""))
        self.assertEqual(len(names), 3)
        self.assertNotIn(None, names)

    def test_a_draft_model_s_configuration_counts_and_its_path_does_not(self):
        def record(layers=1, path="here", **model):
            fields = {"eagle_aux_hidden_state_layer_ids": [layers], "_name_or_path": path}
            fields |= {"model": {"_name_or_path": path}}
            config = types.SimpleNamespace(to_dict=lambda: fields, _commit_hash="c0ffee")
            the_engine = engine()
            self.draft(the_engine, "extract_hidden_states", engine(hf_config=config, **model).model_config)
            return self.record(the_engine)

        self.assertEqual(record(), record(path="there"))
        self.assertNotEqual(record(), record(layers=2))
        llama4 = {"architectures": ["EagleLlama4ForCausalLM"]}
        self.assertNotEqual(*(record(max_model_len=n, **llama4) for n in (4096, 65536)))

    def test_what_vllm_writes_into_a_draft_s_configuration_counts_only_where_it_decides_bytes(self):
        """`max_position_embeddings` is raised to the target's longest sequence."""

        def record(longest=2048, rope="default", **sampling):
            fields = {"max_position_embeddings": longest, "rope_parameters": {"rope_type": rope}, **sampling}
            for configuration in (fields, {**fields, "model": fields}):
                config = types.SimpleNamespace(to_dict=lambda one=configuration: one, _commit_hash="c0ffee")
                the_engine = engine()
                self.draft(the_engine, "eagle3", engine(hf_config=config).model_config)
                yield self.record(the_engine)

        told = list(record())
        self.assertEqual(told, list(record(8192)))
        self.assertEqual(told, list(record(dspark_draft_topk=4, xpress_topc=8)))
        for rope in ("dynamic", "one that is new"):
            for short, long in zip(record(rope=rope), record(8192, rope)):
                self.assertNotEqual(short, long)

    def test_the_target_s_own_positions_count(self):
        def record(longest):
            fields = {"max_position_embeddings": longest}
            return self.record(engine(hf_config=types.SimpleNamespace(to_dict=lambda: fields, _commit_hash=None)))

        self.assertNotEqual(record(2048), record(8192))

    def test_vllm_raises_a_draft_s_positions_so(self):
        try:
            from transformers import LlamaConfig
            from vllm.config.speculative import SpeculativeConfig
            from vllm.transformers_utils.configs.eagle import EAGLEConfig
        except ImportError as error:
            self.skipTest(f"no vLLM: {error}")

        def record(longest):
            fields = LlamaConfig(architectures=["LlamaForCausalLM"], max_position_embeddings=2048)
            SpeculativeConfig._maybe_override_draft_max_position_embeddings(fields, longest)
            the_engine = engine()
            config = EAGLEConfig(fields, method="eagle3", model_type="eagle")
            self.assertEqual(config.max_position_embeddings, longest)
            self.draft(the_engine, "eagle3", engine(hf_config=config).model_config)
            return self.record(the_engine)

        self.assertEqual(record(8192), record(32768))

    def draft(self, the_engine, method, config):
        the_engine.speculative_config = types.SimpleNamespace(
            method=method,
            model=getattr(config, "model", method),
            target_model_config=the_engine.model_config,
            draft_model_config=config,
        )

    def test_ways_to_draft_without_a_model_have_no_weights(self):
        the_engine = engine(model=self.directory(b"weights"))
        alone = identity.loaded_weights(the_engine, "")
        for method, config in (("ngram", the_engine.model_config), ("suffix", None)):
            self.draft(the_engine, method, config)
            self.assertEqual(identity.loaded_weights(the_engine, ""), alone)

    def test_files_name_weights_only_if_they_are_what_is_loaded(self):
        path, names = self.directory(b"weights"), {}
        for form in """auto hf safetensors runai_streamer pt mistral sharded_state
                       tensorizer ipc_cache modelexpress a_plug_in_s""".split():
            the_engine = engine(model=path)
            the_engine.load_config.load_format = form
            names[form] = identity.loaded_weights(the_engine, "")
            self.assertEqual(identity.loaded_weights(the_engine, "mine") == "named:mine", names[form] is None)
        self.assertEqual(len({names[one] for one in ("auto", "hf", "safetensors", "runai_streamer")}), 1)
        self.assertEqual(len({names[one] for one in ("auto", "pt", "mistral", "sharded_state")}), 4)
        others = [names[one] for one in ("tensorizer", "ipc_cache", "modelexpress", "a_plug_in_s")]
        self.assertEqual(others, [None] * 4)

    def test_a_commit_of_another_repository_names_no_weights(self):
        config = types.SimpleNamespace(to_dict=dict, _commit_hash="a" * 40)
        for revision, name in (("main", None), (None, None), ("b" * 40, f"commit:{'b' * 40}")):
            elsewhere = engine(hf_config=config, hf_config_path="org/configuration", revision=revision)
            self.assertEqual(identity.loaded_weights(elsewhere, ""), name)

    def test_long_names_stay_different(self):
        names = ["org/" + "x" * 300, "org/y" + "x" * 300]
        records = [self.record(the_engine=engine(model=name)) for name in names]
        self.assertNotEqual(records[0].name, records[1].name)

    def test_hashes_that_can_be_forged_are_refused(self):
        with self.assertRaises(ValueError):
            self.record(root=bytes(16))


if __name__ == "__main__":
    unittest.main()
