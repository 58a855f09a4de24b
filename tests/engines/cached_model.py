# SPDX-License-Identifier: Apache-2.0
"""Generates in a process of its own, as a user's program would.

    cached_model.py SOCKET PROMPT_JSON MODEL_DIRECTORY...

Prints for each model {"tokens": [...], "restored": N, "outcome": "..."}, in a list.
"""

import json
import sys

import torch
from tiny_models import DEVICE  # which also lets torch run without GPU libraries
from transformers import AutoModelForCausalLM

from kvtier.transformers import KvtierCache


def generate(directory, socket, prompt):
    model = AutoModelForCausalLM.from_pretrained(directory).to(DEVICE)
    inputs = torch.tensor([prompt], device=DEVICE)
    cache = KvtierCache.for_model(model, inputs, socket=socket, state_tokens=64)
    output = model.generate(inputs, past_key_values=cache, max_new_tokens=24, do_sample=False)
    cache.store(output)
    reply = {"tokens": output[0].tolist(), "restored": cache.restored_tokens}
    return {**reply, "outcome": cache.outcome.value}


def main():
    socket, prompt, *directories = sys.argv[1:]
    print(json.dumps([generate(one, socket, json.loads(prompt)) for one in directories]))


if __name__ == "__main__":
    main()
