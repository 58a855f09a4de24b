# SPDX-License-Identifier: Apache-2.0
"""A Llama of 2 million weights, drawn at random but widely enough that its greedy tokens differ
with any change of the context. Nothing is downloaded."""

import json
import pathlib

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 3, 192, 6, 3, 64, 384, 1024
ADAPTER_RANK = 8
# Attention must count beside the residual, or the cache would not show in the tokens. So much makes a
# deep model chaotic: what one layer rounds otherwise the next one doubles.
ATTENTION_GAIN = 3.0
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


def make_model(
    directory: pathlib.Path,
    seed: int = 0,
    window: int = 0,
    layers: int = LAYERS,
    attention_gain: float = ATTENTION_GAIN,
) -> pathlib.Path:
    """Writes configuration and weights in the format of the hub; other seeds give other weights.
    window: not 0: of the layers but the first, whose blocks are then a cache group of their own.
    attention_gain: how much attention counts beside the residual."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    configuration = dict(CONFIGURATION, num_hidden_layers=layers)
    if window:
        kinds = ["full_attention"] + ["sliding_attention"] * (layers - 1)
        configuration.update(layer_types=kinds, sliding_window=window)
    (directory / "config.json").write_text(json.dumps(configuration))
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        # A gain of 1 keeps the size of the product; the initialization that models are trained from
        # is so small that all logits are nearly equal.
        values = torch.randn(rows, columns, generator=generator) * (gain / columns**0.5)
        return values.to(torch.bfloat16)

    weights = {
        "model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN, gain=HIDDEN**0.5),
        "lm_head.weight": drawn(VOCABULARY, HIDDEN, gain=4.0),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    for layer in range(layers):
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
            gain = attention_gain if name.startswith("self_attn") else 1.0
            weights[f"model.layers.{layer}.{name}.weight"] = drawn(rows, columns, gain)
        for name in ("input_layernorm", "post_attention_layernorm"):
            ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
            weights[f"model.layers.{layer}.{name}.weight"] = ones
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def make_drafter(directory: pathlib.Path) -> pathlib.Path:
    """Writes a drafter (EAGLE) for a model of make_model. Its KV of a position is more of the next token
    than of the model's state."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = make_model(directory, seed=5, layers=1, attention_gain=1.0) / "model.safetensors"
    own = {
        name.removeprefix("model."): weight
        for name, weight in load_file(weights).items()
        if ".layers." in name and "input_layernorm" not in name
    }
    generator = torch.Generator().manual_seed(5)
    joins = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) / HIDDEN**0.5
    joins[:, :HIDDEN] *= 2.0
    save_file({**own, "fc.weight": joins.to(torch.bfloat16)}, weights)
    return directory


def make_model_of_kind(
    directory: pathlib.Path,
    kind: str,
    seed: int = 0,
    repeated: int = 1,
    attention_gain: float = ATTENTION_GAIN,
) -> pathlib.Path:
    """As make_model, for other architectures: "windows" (Gemma 3: one layer in four has full
    attention), "windows and experts" (gpt-oss), "experts" (Mixtral), "states" (Qwen3-Next: linear
    attention, experts), "parallel" (Falcon), "latent" (DeepSeek-V2: MLA). repeated: how often the layers come."""
    import torch
    import transformers

    common = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "intermediate_size": 128,
    }
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
    name, special = {
        "windows": (
            "Gemma3ForCausalLM",
            {
                "num_hidden_layers": 4,
                "head_dim": 64,
                "sliding_window": 48,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
                "query_pre_attn_scalar": 64,
            },
        ),
        "windows and experts": (
            "GptOssForCausalLM",
            {
                "num_hidden_layers": 2,
                "head_dim": 64,
                "sliding_window": 48,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
        ),
        "experts": (
            "MixtralForCausalLM",
            {
                "num_hidden_layers": 3,
                "head_dim": 64,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "sliding_window": None,
            },
        ),
        "states": (
            "Qwen3NextForCausalLM",
            {
                **experts,
                "num_hidden_layers": 4,
                "head_dim": 64,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 64,
                "linear_value_head_dim": 64,
                "num_experts": 4,
                "shared_expert_intermediate_size": 64,
            },
        ),
        "parallel": (
            "FalconForCausalLM",
            {
                "hidden_size": 256,
                "num_hidden_layers": 2,
                "num_kv_heads": 2,
                "new_decoder_architecture": True,
            },
        ),
        "latent": (
            "DeepseekV2ForCausalLM",
            {
                **experts,
                "num_hidden_layers": 2,
                "num_key_value_heads": 4,
                "q_lora_rank": None,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 4,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
            },
        ),
    }[kind]
    special = dict(special, num_hidden_layers=special["num_hidden_layers"] * repeated)
    if "layer_types" in special:
        special["layer_types"] = special["layer_types"] * repeated
    model_class = getattr(transformers, name)
    configuration = model_class.config_class(**{**common, **special}, architectures=[name])
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = model_class(configuration).to(torch.bfloat16)
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if weight.ndim >= 2 and "conv" not in parameter:
                # As in make_model.
                columns = weight.shape[-1]
                gain = attention_gain if "attn" in parameter else 1.0
                gain = {"embed_tokens": columns**0.5, "lm_head": 4.0}.get(
                    parameter.split(".")[-2], gain
                )
                values = torch.randn(weight.shape, generator=generator) * (gain / columns**0.5)
                weight.copy_(values.to(weight.dtype))
            elif "q_norm" in parameter:
                weight.fill_(attention_gain)  # else attention would be nearly even, and no token count
    model.save_pretrained(directory)
    if kind == "parallel":
        # As the hub's, which a model completes when it is made.
        path = directory / "config.json"
        configuration = json.loads(path.read_text())
        configuration["num_ln_in_parallel_attn"] = None
        path.write_text(json.dumps(configuration))
    return directory


def make_adapter(directory: pathlib.Path, seed: int) -> pathlib.Path:
    """Writes an adapter (LoRA) for a model of make_model, or others in its place."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            rows = heads * HEAD_DIM
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}_proj"
            a = torch.randn(ADAPTER_RANK, HIDDEN, generator=generator) * 0.2
            b = torch.randn(rows, ADAPTER_RANK, generator=generator) * 0.5
            weights[f"{prefix}.lora_A.weight"] = a.to(torch.bfloat16)
            weights[f"{prefix}.lora_B.weight"] = b.to(torch.bfloat16)
    save_file(weights, directory / "adapter_model.safetensors")
    configuration = {
        "peft_type": "LORA",
        "r": ADAPTER_RANK,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "k_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(configuration))
    return directory
