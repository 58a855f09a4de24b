# SPDX-License-Identifier: Apache-2.0
"""KvtierStorage and the weights that a server of SGLang has, at its start and later."""

import ast
import os
import pathlib
import tempfile
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import sglang_modules  # makes `import sglang` find the wheel's
import torch
from sglang.srt import runtime_context
from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult, MultiModalStaticCache
from sglang_linker_case import LinkerTestCase, equal, prompt_of
from test_sglang import BATCH, CONFIG, SglangTestCase, host_pool, indices_of, keys_of

from kvtier.sglang import configuration, linker, live_weights, pages, settings
from kvtier.sglang import storage as storage_module

# The arguments that count.
COUNTED = """
    c128_page_size cp_strategy debug_tensor_dump_input_file decrypted_config_file decrypted_draft_config_file
    deepep_dispatcher_output_dtype disable_fast_image_processor disable_flashinfer_cutlass_moe_fp4_allgather
    disable_shared_experts_fusion dllm_algorithm dllm_algorithm_config dllm_fdfo dtype
    enable_decoder_swa_bounded_replay enable_deepseek_v4_fp4_indexer enable_deterministic_inference
    enable_dsa_cache_layer_split enable_encoder_swa_bounded_replay enable_int8_mamba_checkpoint
    enable_kv_cache_sharding enable_linear_replayssm enable_linear_replayssm_spec
    enable_mamba_cache_stochastic_rounding enable_mis enable_multi_layer_eagle enable_page_major_kv_layout
    enable_precise_embedding_interpolation enable_prefill_cp enable_quant_communications enable_tf32_matmul
    enable_w4a4_mxfp4_megamoe enforce_shared_experts_fusion experts_shared_outer_loras
    flashinfer_a2a_dispatch_type flashinfer_mxfp4_moe_precision forward_hooks fp4_gemm_runner_backend
    fp8_gemm_runner_backend image_processor_backend is_embedding json_model_override_args
    kt_max_deferred_experts_per_token kt_method kt_num_gpu_experts kt_weight_path kv_cache_dtype
    linear_replayssm_cache_len load_format lora_strict_loading lora_target_modules mamba_cache_philox_rounds
    mamba_ssm_dtype mm_process_config model_config_parser model_impl model_loader_extra_config
    modelexpress_config modelopt_checkpoint_restore_path modelopt_quant moe_runner_backend
    prefill_kv_cache_dequant_dtype qsa_indexer_dtype quantization quantization_param_path quantize_and_serve
    rl_on_policy_target rl_quant_profile speculative_algorithm speculative_dflash_block_size
    speculative_draft_kv_cache_dtype speculative_draft_load_format speculative_draft_model_quantization
    speculative_draft_sink_size speculative_draft_window_size speculative_dspark_block_size
    speculative_enable_w4a4_mxfp4_megamoe speculative_moe_runner_backend trust_mm_content_hashes uno_lora_path
    """


class WeightsTest(unittest.TestCase):
    """Which weights a model's name stands for, where SGLang's arguments do not say it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def weights(self, model_path, served_name="chat", label="", **arguments):
        server = types.SimpleNamespace(model_path=model_path, **arguments)
        given = configuration.arguments_of(server)
        return configuration.loaded_weights(served_name, given, label)

    def test_a_directory_that_is_served_under_another_name(self):
        weights = self.folder / "model.safetensors"
        weights.write_bytes(b"one")
        before = self.weights(str(self.folder))
        os.utime(weights, (1, 1))
        self.assertEqual(self.weights(str(self.folder)), before)
        weights.write_bytes(b"two")
        os.utime(weights, (1, 1))
        self.assertNotEqual(self.weights(str(self.folder)), before)

    def test_a_directory_says_nothing_by_its_path(self):
        names, weights = set(), set()
        for path in (self.folder / "here", self.folder / "there"):
            path.mkdir()
            (path / "model.safetensors").write_bytes(b"one")
            (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
            names.add(configuration.record_options(str(path))["name"])
            weights.add(self.weights(str(path)))
        self.assertEqual((len(names), len(weights)), (1, 1))
        self.assertTrue(names.pop().startswith("LlamaForCausalLM-"))

    def test_adapters_are_told_apart_by_their_tensors(self):
        """SGLang's hashes have the name and path of those that a server is started with."""
        adapter = types.SimpleNamespace(lora_name="a", lora_path=str(self.folder))
        facts = []
        for tensors in (b"one", b"one", b"two"):
            (self.folder / "adapter_model.safetensors").write_bytes(tensors)
            for given in ({}, {"lora_paths": [adapter]}):
                server = types.SimpleNamespace(model_path="org/model", **given)
                arguments = configuration.arguments_of(server)
                facts.append(configuration.page_facts(CONFIG, "kv", "layout", arguments, ""))
        bare, one, _, again, _, two = facts
        self.assertEqual(one, again)
        self.assertNotEqual(one, two)
        self.assertNotIn(bare, (one, two))

    def facts(self, **arguments):
        server = types.SimpleNamespace(model_path="org/model", **arguments)
        given = configuration.arguments_of(server)
        return configuration.page_facts(CONFIG, "kv", "layout", given, "")

    def test_arguments_that_choose_weights_and_types_of_numbers_are_told(self):
        seen = [self.facts()]
        for arguments in (
            {"modelopt_quant": "fp8"},
            {"modelopt_quant": "int4_awq"},
            {"kt_weight_path": "/a", "kt_method": "AMXINT4"},
            {"kt_weight_path": "/a", "kt_method": "AMXINT8"},
            {"kt_weight_path": "/b", "kt_method": "AMXINT4"},
            {"an_argument_of_a_newer_release": "fp4"},
        ):
            seen.append(self.facts(**arguments))
            self.assertNotIn(seen[-1], seen[:-1])
        with mock.patch.dict(os.environ, SGLANG_FP8_IGNORED_LAYERS="lm_head"):
            self.assertNotIn(self.facts(), seen)

    def test_harmless_arguments_keep_nothing_apart(self):
        with mock.patch.dict(os.environ, SGLANG_PORT="30001"):
            told = self.facts(port=30001, log_level="debug", mem_fraction_static=0.5, max_running_requests=7)
        self.assertEqual(told, self.facts())

    def test_each_argument_counts_or_is_harmless(self):
        """One that is in neither list counts, too; look whether it should, and add it to one of them."""
        names = set()
        for path in (sglang_modules.ROOT / "sglang/srt/arg_groups/fields").glob("*.py"):
            for one in ast.walk(ast.parse(path.read_text())):
                if isinstance(one, ast.ClassDef):
                    fields = (field for field in one.body if isinstance(field, ast.AnnAssign))
                    names.update(field.target.id for field in fields)
        self.assertEqual(names - settings.HARMLESS, set(COUNTED.split()))

    def test_files_name_weights_only_if_they_are_what_is_loaded(self):
        (self.folder / "model.safetensors").write_bytes(b"one")
        path = str(self.folder)
        name = self.weights(path)
        for read in ({"load_format": "runai_streamer"}, {"weight_cache_mode": "daemon"}):
            self.assertEqual(self.weights(path, **read), name)
        for other in (
            {"load_format": "remote_instance"},
            {"load_format": "a_plug_in_s"},
            {"weight_cache_mode": "client"},
            {"speculative_draft_model_path": path, "speculative_draft_load_format": "remote"},
        ):
            with self.assertLogs("sglang.kvtier", "WARNING"):
                self.assertIsNone(self.weights(path, **other))
            self.assertEqual(self.weights(path, label="mine", **other), "named:mine")

    def test_scales_of_the_cache_are_told_apart_by_their_content(self):
        scales = self.folder / "scales.json"
        facts = []
        for content in ("{}", "{}", '{"k": 2}'):
            scales.write_text(content)
            server = types.SimpleNamespace(
                model_path="org/model", quantization_param_path=str(scales)
            )
            arguments = configuration.arguments_of(server)
            facts.append(configuration.page_facts(CONFIG, "kv", "layout", arguments, ""))
        self.assertEqual(facts[0], facts[1])
        self.assertNotEqual(facts[0], facts[2])

    def test_a_name_of_the_hub_whose_branch_has_moved(self):
        for with_draft in (False, True):
            name = "org/draft" if with_draft else "org/model"
            model = self.folder / ("models--" + name.replace("/", "--"))
            (model / "refs").mkdir(parents=True)
            more = {"speculative_draft_model_path": name} if with_draft else {}
            seen = []
            for commit in ("a" * 40, "b" * 40):
                (model / "snapshots" / commit).mkdir(parents=True)
                (model / "refs/main").write_text(commit)
                with mock.patch.dict(os.environ, HF_HUB_CACHE=str(self.folder)):
                    seen.append(self.weights("org/model", **more))
            self.assertNotEqual(*seen)
            self.assertNotIn(None, seen)

    def test_a_name_of_the_hub_whose_weights_are_kept_in_a_directory_of_their_own(self):
        for cache, commit in (("hub", "a" * 40), ("own", "b" * 40)):
            model = self.folder / cache / "models--org--model"
            (model / "snapshots" / commit).mkdir(parents=True)
            (model / "refs").mkdir()
            (model / "refs/main").write_text(commit)
        with mock.patch.dict(os.environ, HF_HUB_CACHE=str(self.folder / "hub")):
            own = str(self.folder / "own")
            seen = [self.weights("org/model", download_dir=own), self.weights("org/model")]
        self.assertEqual(seen, [f"commit:{'b' * 40}", f"commit:{'a' * 40}"])

    def test_what_this_machine_does_not_have(self):
        with mock.patch.dict(os.environ, HF_HUB_CACHE=str(self.folder)):
            with self.assertLogs("sglang.kvtier", "WARNING"):
                self.assertIsNone(self.weights("org/model", revision="v1"))
            self.assertEqual(self.weights("org/model", label="mine"), "named:mine")
            commit = "c" * 40
            self.assertEqual(self.weights("org/model", revision=commit), f"commit:{commit}")


class Scheduler:
    """In place of SGLang's, which makes a storage or a linker as it starts, or attaches one later."""

    def __init__(self, model, make):
        self.tp_worker = types.SimpleNamespace(model_runner=types.SimpleNamespace(model=model))
        self.weight_updater = types.SimpleNamespace(offload_tags=set(), _session=None)
        self.forward_ct = 0
        self.make = make
        self.attach()

    def attach(self):
        self.made = self.make()


class LiveWeightsTest(SglangTestCase):
    """SGLang updates weights in place, and tells its storage backend nothing."""

    def test_pages_of_the_weights_before_are_not_found_and_those_of_now_are(self):
        model = torch.nn.Linear(8, 8)
        pool, keys = host_pool(), keys_of()
        storage = Scheduler(model, lambda: self.storage(pool)).made
        self.stored(storage, pool, keys)
        self.assertEqual(storage.batch_exists(keys), BATCH)
        model.weight.data.add_(1)
        self.assertEqual(storage.batch_exists(keys), 0)
        plain = getattr(storage, "_backend", storage)
        self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
        self.assertEqual(storage.batch_exists(keys), 0)
        self.stored(storage, pool, keys)
        self.assertEqual(storage.batch_exists(keys), BATCH)
        self.assertEqual(self.storage(host_pool()).batch_exists(keys), BATCH)  # of those before

    def test_threads_that_have_not_been_flushed_store_no_pages_of_before(self):
        """SGLang updates weights first, and flushes then, which ends its threads."""
        model = torch.nn.Linear(8, 8)
        pool, keys = host_pool(), keys_of()
        storage = Scheduler(model, lambda: self.storage(pool)).made
        with ThreadPoolExecutor(1) as prefetches, ThreadPoolExecutor(1) as backups:
            prefetches.submit(storage.batch_exists, keys).result()
            backups.submit(int).result()
            model.weight.data.add_(1)
            prefetches.submit(storage.batch_exists, keys).result()
            plain = getattr(storage, "_backend", storage)
            self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
            old = backups.submit(
                storage.batch_set_v1, keys, indices_of(range(BATCH), pool.page_size)
            )
            self.assertEqual(old.result(), [False] * BATCH)
        with ThreadPoolExecutor(1) as new:
            new.submit(self.stored, storage, pool, keys).result()
            self.assertEqual(new.submit(storage.batch_exists, keys).result(), BATCH)

    def test_a_load_that_an_update_overtakes_brings_nothing(self):
        model = torch.nn.Linear(8, 8)
        pool, keys = host_pool(), keys_of()
        storage = Scheduler(model, lambda: self.storage(pool)).made
        self.stored(storage, pool, keys)
        load = pages.PagePool.load

        def overtaken(one, *arguments):
            loaded = load(one, *arguments)
            model.weight.data.add_(1)
            return loaded

        with mock.patch.object(pages.PagePool, "load", overtaken):
            results = storage.batch_get_v1(keys, indices_of(range(BATCH), pool.page_size))
        self.assertEqual(results, [False] * BATCH)

    def test_a_storage_that_is_attached_after_an_update_is_not_named_by_the_files(self):
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "model.safetensors").write_bytes(b"one")
            arguments = mock.patch.object(
                storage_module, "running_arguments", lambda: {"model_path": directory}
            )
            with arguments:
                model, pool, keys = torch.nn.Linear(8, 8), host_pool(), keys_of()
                unnamed = {"identity": ""}
                server = Scheduler(model, lambda: self.storage(pool, extra=unnamed))
                self.stored(server.made, pool, keys)
                again = self.storage(host_pool(), extra=unnamed)
                self.assertEqual(again.batch_exists(keys), BATCH)
                getattr(server.made, "_backend", server.made).close()
                model.weight.data.add_(1)
                server.attach()
                others = keys_of()
                self.assertEqual(server.made.batch_exists(keys), 0)
                self.stored(server.made, pool, others)
                self.assertEqual(again.batch_exists(others), 0)

    def test_weights_that_sglang_has_released_are_not_read(self):
        """With `--enable-memory-saver` their addresses are mapped to nothing until SGLang resumes."""
        model, pool, keys = torch.nn.Linear(8, 8), host_pool(), keys_of()
        server = Scheduler(model, lambda: self.storage(pool))
        tags = server.weight_updater.offload_tags
        self.stored(server.made, pool, keys)
        tags.add("weights")
        with mock.patch.object(live_weights, "sample", wraps=live_weights.sample) as sample:
            self.assertEqual(server.made.batch_exists(keys), 0)
            # SGLang says that it has resumed before it does.
            server.weight_updater.stashed_model_static_state = {}
            tags.remove("weights")
            self.assertEqual(server.made.batch_exists(keys), 0)
        self.assertEqual(sample.call_count, 0)
        del server.weight_updater.stashed_model_static_state
        self.assertEqual(server.made.batch_exists(keys), 0)  # they may be others
        plain = getattr(server.made, "_backend", server.made)
        self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
        self.stored(server.made, pool, keys)
        self.assertEqual(server.made.batch_exists(keys), BATCH)

    def test_an_update_in_parts_is_noticed_at_its_begin_and_end_without_a_sample(self):
        pool, keys = host_pool(), keys_of()
        server = Scheduler(torch.nn.Linear(8, 8), lambda: self.storage(pool))
        for session in (object(), None):
            self.stored(server.made, pool, keys)
            server.weight_updater._session = session
            self.assertEqual(server.made.batch_exists(keys), 0)
            plain = getattr(server.made, "_backend", server.made)
            self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
            self.assertEqual(server.made.batch_exists(keys), 0)

    def test_experts_that_are_moved_or_come_and_go_are_no_other_weights(self):
        for argument in ("enable_eplb", "enable_paged_experts"):
            model = torch.nn.Sequential()
            model.add_module("attention", torch.nn.Linear(8, 8))
            model.add_module("experts", torch.nn.Linear(8, 8))
            pool, keys = host_pool(), keys_of()
            server = types.SimpleNamespace(model_path="some/model", **{argument: True})
            with mock.patch.object(runtime_context, "get_server_args", lambda: server):
                storage = Scheduler(model, lambda: self.storage(pool)).made
            self.stored(storage, pool, keys)
            model.experts.weight.data.add_(1)
            self.assertEqual(storage.batch_exists(keys), BATCH, argument)
            model.attention.weight.data.add_(1)
            self.assertEqual(storage.batch_exists(keys), 0)

    def test_a_storage_that_is_cleared_finds_nothing_of_before(self):
        pool, keys = host_pool(), keys_of()
        storage = self.storage(pool)
        self.stored(storage, pool, keys)
        plain = getattr(storage, "_backend", storage)
        self.assertTrue(plain.clear())
        self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(self.storage(host_pool()).batch_exists(keys), BATCH)


class Phi3LongRoPEScaledRotaryEmbedding(torch.nn.Module):
    """In place of SGLang's."""


class RopeTest(SglangTestCase, LinkerTestCase):
    def test_keys_that_go_by_the_other_requests_of_a_batch_are_refused(self):
        source = sglang_modules.ROOT / "sglang/srt/layers/rotary_embedding/rope_variant.py"
        self.assertIn(f"class {Phi3LongRoPEScaledRotaryEmbedding.__name__}(", source.read_text())
        own = torch.nn.Linear(8, 8)
        own.rope_type = "longrope"  # as a model of transformers has it
        for rope in (Phi3LongRoPEScaledRotaryEmbedding(), own):
            for make in (lambda: self.storage(host_pool()), self.engine):
                with self.assertRaisesRegex(ValueError, "longrope"):
                    Scheduler(torch.nn.Sequential(torch.nn.Linear(8, 8), rope), make)


class LinkerWeightsTest(LinkerTestCase):
    """SGLang tells its linker of a flush, which it refuses while requests run, and not of an update."""

    def test_until_a_flush_nothing_is_stored_or_offered_after_an_update(self):
        model, prompts = torch.nn.Linear(8, 8), [prompt_of() for _ in range(2)]
        engine = Scheduler(model, self.engine).made
        self.stored(engine, prompts[0])
        model.weight.data.add_(1)
        self.stored(engine, prompts[1])
        self.assertEqual(self.engine().match(prompts[1])[1], 0)
        self.assertEqual(engine.match(prompts[0])[1], 0)
        engine.cache.reset()
        self.wait_until(lambda: engine.linker.connected)
        kv = self.stored(engine, prompts[1])
        self.assertTrue(equal(self.loaded(engine, prompts[1]), kv))

    def begin_with(self, engine, version):
        """The first request after a flush, at which the weights have this version."""
        with mock.patch.object(linker, "weight_version", lambda: version):
            self.assertEqual(engine.match(prompt_of())[1], 0)
        self.wait_until(lambda: engine.linker.connected)

    def flush(self, engine):
        engine.cache.reset()
        self.wait_until(lambda: engine.linker.connected)

    def at_version(self, version):
        """Another engine of the run, which has it."""
        other = self.engine(weights_run="a run")
        self.flush(other)
        self.begin_with(other, version)
        return other

    def updated(self, server, *parts):
        """As SGLang's begin_weight_update ... end_weight_update do it, with a flush behind each part."""
        server.weight_updater._session = object()
        for part in parts:
            part()
            self.flush(server.made)
        return server.made

    def test_a_flush_before_an_update_is_one_after_it_if_nothing_was_computed_between(self):
        """As trainers do it, which pause a server and flush it, and continue after the update."""
        for forwards, run, is_cached in ((0, "", True), (1, "", False), (0, "a run", True)):
            with self.subTest(forwards=forwards, run=run):
                model, prompt = torch.nn.Linear(8, 8), prompt_of()
                server = Scheduler(model, lambda: self.engine(weights_run=run))
                engine = server.made
                self.flush(engine)
                server.forward_ct += forwards
                model.weight.data.add_(1)
                self.begin_with(engine, "1")
                kv = self.stored(engine, prompt)
                if is_cached:
                    self.assertTrue(equal(self.loaded(engine, prompt), kv))
                else:
                    self.assertEqual(engine.match(prompt)[1], 0)
                if run:
                    self.assertTrue(equal(self.loaded(self.at_version("1"), prompt), kv))

    def test_nothing_is_stored_or_offered_in_the_midst_of_an_update(self):
        model, prompt, other = torch.nn.Linear(8, 8), prompt_of(), self.at_version("2")
        server = Scheduler(model, lambda: self.engine(weights_run="a run"))
        known = prompt_of()
        self.stored(other, known)
        engine = self.updated(server, lambda: model.weight.data.add_(1))
        self.begin_with(engine, "2")
        self.stored(engine, prompt)
        self.assertEqual(engine.match(known)[1], 0)
        server.forward_ct += 1
        self.updated(server, lambda: model.bias.data.add_(1))
        server.weight_updater._session = None
        self.begin_with(engine, "2")
        self.assertEqual((engine.match(prompt)[1], other.match(prompt)[1]), (0, 0))
        self.assertGreater(engine.match(known)[1], 0)
        kv = self.stored(engine, prompt)
        self.assertTrue(equal(self.loaded(other, prompt), kv))

    def test_the_end_of_an_update_may_pack_the_weights_behind_its_last_flush(self):
        """And it may be long until the first prompt of a page; until then only probes are computed."""
        model, prompt, other = torch.nn.Linear(8, 8), prompt_of(), self.at_version("3")
        server = Scheduler(model, lambda: self.engine(weights_run="a run"))
        engine = self.updated(server, lambda: model.weight.data.add_(1))
        model.weight.data = model.weight.data.flip(0).contiguous()
        server.weight_updater._session = None
        engine.cache.check_hicache_events()  # by SGLang, before each batch
        server.forward_ct += 1
        self.begin_with(engine, "3")
        kv = self.stored(engine, prompt)
        self.assertTrue(equal(self.loaded(other, prompt), kv))

    def test_pages_that_were_computed_within_an_update_need_a_flush(self):
        model, prompt = torch.nn.Linear(8, 8), prompt_of()
        server = Scheduler(model, self.engine)
        engine = self.updated(server, lambda: model.weight.data.add_(1))
        server.forward_ct += 1
        server.weight_updater._session = None
        self.stored(engine, prompt)
        self.assertEqual(engine.match(prompt)[1], 0)
        self.flush(engine)
        kv = self.stored(engine, prompt)
        self.assertTrue(equal(self.loaded(engine, prompt), kv))

    def test_a_flush_empties_the_cache_of_images_that_the_weights_before_have_encoded(self):
        """SGLang itself leaves them there."""
        engine, cache = self.engine(), MultiModalStaticCache(1 << 20)
        cache.set(7, EmbeddingResult(embedding=torch.ones(8)))
        schedule = sglang_modules.module("sglang.srt.managers.mm_schedule")
        with mock.patch.object(schedule, "embedding_cache", cache):
            engine.cache.reset()
        self.assertFalse(cache.has(7))

    def test_pages_that_were_offered_before_an_update_are_not_loaded_after_it(self):
        model, prompt = torch.nn.Linear(8, 8), prompt_of()
        engine = Scheduler(model, self.engine).made
        self.stored(engine, prompt)
        request, _ = engine.match(prompt)
        engine.admit(request)
        model.weight.data.add_(1)
        engine.start_loading()
        engine.forward(request.slots)
        self.assertTrue(engine.failed(request))
        self.assertEqual(engine.match(prompt)[1], 0)


if __name__ == "__main__":
    unittest.main()
