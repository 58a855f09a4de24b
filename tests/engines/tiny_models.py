# SPDX-License-Identifier: Apache-2.0
"""Models of a hundred thousand weights, drawn at random but widely enough that their greedy tokens
differ with any change of the context. Nothing is downloaded.

KVTIER_TEST_DEVICE: where they are, for example cuda:0; default cpu.
"""

import os

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

# Without the GPU libraries that torch is linked with, this question ends the process: their
# stand-ins (tests/vllm/gpu_stubs.py) answer it with an error that has no text.
if not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False

DEVICE = torch.device(os.environ.get("KVTIER_TEST_DEVICE", "cpu"))
VOCABULARY = 512
GAIN = 2.0
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
WINDOW = 40
# Tokens beyond those of prompts, of models that see images.
IMAGES = {"vocab_size": VOCABULARY + 8}
IMAGE, VIDEO, VISION_START, VISION_END = range(VOCABULARY, VOCABULARY + 4)


def llama(seed=0, **more):
    """Full attention in all layers."""
    return _drawn(LlamaForCausalLM, LlamaConfig(**{"num_hidden_layers": 3, **COMMON, **more}), seed)


def gemma3(seed=0):
    """Sliding windows, and full attention in one layer of three."""
    config = Gemma3TextConfig(
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=WINDOW,
        query_pre_attn_scalar=16,
        **COMMON,
    )
    return _drawn(Gemma3ForCausalLM, config, seed)


def gpt2(seed=0):
    """Full attention, and token types that have embeddings."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=1024,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _drawn(GPT2LMHeadModel, config, seed)


def qwen3_next(seed=0):
    """Linear attention, and full attention in one layer of three."""
    config = Qwen3NextConfig(
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        # No experts, since which ones are chosen can change with rounding.
        mlp_only_layers=[0, 1, 2],
        **COMMON,
    )
    return _drawn(Qwen3NextForCausalLM, config, seed)


def paligemma(seed=0):
    """Full attention, by which each token of a prompt sees all others."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma", **COMMON, **IMAGES, "num_hidden_layers": 3},
        vision_config={**sizes, "intermediate_size": 32, "image_size": 28, "patch_size": 14},
        image_token_index=IMAGE,
    )
    return _drawn(PaliGemmaForConditionalGeneration, config, seed)


def gemma3_images(seed=0):
    """As `gemma3`, with images, of which token types tell where they are."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**gemma3(seed).config.to_dict(), **IMAGES},
        vision_config={**sizes, "intermediate_size": 32, "image_size": 28, "patch_size": 14},
        image_token_index=IMAGE,
    )
    return _drawn(Gemma3ForConditionalGeneration, config, seed)


def qwen2_vl(seed=0):
    """Full attention, and positions by which an image is shorter than its tokens."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    config = Qwen2VLConfig(
        text_config={**COMMON, **IMAGES, "num_hidden_layers": 3, "rope_parameters": rope},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    )
    model = _drawn(Qwen2VLForConditionalGeneration, config, seed)
    model.generation_config.suppress_tokens = [IMAGE, VIDEO]
    return model


MODELS = {"llama": llama, "gemma3": gemma3, "qwen3-next": qwen3_next}


def _drawn(kind, config, seed):
    torch.manual_seed(seed)
    model = kind(config).eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "A_log" in name:
                weight.fill_(-4.0)  # states that remember hundreds of tokens
            if weight.ndim < 2 or "conv1d" in name:
                continue
            # Attention must count beside the residual, or the cache would not show in the tokens.
            gain = GAIN if "attn" in name else 4.0 if "lm_head" in name else 1.0
            scale = weight.shape[-1] ** 0.5
            weight.normal_(std=gain if "embed" in name else gain / scale)
    # Drawn on the CPU, so that the weights are the same on every device.
    return model.to(DEVICE)
