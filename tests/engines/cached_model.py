# SPDX-License-Identifier: Apache-2.0
"""Generates in a process of its own, as a user's program would.

    cached_model.py MODEL_DIRECTORY SOCKET PROMPT_JSON

Prints {"tokens": [...], "restored": N, "outcome": "..."}.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

from kvtier.transformers import KvtierCache


def main():
    directory, socket, prompt = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(directory)
    inputs = torch.tensor([json.loads(prompt)])
    cache = KvtierCache.for_model(model, inputs, socket=socket, state_tokens=64)
    output = model.generate(inputs, past_key_values=cache, max_new_tokens=24, do_sample=False)
    cache.store(output)
    reply = {"tokens": output[0].tolist(), "restored": cache.restored_tokens}
    print(json.dumps({**reply, "outcome": cache.outcome.value}))


if __name__ == "__main__":
    main()
