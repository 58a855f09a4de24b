# SPDX-License-Identifier: Apache-2.0
"""Identity and refusals, with a real transformers and a real kvtierd."""

import contextlib
import functools
import importlib.util
import itertools
import pathlib
import unittest
from unittest import mock

import torch
from tiny_models import DEVICE, VOCABULARY, gpt2, llama, paligemma, qwen3_next
from transformers import LlamaForCausalLM, T5Config, T5ForConditionalGeneration
from transformers_case import PROMPT_TOKENS, KvtierTestCase, generate, prompt_of

from kvtier.transformers import Outcome, trial

HERE = pathlib.Path(__file__).resolve().parent


def fake_accelerate():
    """The fake as accelerate's module of that name."""
    spec = importlib.util.spec_from_file_location("accelerate.hooks", HERE / "fake_accelerate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Around(torch.nn.Module):
    """Has a model compute embeddings of its own, as prompt tuning does."""

    def __init__(self, model, embed, input_ids):
        super().__init__()
        self.model, self.embed, self.input_ids = model, embed, input_ids

    def forward(self, cache):
        input_ids = self.input_ids
        return self.model(inputs_embeds=self.embed(input_ids), past_key_values=cache)


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

    def test_the_first_pass_of_each_call_of_generate_is_looked_at(self):
        """It may be the only one, or begin where the next single token would have."""
        for seed, stores, new_tokens in ((28, True, 24), (29, False, 1)):
            with self.subTest(stores=stores):
                model, prompt = llama(seed=seed), prompt_of()
                cache = self.cache(model, prompt)
                answer = generate(model, prompt, cache)
                if stores:
                    cache.store(answer)
                longer = answer if stores else torch.cat([answer, prompt_of(64)], dim=1)
                value = model.model.layers[1].self_attn.v_proj
                with value.register_forward_hook(lambda module, args, output: output * 1.5):
                    answer = generate(model, longer, cache, max_new_tokens=new_tokens)
                self.assertEqual(cache.store(answer), 0)

    def test_layers_that_are_made_in_training_mode_are_cached_if_it_changes_nothing(self):
        model, prompt = llama(seed=30), prompt_of()
        model.resize_token_embeddings(VOCABULARY + 8, mean_resizing=False)
        model.model.adapters = torch.nn.ModuleDict({"dropout": torch.nn.Identity()})
        self.assertTrue(model.lm_head.training)
        self.expect_miss(model, prompt)

    def test_a_configuration_that_changes_makes_another_model(self):
        model, prompt = llama(seed=26), prompt_of()
        self.check(model, prompt)
        model.set_attn_implementation("eager")
        self.expect_miss(model, prompt)

    def test_nothing_is_stored_of_a_pass_with_another_attention(self):
        model, prompt = llama(seed=32), prompt_of()
        cache = self.cache(model, prompt)
        model.set_attn_implementation("eager")
        answer = generate(model, prompt, cache)
        model.set_attn_implementation("sdpa")
        self.assertEqual(cache.store(answer), 0)

    def test_an_adapter_with_another_scale_is_another_model(self):
        model, prompt = llama(seed=27), prompt_of()
        layer = model.model.layers[1].self_attn.v_proj
        layer.disable_adapters, layer.scaling = False, {"default": 1.0}  # as a layer of PEFT
        self.check(model, prompt)
        layer.scaling["default"] = 30.0
        self.expect_miss(model, prompt)
        layer.scaling["default"] = 1.0
        self.assertEqual(self.cache(model, prompt).outcome, Outcome.RESTORED)

    def test_a_change_of_adapters_is_none_of_the_weights(self):
        llama(seed=31).save_pretrained(self.directory / "adapted")
        model = LlamaForCausalLM.from_pretrained(self.directory / "adapted").eval()
        prompt, layer = prompt_of(), model.model.layers[1].self_attn.v_proj
        layer.disable_adapters, layer.active_adapters = False, ["one"]  # as a layer of PEFT
        self.check(model, prompt)
        for adapters, outcome in ((["two"], Outcome.MISS), (["one"], Outcome.RESTORED)):
            layer.active_adapters = adapters
            self.assertEqual(self.cache(model, prompt).outcome, outcome)

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
        model, prompt = llama(), prompt_of()
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
        model, prompt = llama(), prompt_of()
        with self.assertRaisesRegex(ValueError, "one sequence"):
            self.cache(model, prompt.repeat(2, 1))
        with self.assertRaisesRegex(ValueError, "num_beams"):
            generate(model, prompt, self.cache(model, prompt), num_beams=2)
        padded = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        padded["attention_mask"][0, 0] = 0
        with self.assertRaisesRegex(ValueError, "padding"):
            self.cache(model, padded)

    def test_an_output_of_another_prompt_is_an_error(self):
        model = llama()
        cache = self.cache(model, prompt_of())
        with self.assertRaisesRegex(ValueError, "does not begin"):
            cache.store(prompt_of())

    def expect_stored(self, model, prompt, call, is_stored=False):
        """By a call that gets the prompt's cache."""
        check = self.assertNoLogs if is_stored else self.assertLogs
        with check("kvtier.transformers", "WARNING"), torch.no_grad():
            with self.cache(model, prompt) as cache:
                call(cache)
        outcome = Outcome.RESTORED if is_stored else Outcome.MISS
        self.assertEqual(self.cache(model, prompt).outcome, outcome)

    def test_tokens_that_are_not_those_of_the_prompt_are_not_stored(self):
        """As of `generate` with `token_healing`, which computes a prompt of its own making."""
        model, prompt, other = llama(seed=90), prompt_of(), prompt_of()
        changed = torch.cat([prompt[:, :100], other[:, 100:]], dim=1)
        embed = model.get_input_embeddings()
        compiled = torch.compile(model, backend="eager")
        virtual = torch.zeros(1, 16, embed.embedding_dim, device=DEVICE)
        calls = {
            "other tokens": lambda cache: generate(model, changed, cache),
            "in chunks": lambda cache: generate(model, changed, cache, prefill_chunk_size=64),
            "an answer": lambda cache: generate(model, prompt[:, :100], cache, max_new_tokens=200),
            "embeddings": lambda cache: model(inputs_embeds=embed(changed), past_key_values=cache),
            "compiled": lambda cache: compiled(changed, past_key_values=cache),
            "other embeddings": Around(model, lambda ids: embed(ids) + 0.5, prompt),
            "virtual tokens": Around(model, lambda ids: torch.cat([virtual, embed(ids)], 1), prompt),
            "a list": Around(model, lambda ids: embed(torch.tensor([ids], device=DEVICE)), prompt[0].tolist()),
            "another model": lambda cache: generate(llama(seed=89), prompt, cache),
        }
        for name, call in calls.items():
            with self.subTest(name):
                self.expect_stored(model, prompt, call)

    def test_tokens_with_other_positions_masks_or_kinds_are_not_stored(self):
        model, prompt = gpt2(seed=91), prompt_of()
        mask, positions = torch.ones_like(prompt), torch.arange(PROMPT_TOKENS, device=DEVICE)[None]
        hidden = torch.cat([mask[:, :50] * 0, mask[:, 50:]], dim=1)
        plain = {"attention_mask": mask, "position_ids": positions, "labels": prompt}
        given = {
            "mask": {"attention_mask": hidden},
            "short mask": {"attention_mask": mask[:, 1:]},
            "mask by pairs": {"attention_mask": torch.ones(1, 1, 300, 300, device=DEVICE, dtype=torch.bool)},
            "positions": {"position_ids": positions % 64},
            "one position": {"position_ids": positions[:, :1]},
            "types": {"token_type_ids": mask},
            "both directions": {"is_causal": False},
        }
        for name, more in given.items():
            with self.subTest(name):
                call = functools.partial(model, prompt, **more)
                self.expect_stored(model, prompt, lambda cache: call(past_key_values=cache))
        typed = {"input_ids": prompt, "token_type_ids": mask}
        self.expect_stored(model, typed, lambda cache: model(prompt, past_key_values=cache))
        call = functools.partial(model, prompt, **plain)
        self.expect_stored(model, prompt, lambda cache: call(past_key_values=cache), is_stored=True)

    def test_a_turn_with_a_mask_is_not_stored(self):
        for make in (llama, qwen3_next):
            with self.subTest(make.__name__):
                model, prompt = make(seed=92), prompt_of()
                cache, answer = self.check(model, prompt)
                longer = torch.cat([answer, prompt_of(80)], dim=1)
                mask = torch.ones_like(longer)
                mask[0, :50] = 0
                self.assertEqual(cache.store(generate(model, longer, cache, attention_mask=mask)), 0)

    def test_a_pass_of_something_else_behind_one_token_is_not_stored(self):
        """Models that keep states in their first layer do not tell there how many tokens a pass has."""
        for make, what in itertools.product((llama, qwen3_next), ("tokens", "a mask", "a hook")):
            with self.subTest(make.__name__, what=what), torch.no_grad():
                model, prompt, more = make(seed=93), prompt_of(), prompt_of(81)
                tokens = torch.cat([prompt, more], dim=1)
                mask = torch.ones_like(tokens)
                mask[0, :50] = 0 if what == "a mask" else 1
                cache = self.cache(model, prompt)
                model(prompt[:, cache.get_seq_length() :], past_key_values=cache)
                model(more[:, :1], past_key_values=cache)
                with contextlib.ExitStack() as stack:
                    if what == "a hook":
                        hook = model.model.layers[0].register_forward_pre_hook(lambda *_: None)
                        stack.callback(hook.remove)
                    model(more[:, 1:], attention_mask=mask, past_key_values=cache)
                self.assertEqual(cache.store(tokens) > 0, what == "tokens")

    def test_a_turn_without_the_types_of_the_prompt_is_not_stored(self):
        model, prompt = gpt2(seed=94), prompt_of()
        model.generation_config.pad_token_id = 0
        types = torch.zeros_like(prompt)
        cache = self.cache(model, {"input_ids": prompt, "token_type_ids": types})
        answer = generate(model, prompt, cache, token_type_ids=types)
        longer = torch.cat([answer, prompt_of(80)], dim=1)
        self.assertEqual(cache.store(generate(model, longer, cache)), 0)

    def test_an_answer_that_was_rewritten_after_its_store_is_an_error(self):
        # As by a chat template that leaves out what a model has thought.
        model, prompt = llama(), prompt_of()
        cache = self.cache(model, prompt)
        answer = generate(model, prompt, cache, max_new_tokens=64)
        cache.store(answer)
        rewritten = torch.cat([prompt, answer[:, 332:], prompt_of(100)], dim=1)
        output = generate(model, rewritten, cache)
        with self.assertRaisesRegex(ValueError, "does not begin"):
            cache.store(output)
        cache.store()
        self.assertEqual(self.check(model, output)[0].restored_tokens, 288)

    def test_tokens_in_the_place_of_others_that_were_cropped_are_stored_as_what_they_are(self):
        for kept in (200, 320):
            model, prompt = llama(), prompt_of()
            cache = self.cache(model, prompt)
            answer = generate(model, prompt, cache, max_new_tokens=64)
            cache.store(answer)
            cache.crop(kept - cache.get_seq_length())
            other = torch.cat([answer[:, :kept], prompt_of(100)], dim=1)
            output = generate(model, other, cache)
            cache.store()
            self.assertEqual(self.check(model, answer)[0].restored_tokens, 352)
            cache.store(output)
            following = torch.cat([output, prompt_of(20)], dim=1)
            self.check(model, following)
            cache.reset()
            self.assertEqual(cache.store(generate(model, prompt_of(), cache)), 20)

    def test_assisted_decoding_is_an_error_and_stores_nothing(self):
        """transformers takes drafts for tokens of the prompt if a cache is not empty."""
        model, prompt = llama(), prompt_of(60).repeat(1, 5)
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
        model, prompt = llama(), prompt_of()
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

    def test_a_difference_that_other_tokens_do_not_make_refuses_no_model(self):
        # As where rounding chooses another expert for a token.
        differ = trial._differ
        for tolerance in (trial._KEY_TOLERANCE, trial._STATE_TOLERANCE):
            answers = iter([True])

            def differ_once(expected, found, allowed, only=tolerance, answers=answers):
                return (allowed == only and next(answers, False)) or differ(expected, found, allowed)

            with mock.patch.object(trial, "_differ", differ_once):
                self.assertEqual(self.cache(qwen3_next(seed=2), prompt_of()).outcome, Outcome.MISS)

    def test_a_vocabulary_of_fewer_tokens_than_are_tried_is_cached(self):
        prompt = torch.tensor([[3, 4, 5] * 100], device=DEVICE)
        model = llama(seed=11, vocab_size=8)
        self.check(model, prompt)
        self.assertEqual(self.check(model, prompt)[0].restored_tokens, 288)

    def test_models_in_which_a_prefix_depends_on_more_than_itself_are_refused(self):
        for prompt in (prompt_of(), torch.full_like(prompt_of(), 5)):
            self.assertEqual(self.cache(paligemma(), prompt).outcome, Outcome.UNSUPPORTED)
        model = llama(seed=10)
        forward = type(model).forward

        def put_in_front(self, ids, past_key_values, **more):
            # As prompt tuning does.
            if past_key_values.get_seq_length() == 0:
                ids = torch.cat([torch.tensor([[3, 4]], device=DEVICE), ids], dim=1)
            return forward(self, ids, past_key_values=past_key_values, **more)

        with mock.patch.object(type(model), "forward", put_in_front):
            self.assertEqual(self.cache(model, prompt_of()).outcome, Outcome.UNSUPPORTED)


if __name__ == "__main__":
    unittest.main()
