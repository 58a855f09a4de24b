# SPDX-License-Identifier: Apache-2.0
"""The settings of one run of the benchmark: the model, the sizes, the requests to each engine."""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

from conversation import distinct_tokens, is_chat, read_load

GIB = 1 << 30
MIB = 1 << 20
BFLOAT16_BYTES = 2
GRAPH_SIZES = [1, 2, 4, 8, 16, 32, 64]
# Host memory also holds the warm-up's blocks.
FULL_SHARE = 0.9
SPREAD_OF_A_SESSION_S = 0.3
LLAMA = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
    intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    head_dim=128, vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-5,
    rope_theta=500000.0, hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16",
    bos_token_id=1, eos_token_id=2, attention_bias=False,
)  # fmt: skip
# In the manner of Gemma 3: five layers in six see a window only.
WINDOWS = dict(
    architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_size=2560,
    intermediate_size=10240, num_hidden_layers=30, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-6,
    query_pre_attn_scalar=128, sliding_window=1024, hidden_activation="gelu_pytorch_tanh",
    layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5, tie_word_embeddings=False,
    torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2, pad_token_id=0, attention_bias=False,
)  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {"llama": LLAMA, "windows": WINDOWS}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "llama": dict(
        LLAMA, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, vocab_size=1024,
    ),
    "windows": dict(
        WINDOWS, hidden_size=256, intermediate_size=512, num_hidden_layers=4, vocab_size=1024,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, query_pre_attn_scalar=64,
        sliding_window=48, layer_types=["sliding_attention"] * 3 + ["full_attention"],
    ),
}  # fmt: skip


class Settings:
    """Settings of one run, from the command line. work: a directory for the model, sockets and disk
    tiers. Raises TraceError, OSError."""

    def __init__(self, arguments: argparse.Namespace, work: pathlib.Path) -> None:
        self.small: bool = arguments.small
        self.lengths: list[int] = arguments.lengths
        self.trials: int = arguments.trials
        self.host_bytes = int(arguments.host_gib * GIB)
        self.disk_bytes = int(arguments.disk_gib * GIB)
        self.daemon: list[str] = arguments.set
        self.kv_bytes = int(arguments.kv_gib * GIB)
        self.eager: bool = not arguments.graphs
        self.compiles: bool = self.eager or not arguments.no_compile
        self.load = dict(
            requests=arguments.requests, length=arguments.request_length, tokens=arguments.output
        )
        self.converse = dict(
            traces=arguments.traces, sessions=arguments.sessions, turns=arguments.turns,
            longest=max(self.lengths), spread_s=arguments.spread_s,
        )  # fmt: skip
        self.seeds: list[int] = arguments.seeds
        self.only_converse: bool = arguments.only_converse
        self.only_hits: bool = arguments.only_hits
        self.disk_hits: bool = arguments.disk_hits
        self.work = work
        self._model: dict[str, Any] = dict((SMALL_MODELS if self.small else MODELS)[arguments.model])
        if arguments.layers:
            self._model["num_hidden_layers"] = arguments.layers
        self.levels: list[float] = arguments.levels
        self.objective_ms: float = arguments.objective_ms
        self.working_set_bytes = self._working_set_bytes() if self.levels else 0
        if arguments.host_share:
            self.host_bytes = int(arguments.host_share * self.working_set_bytes) // MIB * MIB

    def level(self, sessions: float, position: int) -> dict:
        """The load of that many sessions at once; each level has prompts of its own. They begin
        one after another, for first prompts that all come together say nothing of the load. A
        level of chat is that many requests each second."""
        seed = self.seeds[0] * 100 + position + 1
        if is_chat(self.converse["traces"]):
            return dict(self.converse, requests_per_s=sessions, seed=seed)
        return dict(
            self.converse, sessions=sessions, seed=seed,
            spread_s=self.converse["spread_s"] or sessions * SPREAD_OF_A_SESSION_S,
        )  # fmt: skip

    def _working_set_bytes(self) -> int:
        """All blocks of the largest level's sessions, as the model has them."""
        level = self.level(self.levels[-1], len(self.levels) - 1)
        load = read_load(level, self._model["vocab_size"])
        return self.prompt_bytes(distinct_tokens(load.sessions))

    def prompt_bytes(self, tokens: int) -> int:
        """The blocks of so many tokens; more than a model with windows has."""
        heads_bytes = self._model["num_key_value_heads"] * self._model["head_dim"] * BFLOAT16_BYTES
        return tokens * 2 * self._model["num_hidden_layers"] * heads_bytes

    @property
    def kept_lengths(self) -> list[int]:
        """The prompts' lengths, from the shortest on, whose blocks fit host memory together."""
        kept, tokens = [], 0
        for length in sorted(self.lengths):
            tokens += length * self.trials
            if self.prompt_bytes(tokens) > FULL_SHARE * self.host_bytes:
                break
            kept.append(length)
        return kept

    def model(self) -> str:
        path = self.work / "model"
        path.mkdir(exist_ok=True)
        config = path / "config.json"
        if not config.exists():
            config.write_text(json.dumps(self._model))
        return str(path)

    def log(self, name: str) -> pathlib.Path:
        return self.work / f"{name}.log"

    def engine_options(self, connector: dict | None, share: float) -> dict:
        options: dict[str, Any] = dict(
            load_format="kvtier_random",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=0,
            max_model_len=max(self.lengths) + 256,
            enforce_eager=self.eager,
            enable_prefix_caching=True,
            # Sessions tell where their hits were lost.
            disable_log_stats=not self.only_converse,
            prefix_caching_hash_algo="sha256_cbor",
            kv_transfer_config=connector,
        )
        # vLLM wants so much to be free, beside a KV cache that was kept, another engine or a compiler.
        options["gpu_memory_utilization"] = 0.3
        if self.small:
            options["block_size"] = 32
            # vLLM for CPUs cannot draw tokens with a seed for prompts that it computes in parts.
            options["max_num_batched_tokens"] = options["max_model_len"]
        else:
            options["kv_cache_memory_bytes"] = int(self.kv_bytes * share)
            # More than ever run at once here; with vLLM's 1,024 it captures many more graphs.
            options["max_num_seqs"] = 64
            if not self.compiles:
                options["compilation_config"] = dict(
                    mode=0, cudagraph_mode="FULL", cudagraph_capture_sizes=GRAPH_SIZES
                )
        return options
