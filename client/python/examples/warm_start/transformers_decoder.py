# SPDX-License-Identifier: Apache-2.0
"""A decoder of the transformers library, made from a configuration in code."""

from __future__ import annotations

from typing import Any

import torch
from decoder import Decoder, Geometry
from transformers import AttentionInterface, DynamicCache, LlamaConfig, LlamaForCausalLM

_SEED = 1
_OWN_ATTENTION = "kvtier"


class TransformersDecoder(Decoder):
    """With the library's own attention over a DynamicCache, or that of `attend`."""

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(geometry, device, dtype)
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
            rope_parameters={"rope_type": "default", "rope_theta": geometry.rope_theta},
        )
        torch.manual_seed(_SEED)
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        with device:
            self._model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(default)

    def new_cache(self) -> Any:
        return DynamicCache()

    @torch.inference_mode()
    def forward(self, tokens: list[int], first: int, cache: Any | None) -> torch.Tensor:
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
