# SPDX-License-Identifier: Apache-2.0
"""How long transformers takes to a prompt's first token, on this machine's processors, with an
empty cache and with the prompt cached: in the daemon's host memory, and on its disk after kill -9.

    time_to_first_token.py [TOKENS]

Needs KVTIERD, KVTIER_LIBRARY and the paths that tools/test-engines.sh sets.
"""

import statistics
import sys
import tempfile
import time

import torch
from harness.private_daemon import PrivateDaemon
from tiny_models import VOCABULARY, llama

from kvtier.transformers import KvtierCache

RUNS = 5
SIZES = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
SETTINGS = ["pool.bytes=16MiB", "pool.device=host", "host.bytes=512MiB", "disk.bytes=1GiB"]


def first_token_ms(model, prompt, socket):
    """Time from the prompt to its first token, the part of it before `generate`, how many tokens
    were restored, and the token."""
    begin = time.perf_counter()
    cache = KvtierCache.for_model(model, prompt, socket=socket)
    restored_ms = (time.perf_counter() - begin) * 1e3
    output = model.generate(prompt, past_key_values=cache, max_new_tokens=1, do_sample=False)
    elapsed_ms = (time.perf_counter() - begin) * 1e3
    cache.store()
    return elapsed_ms, restored_ms, cache.restored_tokens, output[0, -1].item()


def main():
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    # Threads that wait for each other on a machine with other work would distort the times.
    torch.set_num_threads(1)
    model = llama(**SIZES)
    directory = tempfile.TemporaryDirectory(prefix="kvtier-first-token-")
    daemon = PrivateDaemon(directory.name, SETTINGS)
    daemon.start()
    generator = torch.Generator().manual_seed(0)
    first_token_ms(model, torch.full((1, 64), 7), daemon.socket)  # the work that a process does
                                                                  # once
    figures = {"computed": [], "host memory": [], "disk": []}
    for _ in range(RUNS):
        prompt = torch.randint(3, VOCABULARY, (1, tokens), generator=generator)
        found = [("computed", first_token_ms(model, prompt, daemon.socket))]
        found.append(("host memory", first_token_ms(model, prompt, daemon.socket)))
        daemon.drain()
        daemon.kill()
        daemon.start()
        found.append(("disk", first_token_ms(model, prompt, daemon.socket)))
        assert len({one[-1] for _, one in found}) == 1, found
        for name, (elapsed_ms, restored_ms, restored, _) in found:
            assert restored == (0 if name == "computed" else (tokens - 1) // 16 * 16), found
            figures[name].append((elapsed_ms, restored_ms))
    daemon.kill()
    directory.cleanup()
    for name, times in figures.items():
        elapsed, restored = (statistics.median(one) for one in zip(*times))
        print(f"{name:12} {elapsed:8.1f} ms, {restored:6.1f} ms of it before generate")


if __name__ == "__main__":
    main()
