# SPDX-License-Identifier: Apache-2.0
"""The modules of the example engine, and an engine in a process of its own:

    nano_engine_modules.py SOCKET PROMPTS_JSON NEW_TOKENS

prints [[answer, cached tokens], ...].
"""

import json
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "client/python/examples/nano_engine"))

import torch  # noqa: E402
from attention import Steps  # noqa: E402
from engine import Engine  # noqa: E402
from model import GEOMETRIES, Model  # noqa: E402

import kvtier  # noqa: E402


def tiny_model(seed=1):
    return Model(GEOMETRIES["tiny"], torch.device("cpu"), torch.float32, seed)


def main():
    socket, prompts, new_tokens = sys.argv[1:]
    with kvtier.connect(socket, client_name="another engine") as connection:
        engine = Engine(tiny_model(), connection)
        requests = engine.generate(json.loads(prompts), int(new_tokens))
        print(json.dumps([[one.answer, one.cached_tokens] for one in requests]))
        engine.close()


if __name__ == "__main__":
    main()

__all__ = ["SOURCE", "Engine", "Model", "Steps", "tiny_model"]
