# SPDX-License-Identifier: Apache-2.0
"""Models that see images, with a real transformers and a real kvtierd: they move the positions of tokens, and keep
by how much beyond the prompt."""

import unittest

import torch
from tiny_models import DEVICE, IMAGE, VISION_END, VISION_START, gemma3_images, qwen2_vl
from transformers_case import KvtierTestCase, generate, prompt_of

from kvtier.transformers import Outcome

IMAGE_TOKENS = 16
OPTIONS = {"max_new_tokens": 8, "do_sample": False}


def image_inputs(text):
    """Text, an image, and more text."""
    image = torch.tensor([[VISION_START, *[IMAGE] * IMAGE_TOKENS, VISION_END]], device=DEVICE)
    ids = torch.cat([text, image, prompt_of(20)], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == IMAGE).int(),
        "pixel_values": torch.randn(4 * IMAGE_TOKENS, 3 * 2 * 14 * 14, device=DEVICE),
        "image_grid_thw": torch.tensor([[1, 8, 8]], device=DEVICE),
    }


class ImagesTest(KvtierTestCase):
    def see(self, model):
        model.generate(**image_inputs(prompt_of(4)), **OPTIONS)
        self.assertTrue(model.model.rope_deltas.any())

    def test_a_text_is_restored_to_its_own_positions_after_an_image(self):
        prompt = prompt_of()
        model = qwen2_vl(seed=1)
        self.check(model, prompt[:, :160])
        self.see(model)
        self.assertEqual(self.check(model, prompt)[0].restored_tokens, 160)
        # In another process, perhaps.
        self.assertEqual(self.check(qwen2_vl(seed=1), prompt)[0].restored_tokens, 288)

    def test_a_text_is_restored_to_a_model_that_gets_token_types_with_its_prompt_alone(self):
        prompt, model = prompt_of(), gemma3_images(seed=8)
        inputs = {"input_ids": prompt, "token_type_ids": torch.zeros_like(prompt)}
        plain = model.generate(**inputs, **OPTIONS).tolist()
        for outcome in (Outcome.MISS, Outcome.RESTORED):
            with self.cache(model, inputs) as cache:
                output = model.generate(**inputs, **OPTIONS, past_key_values=cache)
            self.assertEqual((cache.outcome, output.tolist()), (outcome, plain))

    def test_a_text_is_restored_after_several_at_once(self):
        prompt, model = prompt_of(), qwen2_vl(seed=2)
        self.check(model, prompt)
        model.generate(prompt_of().repeat(3, 1), **OPTIONS)
        self.assertEqual(self.check(model, prompt)[0].restored_tokens, 288)

    def test_nothing_is_stored_of_a_turn_behind_the_image_of_another_prompt(self):
        prompt, model = prompt_of(), qwen2_vl(seed=3)
        cache, answer = self.check(model, prompt)
        self.see(model)
        longer = torch.cat([answer, prompt_of(80)], dim=1)
        self.assertEqual(cache.store(generate(model, longer, cache)), 0)

    def test_a_text_is_stored_after_the_image_of_another_prompt(self):
        prompt, model = prompt_of(), qwen2_vl(seed=6)
        cache = self.cache(model, prompt)
        output = generate(model, prompt, cache)
        self.see(model)
        self.assertEqual(cache.store(output), 20)
        self.assertEqual(self.check(model, prompt)[0].restored_tokens, 288)

    def test_nothing_is_stored_of_steps_behind_the_image_of_another_prompt(self):
        prompt, model = prompt_of(), qwen2_vl(seed=7)
        cache = self.cache(model, prompt)
        with torch.no_grad():
            for tokens in (prompt, prompt_of(1), prompt_of(1)):
                model(tokens, past_key_values=cache)
            self.see(model)
            model(prompt_of(1), past_key_values=cache)
        self.cache(model, prompt_of())  # by which they are forgotten
        self.assertEqual(cache.store(), 0)

    def test_a_text_before_an_image_is_stored_and_restored(self):
        model, inputs = qwen2_vl(seed=4), image_inputs(prompt_of(80))
        plain = model.generate(**inputs, **OPTIONS).tolist()
        for outcome in (Outcome.MISS, Outcome.RESTORED):
            cache = self.cache(model, inputs["input_ids"])
            self.assertEqual(cache.outcome, outcome)
            output = model.generate(**inputs, **OPTIONS, past_key_values=cache)
            self.assertEqual(output.tolist(), plain)
            cache.store(output)

    def test_another_attention_of_the_text_alone_makes_another_model(self):
        model, prompt = qwen2_vl(seed=5), prompt_of()
        self.check(model, prompt)
        model.set_attn_implementation({"text_config": "eager"})
        self.assertEqual(self.cache(model, prompt).outcome, Outcome.MISS)


if __name__ == "__main__":
    unittest.main()
