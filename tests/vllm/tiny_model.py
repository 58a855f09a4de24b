# SPDX-License-Identifier: Apache-2.0
"""A Llama of 2 million weights, drawn at random but widely enough that its greedy tokens differ
with any change of the context. Nothing is downloaded."""

import json
import pathlib

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 3, 192, 6, 3, 64, 384, 1024
CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_model(directory: pathlib.Path, seed: int = 0, window: int = 0) -> pathlib.Path:
    """Writes configuration and weights in the format of the hub; other seeds give other weights.
    window: not 0: of the layers but the first, whose blocks are then a cache group of their own."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    configuration = dict(CONFIGURATION)
    if window:
        kinds = ["full_attention"] + ["sliding_attention"] * (LAYERS - 1)
        configuration.update(layer_types=kinds, sliding_window=window)
    (directory / "config.json").write_text(json.dumps(configuration))
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        # A gain of 1 keeps the size of what is multiplied; the initialization that models are
        # trained from is so small that all logits are nearly equal.
        values = torch.randn(rows, columns, generator=generator) * (gain / columns**0.5)
        return values.to(torch.bfloat16)

    weights = {
        "model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN, gain=HIDDEN**0.5),
        "lm_head.weight": drawn(VOCABULARY, HIDDEN, gain=4.0),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        for name, (rows, columns) in shapes.items():
            # Attention must count beside the residual, or the cache would not show in the tokens.
            gain = 3.0 if name.startswith("self_attn") else 1.0
            weights[f"model.layers.{layer}.{name}.weight"] = drawn(rows, columns, gain)
        for name in ("input_layernorm", "post_attention_layernorm"):
            ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
            weights[f"model.layers.{layer}.{name}.weight"] = ones
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
