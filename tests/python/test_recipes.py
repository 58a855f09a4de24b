# SPDX-License-Identifier: Apache-2.0
"""The sizes of docs/engines/RECIPES.md are those that its own command tells."""

import json
import pathlib
import re
import subprocess
import tempfile
import unittest

from harness.paths import SOURCE, daemon_program

KVTIERCTL = pathlib.Path(daemon_program()).parent / "kvtierctl"
PAGE = SOURCE / "docs" / "engines" / "RECIPES.md"
LLAMA = {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, "head_dim": 128}
# The models' own config.json, as far as it describes their KV cache.
CONFIGS = {
    "meta-llama/Llama-3.1-8B": {**LLAMA, "num_hidden_layers": 32, "num_attention_heads": 32},
    "meta-llama/Llama-3.3-70B-Instruct": {**LLAMA, "num_hidden_layers": 80, "num_attention_heads": 64},
    "deepseek-ai/DeepSeek-V3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
    },
    "openai/gpt-oss-120b": {
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    },
}


def recipes():
    """For each row of the page's table the arguments of its command `kvtierctl size`, and its cells."""
    page = PAGE.read_text()
    command = re.search(r"^kvtierctl size config.json (.*)$", page, re.MULTILINE).group(1).split()
    rows = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\| (.*) \|$", page, re.M)]
    names, *rows = rows
    for row in rows:
        given = dict(zip(names, row))
        yield [given.get(word, word) for word in command], row


def number(text):
    """The number at the beginning of a cell: "7.7 million tokens", "507,904 tokens"."""
    digits, million = re.match(r"([\d.,]+)( million)?", text).groups()
    return float(digits.replace(",", "")) * (1e6 if million else 1)


def size(model, arguments):
    """The output of `kvtierctl size` for a model with these arguments."""
    with tempfile.TemporaryDirectory(prefix="kvtier-recipes-") as directory:
        config = pathlib.Path(directory) / "config.json"
        config.write_text(json.dumps({"torch_dtype": "bfloat16", **CONFIGS[model]}))
        command = [KVTIERCTL, "--json", "size", config, *arguments]
        told = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


class RecipesTest(unittest.TestCase):
    def test_the_table_has_what_the_command_above_it_tells(self):
        models = []
        for arguments, (model, *_, a_token, host, disk) in recipes():
            with self.subTest(model):
                told = size(model, arguments)
                tokens = {tier: told["tiers"][tier]["tokens"] for tier in ("host", "disk")}
                self.assertAlmostEqual(number(host) / tokens["host"], 1, delta=0.01)
                self.assertAlmostEqual(number(disk) / tokens["disk"], 1, delta=0.01)
                ranks = int(dict(zip(arguments, arguments[1:])).get("--tensor-parallel", 1))
                sharers = 1 if told["latent"] else ranks
                kib = told["bytes_per_token"] * sharers / 1024
                self.assertAlmostEqual(number(a_token) / kib, 1, delta=0.01)
            models.append(model)
        self.assertEqual(models, list(CONFIGS))


if __name__ == "__main__":
    unittest.main()
