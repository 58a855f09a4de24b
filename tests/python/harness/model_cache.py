# SPDX-License-Identifier: Apache-2.0
"""A cache of downloaded models as huggingface_hub lays it out, with one model's configuration."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from unittest import mock

COMMIT = "0e9e39f249a16976918f6564b8830bc894c89659"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}


@contextlib.contextmanager
def model_cache(name: str, branch: str = "main") -> Iterator[pathlib.Path]:
    """The directory of the model's files; meanwhile the environment names the cache."""
    with tempfile.TemporaryDirectory(prefix="kvtier-models-") as directory:
        model = pathlib.Path(directory) / ("models--" + name.replace("/", "--"))
        snapshot = model / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(LLAMA))
        (model / "refs").mkdir()
        (model / "refs" / branch).write_text(COMMIT)
        with mock.patch.dict(os.environ, HF_HUB_CACHE=directory):
            yield snapshot
