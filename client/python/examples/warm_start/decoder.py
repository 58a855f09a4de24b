"""A decoder of the transformers library with random weights, made from a configuration in code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from transformers import AttentionInterface, DynamicCache, LlamaConfig, LlamaForCausalLM

import kvtier

_SEED = 1
_OWN_ATTENTION = "kvtier"


@dataclass(frozen=True)
class Geometry:
    """Sizes of a Llama model."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


LLAMA_8B = Geometry("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256)
SMALL = Geometry("small", 4, 256, 512, 8, 4, 32, 512)


class Decoder:
    """Runs tokens of one sequence through the model. One thread.

    Attention is the library's own over a DynamicCache, or that of `attend`: a function with the
    arguments of the library's attention interface, which keeps keys and values itself.
    """

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        self.geometry = geometry
        self.device = device
        self.dtype = dtype
        self.attend: Callable[..., tuple[torch.Tensor, None]] | None = None
        AttentionInterface.register(_OWN_ATTENTION, self._attend)
        config = LlamaConfig(
            vocab_size=geometry.vocabulary,
            hidden_size=geometry.hidden,
            intermediate_size=geometry.intermediate,
            num_hidden_layers=geometry.layers,
            num_attention_heads=geometry.q_heads,
            num_key_value_heads=geometry.kv_heads,
            head_dim=geometry.head_dim,
            max_position_embeddings=131072,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        )
        torch.manual_seed(_SEED)
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        with device:
            self._model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(default)

    def record(self, revision: str) -> kvtier.ModelRecord:
        """What the daemon is told of the model's KV."""
        geometry = self.geometry
        names = {torch.bfloat16: kvtier.DType.BFLOAT16, torch.float32: kvtier.DType.FLOAT32}
        return kvtier.ModelRecord(
            name=geometry.name,
            revision=revision,
            layers=geometry.layers,
            kv_heads=geometry.kv_heads,
            k_head_dim=geometry.head_dim,
            v_head_dim=geometry.head_dim,
            dtype=names[self.dtype],
        )

    @torch.inference_mode()
    def forward(self, tokens: list[int], first: int, cache: DynamicCache | None) -> torch.Tensor:
        """Logits after the last of `tokens`, which stand from position `first` on: float32
        [vocabulary]. cache: holds the tokens before and takes these; None: `attend` does."""
        name = "sdpa" if cache is not None else _OWN_ATTENTION
        if self._model.config._attn_implementation != name:
            self._model.set_attn_implementation(name)
        ids = torch.tensor([tokens], device=self.device)
        positions = torch.arange(first, first + len(tokens), device=self.device)[None]
        hidden = self._model.model(
            input_ids=ids,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        logits: torch.Tensor = self._model.lm_head(hidden[0, -1])
        return logits.float()

    def _attend(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, None]:
        assert self.attend is not None
        return self.attend(*arguments, **options)
