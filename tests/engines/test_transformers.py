# SPDX-License-Identifier: Apache-2.0
"""A real transformers and a real kvtierd: the same tokens, always."""

import functools
import importlib.util
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from harness.shared_daemon import SharedDaemonCase
from tiny_models import DEVICE, MODELS, VOCABULARY, WINDOW, gpt2, llama, qwen3_next
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from kvtier import HitRule, KvGroup
from kvtier.transformers import KvtierCache, Outcome, transfer
from kvtier.transformers.layers import Group

HERE = pathlib.Path(__file__).resolve().parent
PROMPT_TOKENS, NEW_TOKENS = 300, 24
BLOCK_TOKENS, STATE_TOKENS = 16, 64
PROCESS_TIMEOUT_S = 120
# Threads that wait for each other's turns make a small machine slow.
torch.set_num_threads(1)
seeds = itertools.count()


def prompt_of(tokens=PROMPT_TOKENS):
    """A prompt that no other has the beginning of."""
    generator = random.Random(next(seeds))
    tokens_drawn = [generator.randrange(3, VOCABULARY) for _ in range(tokens)]
    return torch.tensor([tokens_drawn], device=DEVICE)


@functools.lru_cache(maxsize=None)
def model_of(name):
    return MODELS[name]()


def step_of(name):
    """The number of tokens that a restored prefix of the model is a multiple of."""
    return STATE_TOKENS if name == "qwen3-next" else BLOCK_TOKENS


def restorable(name, tokens):
    """The longest prefix of so many cached tokens, with one left to compute."""
    return (tokens - 1) // step_of(name) * step_of(name)


def generate(model, prompt, cache=None, **more):
    cache = DynamicCache(config=model.config) if cache is None else cache
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **more}
    return model.generate(prompt, past_key_values=cache, **options)


def fake_accelerate():
    """The fake as accelerate's module of that name."""
    spec = importlib.util.spec_from_file_location("accelerate.hooks", HERE / "fake_accelerate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class KvtierTestCase(SharedDaemonCase, unittest.TestCase):
    host_bytes = "96MiB"

    def cache(self, model, prompt, **more):
        options = {"state_tokens": STATE_TOKENS, "checkpoint_tokens": 128, **more}
        return KvtierCache.for_model(model, prompt, socket=self.daemon.socket, **options)

    def check(self, model, prompt, **more):
        """Generates with a cache, expects the tokens that come without, and stores them."""
        cache = self.cache(model, prompt, **more)
        output = generate(model, prompt, cache)
        self.assertEqual(output.tolist(), generate(model, prompt).tolist())
        self.assertEqual(cache.restored_tokens > 0, cache.outcome == Outcome.RESTORED)
        cache.store(output)
        return cache, output


class LengthTest(KvtierTestCase):
    """Ropes by which keys depend on how long the sequence is, beside the tokens before them."""

    def test_a_long_prompt_is_served_no_keys_of_a_short_one(self):
        ropes = {
            "dynamic": {"factor": 4.0},
            "longrope": {
                "short_factor": [1.0] * 8,
                "long_factor": [8.0] * 8,
                "original_max_position_embeddings": 128,
            },
        }
        for kind, more in ropes.items():
            with self.subTest(kind):
                rope = {"rope_type": kind, "rope_theta": 10000.0, **more}
                make = functools.partial(llama, rope_parameters=rope, max_position_embeddings=128)
                model, prompt = make(), prompt_of()
                for tokens in (64, PROMPT_TOKENS):
                    part = prompt[:, :tokens]
                    cache = self.cache(model, part)
                    output = generate(model, part, cache)
                    self.assertEqual(output.tolist(), generate(make(), part).tolist())
                    cache.store(output)


class ReuseTest(KvtierTestCase):
    def test_a_prompt_that_was_computed_is_restored(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                cold, _ = self.check(model, prompt)
                self.assertEqual((cold.outcome, cold.restored_tokens), (Outcome.MISS, 0))
                for _ in range(2):
                    warm, _ = self.check(model, prompt)
                    self.assertEqual(warm.restored_tokens, restorable(name, PROMPT_TOKENS))

    def test_prompts_share_the_beginning_that_they_have_in_common(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                self.check(model, prompt)
                # Further from the first prompt's end than a window reaches.
                other = torch.cat([prompt[:, :150], prompt_of(150)], dim=1)
                cache, _ = self.check(model, other)
                self.assertEqual(cache.restored_tokens, 128 if name == "qwen3-next" else 144)

    def test_an_answer_is_restored_as_part_of_the_next_prompt(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                cache = self.cache(model, prompt)
                answer = generate(model, prompt, cache, max_new_tokens=90)
                cache.store(answer)
                following = torch.cat([answer, prompt_of(20)], dim=1)
                cache, _ = self.check(model, following)
                # All that went through the model: the last token of an answer did not.
                self.assertEqual(cache.restored_tokens, restorable(name, answer.shape[1]))

    def test_one_cache_serves_a_whole_conversation(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                plain, cache = DynamicCache(config=model.config), self.cache(model, prompt)
                for turn in range(3):
                    expected = generate(model, prompt, plain, max_new_tokens=50)
                    output = generate(model, prompt, cache, max_new_tokens=50)
                    self.assertEqual(output.tolist(), expected.tolist())
                    stored = cache.store(output)
                    if turn > 0:
                        self.assertLess(stored, 20)
                    prompt = torch.cat([output, prompt_of(20)], dim=1)
                self.check(model, prompt)

    def test_short_and_odd_prompts(self):
        for name, tokens in itertools.product(MODELS, (1, 16, 17, WINDOW, 65, 128)):
            with self.subTest(f"{name}, {tokens}"):
                model, prompt = model_of(name), prompt_of(tokens)
                self.check(model, prompt)
                cache, _ = self.check(model, prompt)
                self.assertEqual(cache.restored_tokens, restorable(name, tokens))

    def test_bfloat16_is_restored_bit_by_bit(self):
        model, prompt = llama(seed=3).to(torch.bfloat16), prompt_of()
        with self.cache(model, prompt) as cold:
            generate(model, prompt, cold)
        warm = self.cache(model, prompt)
        for first, second in zip(cold.layers, warm.layers):
            kept = warm.restored_tokens
            self.assertTrue(torch.equal(first.keys[:, :, :kept], second.keys))
            self.assertTrue(torch.equal(first.values[:, :, :kept], second.values))

    def test_leaving_the_block_stores_the_prompt(self):
        model, prompt = model_of("llama"), prompt_of()
        with self.cache(model, prompt) as cache:
            generate(model, prompt, cache)
        self.assertEqual(self.cache(model, prompt).restored_tokens, 288)
        with self.assertRaises(KeyError), self.cache(model, prompt_of()) as cache:
            raise KeyError("of the user's program: stores nothing, hides nothing")


class IdentityTest(KvtierTestCase):
    def expect_miss(self, model, prompt, **more):
        self.assertEqual(self.cache(model, prompt, **more).outcome, Outcome.MISS)

    def test_other_weights_are_not_served(self):
        prompt = prompt_of()
        self.check(llama(seed=0), prompt)
        self.expect_miss(llama(seed=1), prompt)
        self.expect_miss(llama(seed=0, rope_theta=500.0), prompt)
        self.expect_miss(llama(seed=0).to(torch.bfloat16), prompt)
        self.assertEqual(self.cache(llama(seed=0), prompt).restored_tokens, 288)

    def test_weights_that_change_in_memory_are_others(self):
        model, prompt = llama(seed=2), prompt_of()
        other = llama(seed=3)
        weight = model.model.layers[1].mlp.up_proj.weight

        def write_one():
            weight[0, 0] += 1.0

        def write_data():
            for mine, its in zip(model.parameters(), other.parameters()):
                mine.data.copy_(its.data)

        def replace_data():
            for parameter in model.parameters():
                parameter.data = parameter.data * 1.5

        self.check(model, prompt)
        for change in (lambda: weight.mul_(1.5), write_one, write_data, replace_data):
            with torch.no_grad():
                change()
            cache, _ = self.check(model, prompt)
            self.assertEqual(cache.outcome, Outcome.MISS)
        model.load_state_dict(other.state_dict())
        cache, _ = self.check(model, prompt)
        self.assertEqual(cache.outcome, Outcome.RESTORED)  # as they were before

    def test_nothing_is_stored_for_weights_that_have_changed_since_the_cache_was_made(self):
        model, prompt = llama(seed=20), prompt_of()
        cache = self.cache(model, prompt)
        model.load_state_dict(llama(seed=21).state_dict())
        self.assertEqual(cache.store(generate(model, prompt, cache)), 0)
        self.expect_miss(llama(seed=20), prompt)
        self.expect_miss(llama(seed=21), prompt)

    def test_nothing_more_is_stored_of_a_conversation_in_which_weights_have_changed(self):
        model, prompt = llama(seed=22), prompt_of()
        cache = self.cache(model, prompt)
        answer = generate(model, prompt, cache)
        self.assertGreater(cache.store(answer), 0)
        model.load_state_dict(llama(seed=23).state_dict())
        longer = torch.cat([answer, prompt_of(64)], dim=1)
        self.assertEqual(cache.store(generate(model, longer, cache)), 0)

    def test_nothing_is_stored_of_a_pass_with_an_adapter_switched_off_for_it(self):
        model, prompt = llama(seed=24), prompt_of()
        model.model.disable_adapters = False  # as a layer of PEFT
        cache = self.cache(model, prompt)
        model.model.disable_adapters = True
        answer = generate(model, prompt, cache)
        model.model.disable_adapters = False
        self.assertEqual(cache.store(answer), 0)

    def test_nothing_is_stored_of_a_pass_that_computed_otherwise_than_the_model_does(self):
        model, prompt = llama(seed=25), prompt_of()
        value, norm = model.model.layers[1].self_attn.v_proj, model.model.norm

        for change in (
            lambda: value.register_forward_hook(lambda module, args, output: output * 1.5),
            lambda: mock.patch.object(value, "forward", lambda states: states[..., :32]),
            lambda: mock.patch.object(norm, "training", True),
            lambda: torch.autocast(DEVICE.type, dtype=torch.bfloat16),
        ):
            cache = self.cache(model, prompt)
            with change():
                answer = generate(model, prompt, cache)
            self.assertEqual(cache.store(answer), 0)
            self.expect_miss(model, prompt)

    def test_a_configuration_that_changes_makes_another_model(self):
        model, prompt = llama(seed=26), prompt_of()
        self.check(model, prompt)
        model.set_attn_implementation("eager")
        self.expect_miss(model, prompt)

    def test_an_adapter_with_another_scale_is_another_model(self):
        model, prompt = llama(seed=27), prompt_of()
        layer = model.model.layers[1].self_attn.v_proj
        layer.disable_adapters, layer.scaling = False, {"default": 1.0}  # as a layer of PEFT
        self.check(model, prompt)
        layer.scaling["default"] = 30.0
        self.expect_miss(model, prompt)
        layer.scaling["default"] = 1.0
        self.assertEqual(self.cache(model, prompt).outcome, Outcome.RESTORED)

    def test_the_same_files_at_another_path_are_the_same_weights(self):
        prompt = prompt_of()
        for name, seed, outcome in (
            ("here", 0, Outcome.MISS),
            ("there", 0, Outcome.RESTORED),
            ("here", 1, Outcome.MISS),
        ):
            llama(seed=seed).save_pretrained(self.directory / name)
            model = LlamaForCausalLM.from_pretrained(self.directory / name).eval()
            cache, _ = self.check(model, prompt)
            self.assertEqual(cache.outcome, outcome)

    def test_salts_labels_and_prompts_keep_apart(self):
        model, prompt = model_of("llama"), prompt_of()
        self.check(model, prompt, cache_salt="one")
        self.expect_miss(model, prompt, cache_salt="two")
        self.expect_miss(model, prompt)
        self.expect_miss(model, prompt, cache_salt="one", identity="other")
        changed = prompt.clone()
        changed[0, 0] += 1 if changed[0, 0] < VOCABULARY - 1 else -1
        self.expect_miss(model, changed, cache_salt="one")
        cache, _ = self.check(model, prompt, cache_salt="one")
        self.assertEqual(cache.outcome, Outcome.RESTORED)


class RefusalTest(KvtierTestCase):
    def test_more_than_one_sequence_is_an_error(self):
        model, prompt = model_of("llama"), prompt_of()
        with self.assertRaisesRegex(ValueError, "one sequence"):
            self.cache(model, prompt.repeat(2, 1))
        with self.assertRaisesRegex(ValueError, "num_beams"):
            generate(model, prompt, self.cache(model, prompt), num_beams=2)
        padded = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        padded["attention_mask"][0, 0] = 0
        with self.assertRaisesRegex(ValueError, "padding"):
            self.cache(model, padded)

    def test_an_output_of_another_prompt_is_an_error(self):
        model = model_of("llama")
        cache = self.cache(model, prompt_of())
        with self.assertRaisesRegex(ValueError, "does not begin"):
            cache.store(prompt_of())

    def test_assisted_decoding_is_an_error_and_stores_nothing(self):
        """transformers takes drafts for tokens of the prompt if a cache is not empty."""
        model, prompt = model_of("llama"), prompt_of(60).repeat(1, 5)
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "assisted"), self.cache(model, prompt) as cache:
                generate(model, prompt, cache, prompt_lookup_num_tokens=4)
            self.check(model, prompt)
        assistant = llama(seed=7)
        with self.assertRaisesRegex(ValueError, "assisted"):
            generate(model, prompt, self.cache(model, prompt), assistant_model=assistant)
        plain = {"prompt_lookup_num_tokens": 4}
        expected = generate(model, prompt).tolist()
        self.assertEqual(generate(model, prompt, **plain).tolist(), expected)

    def test_hooks_and_functions_that_may_change_what_layers_compute_are_refused(self):
        model, prompt, accelerate = llama(seed=8), prompt_of(), fake_accelerate()
        self.check(model, prompt)
        steering = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(1))

        def steer(module, args, output):
            if isinstance(output, tuple):
                return (output[0] + steering, *output[1:])
            return output + steering

        layer = model.model.layers[0]
        own = layer.mlp.forward
        moves, casts = accelerate.AlignDevicesHook(), accelerate.LayerwiseCastingHook()

        @functools.wraps(own)
        def steered(states):
            return own(states) + steering

        for change in (
            lambda: layer.register_forward_hook(steer),
            lambda: layer.register_forward_pre_hook(lambda module, args: None),
            lambda: torch.nn.modules.module.register_module_forward_hook(lambda *_: None),
            lambda: mock.patch.object(layer.mlp, "forward", steered),
            lambda: mock.patch.object(layer.mlp, "forward", functools.partial(steered)),
            lambda: mock.patch.object(layer.mlp, "forward", model.model.layers[1].mlp.forward),
            lambda: accelerate.hooked(layer.mlp, accelerate.SequentialHook(moves, casts)),
        ):
            with change():
                cache, _ = self.check(model, prompt)
                self.assertEqual(cache.outcome, Outcome.UNSUPPORTED)
                self.assertEqual(cache.store(), 0)
        compiled = torch.compile(own, backend="eager")
        for change in (
            lambda: mock.patch.object(layer.mlp, "forward", own),
            lambda: mock.patch.object(layer.mlp, "forward", compiled),
            lambda: accelerate.hooked(layer.mlp, accelerate.SequentialHook(moves, moves)),
        ):
            with change():
                self.assertEqual(self.cache(model, prompt).outcome, Outcome.RESTORED)
        compiled = torch.compile(model, backend="eager")
        cache = self.cache(compiled, prompt)
        compiled(prompt, past_key_values=cache)
        self.assertEqual((cache.outcome, cache.store()), (Outcome.MISS, 18))
        with mock.patch.object(layer.mlp, "forward", torch.compile(steered, backend="eager")):
            self.assertEqual(self.cache(model, prompt).outcome, Outcome.UNSUPPORTED)
        model(prompt, output_hidden_states=True)  # for which transformers leaves hooks
        cache, _ = self.check(model, prompt)
        self.assertEqual(cache.outcome, Outcome.RESTORED)

    def test_offloaded_weights_are_not_taken_for_others(self):
        prompt, accelerate = prompt_of(), fake_accelerate()
        for scale in (1.0, 1.5):
            model = llama(seed=9)
            layer = model.model.layers[1].mlp.down_proj
            weight = torch.nn.Parameter(layer.weight.detach() * scale)
            with accelerate.hooked(layer, accelerate.AlignDevicesHook(weight=weight)):
                self.assertTrue(layer.weight.is_meta)
                cache, _ = self.check(model, prompt)
                self.assertEqual(cache.outcome, Outcome.UNSUPPORTED)

    def test_token_types_are_told_apart_and_those_that_vary_are_not_cached(self):
        model, prompt = gpt2(), prompt_of()
        for kind in (None, 5, 400):
            inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
            if kind is not None:
                inputs["token_type_ids"] = torch.full_like(prompt, kind)
            expected = model.generate(**inputs, max_new_tokens=8, do_sample=False).tolist()
            for restored in (0, 288):
                cache = self.cache(model, inputs)
                self.assertEqual(cache.restored_tokens, restored)
                output = model.generate(
                    **inputs, max_new_tokens=8, do_sample=False, past_key_values=cache
                )
                self.assertEqual(output.tolist(), expected)
                cache.store(output)
        inputs["token_type_ids"][0, 10] = 5
        self.assertEqual(self.cache(model, inputs).outcome, Outcome.UNSUPPORTED)

    def test_what_tokens_do_not_tell_is_not_cached(self):
        model, prompt = model_of("llama"), prompt_of()
        cache = self.cache(model, {"input_ids": prompt, "pixel_values": torch.zeros(1)})
        self.assertEqual(cache.outcome, Outcome.UNSUPPORTED)
        self.assertEqual(cache.store(), 0)
        with mock.patch.object(model.config, "image_token_id", int(prompt[0, 100]), create=True):
            end = prompt[0].tolist().index(model.config.image_token_id)
            self.cache(model, prompt)
            with self.cache(model, prompt) as cache:
                generate(model, prompt, cache)
            self.assertEqual(self.cache(model, prompt).restored_tokens, end // 16 * 16)

    def test_padding_within_a_prompt_ends_what_is_cached(self):
        # transformers leaves such tokens out of the positions of those behind them.
        model, prompt = llama(seed=5, pad_token_id=7), prompt_of()
        prompt[prompt == 7] = 8
        prompt[0, 200] = 7
        for _ in range(2):
            cache, _ = self.check(model, prompt)
        self.assertEqual(cache.restored_tokens, 192)

    def test_models_that_cannot_be_cached_generate_all_the_same(self):
        prompt = prompt_of()
        training = llama(seed=4).train()
        self.assertEqual(self.cache(training, prompt).outcome, Outcome.UNSUPPORTED)
        # The same weights, which are known by then.
        self.check(training.eval(), prompt)
        self.assertEqual(self.cache(training.train(), prompt).outcome, Outcome.UNSUPPORTED)
        sizes = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}
        both = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, **sizes))
        self.assertEqual(self.cache(both, prompt).outcome, Outcome.UNSUPPORTED)
        broken = llama(seed=6)
        error = TypeError("code of its own")
        with mock.patch.object(type(broken), "forward", side_effect=error):
            self.assertEqual(self.cache(broken, prompt).outcome, Outcome.UNSUPPORTED)
        forgetful = qwen3_next(seed=1)
        kind = type(forgetful)
        forward = kind.forward

        def forget(self, ids, past_key_values, **more):
            # As some models do, for which a restored state would be as none.
            for layer in past_key_values.layers if ids.shape[1] > 1 else ():
                for state in getattr(layer, "recurrent_states", {}).values():
                    if state is not None:
                        state.zero_()
            return forward(self, ids, past_key_values=past_key_values, **more)

        with mock.patch.object(kind, "forward", forget):
            self.assertEqual(self.cache(forgetful, prompt).outcome, Outcome.UNSUPPORTED)
        with mock.patch.object(kind, "forward") as again:
            self.assertEqual(self.cache(forgetful, prompt).outcome, Outcome.UNSUPPORTED)
        again.assert_not_called()


class FailureTest(KvtierTestCase):
    def setUp(self):
        self.addCleanup(self.daemon.start)
        self.addCleanup(self.daemon.kill)

    def test_without_a_daemon_all_is_computed(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                self.daemon.kill()
                cache, output = self.check(model, prompt)
                self.assertEqual(cache.outcome, Outcome.UNAVAILABLE)
                self.assertEqual(cache.store(output), 0)
                # It need not be there when the cache is made.
                self.daemon.start()
                self.assertGreater(cache.store(output), 0)
                self.assertEqual(self.cache(model, prompt).outcome, Outcome.RESTORED)

    def test_a_daemon_that_ends_meanwhile_costs_only_the_store(self):
        model, prompt = model_of("gemma3"), prompt_of()
        self.check(model, prompt)
        cache = self.cache(model, prompt)
        self.daemon.kill()
        output = generate(model, prompt, cache)
        self.assertEqual(output.tolist(), generate(model, prompt).tolist())
        self.assertEqual(cache.store(output), 0)

    def test_a_daemon_that_does_not_answer_is_a_miss(self):
        model, prompt = model_of("llama"), prompt_of()
        self.check(model, prompt)
        self.daemon.pause()
        cache = self.cache(model, prompt, timeout_ms=100)
        self.assertEqual(cache.outcome, Outcome.UNAVAILABLE)
        self.daemon.resume()
        self.assertEqual(self.cache(model, prompt).outcome, Outcome.RESTORED)

    def test_a_daemon_that_dies_while_it_loads_is_a_miss(self):
        model, prompt = model_of("qwen3-next"), prompt_of()
        self.check(model, prompt)
        begin = transfer.Region.load_many

        def load_and_die(*arguments, **more):
            number = begin(*arguments, **more)
            self.daemon.kill()
            return number

        with mock.patch.object(transfer.Region, "load_many", load_and_die):
            self.check(model, prompt)

    def test_all_comes_back_from_disk_after_both_were_restarted(self):
        prompt = prompt_of()[0].tolist()
        for name, make in MODELS.items():
            make().save_pretrained(self.directory / name)
        cold = self.run_process(prompt)
        self.assertEqual([one["outcome"] for one in cold], ["miss"] * len(MODELS))
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        for name, before, after in zip(MODELS, cold, self.run_process(prompt)):
            with self.subTest(name):
                self.assertEqual(after["restored"], restorable(name, PROMPT_TOKENS))
                self.assertEqual(after["tokens"], before["tokens"])

    def test_damaged_blocks_end_the_prefix_before_them(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                self.check(model, prompt)
                self.daemon.drain()
                self.daemon.kill()
                self.daemon.corrupt_disk(first=(1 << 20) + 6_000, step=8 << 10)
                self.daemon.start()
                cache, _ = self.check(model, prompt)
                self.assertLess(cache.restored_tokens, restorable(name, PROMPT_TOKENS))

    def run_process(self, prompt):
        command = [sys.executable, str(HERE / "cached_model.py"), self.daemon.socket]
        command += [json.dumps(prompt), *(str(self.directory / name) for name in MODELS)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=PROCESS_TIMEOUT_S
        )
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return json.loads(done.stdout)


class LongestPrefixTest(unittest.TestCase):
    def test_it_is_what_the_hit_rules_define(self):
        groups = [
            Group(KvGroup(1, 1, 8, 8, block_tokens=16)),
            Group(KvGroup(1, 1, 8, 8, hit_rule=HitRule.TRAILING, window_tokens=39)),
            Group(KvGroup(1, layer_bytes=8, block_tokens=32, hit_rule=HitRule.STATE)),
        ]
        random_bits = np.random.default_rng(7)
        for _ in range(200):
            limit = int(random_bits.integers(1, 400))
            presence = [
                (random_bits.random(400 // group.kv.block_tokens) < 0.8).astype(np.uint8)
                for group in groups
            ]
            presence[0][: int(random_bits.integers(1, 26))] = 1
            expected = 0
            for tokens in range(32, min(limit, 384) + 1, 32):
                ends = [
                    all(presence[0][: tokens // 16]),
                    all(presence[1][max(0, tokens - 39) // 16 : tokens // 16]),
                    presence[2][tokens // 32 - 1],
                ]
                expected = tokens if all(ends) else expected
            self.assertEqual(transfer.longest_prefix(groups, presence, limit), expected)


if __name__ == "__main__":
    unittest.main()
