# SPDX-License-Identifier: Apache-2.0
"""An inference engine whose prompts start warm: how long until the next token's logits, with the
prefix from nowhere, from the pool, from host memory, and from disk after the daemon was killed.

    python3 client/python/examples/warm_start                 # Llama-3.1-8B's sizes, on a GPU
    python3 client/python/examples/warm_start --small         # a tiny model, on the CPU

Weights and prompts are random; nothing is downloaded. Needs torch and transformers 5 (--small does
without the latter), the package (PYTHONPATH=client/python or installed), KVTIER_LIBRARY, and
kvtierd (--kvtierd). Exits with 0 if all warm starts gave the cold ones' logits to the dtype's
tolerance, 1 if not, 77 if something it needs is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decoder import Decoder

MISSING = 77
_LEAST_TRANSFORMERS = 5


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="a tiny model and short prompts")
    parser.add_argument("--cpu", action="store_true", help="on the CPU; implied by --small")
    parser.add_argument("--mode", choices=("in-place", "copy", "both"), default="both")
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--shared-tokens", type=int, help="that all prompts begin with")
    parser.add_argument("--chunk-tokens", type=int, help="prompts are computed in such parts")
    parser.add_argument(
        "--hit-plans",
        action="store_true",
        help="the price of a hit: every hit against what is worth loading, at 2k, 10k and 32k tokens",
    )
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kvtierd", default=os.environ.get("KVTIERD", "kvtierd"))
    parser.add_argument("--directory", type=pathlib.Path, help="for the disk tier; default: /tmp")
    parser.add_argument("--json", type=pathlib.Path, help="where to write all figures")
    parser.add_argument("--commit", default="unknown", help="for the JSON")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> int:
    import torch
    from decoder import LLAMA_8B, SMALL
    from report import Row, table
    from trial import Load, Trial, Yardstick, make_prompts

    if arguments.small:
        geometry, tokens, shared, chunk = SMALL, 400, 352, 176
    else:
        geometry, tokens, shared, chunk = LLAMA_8B, 10_000, 9_600, 1_600
    on_cpu = arguments.cpu or arguments.small
    if not on_cpu and not torch.cuda.is_available():
        print("warm_start: skipped: no GPU; --small runs on the CPU")
        return MISSING
    device = torch.device("cpu") if on_cpu else torch.device("cuda", 0)
    dtype = torch.float32 if on_cpu else torch.bfloat16
    load = Load(
        arguments.prompt_tokens or tokens,
        arguments.shared_tokens or shared,
        arguments.chunk_tokens or chunk,
        arguments.new_tokens,
        arguments.repeats,
    )
    if arguments.small:
        # More threads cost more than they bring.
        torch.set_num_threads(1)
    kind, library = decoder_kind()
    decoder = kind(geometry, device, dtype)
    prompts = make_prompts(load, geometry.vocabulary)
    yardstick = Yardstick(decoder, prompts, load)
    name = "CPU" if on_cpu else torch.cuda.get_device_name(device)
    print(f"{geometry.name} on {library}, {str(dtype)[6:]}, random weights, on {name}", end="; ")
    print(f"prompts of {load.prompt_tokens} tokens that share {load.shared_tokens}")
    print(
        f"torch alone, the whole prompt at once: {yardstick.ms:.1f} ms to the next token's logits"
    )
    print(f"logits computed in two parts instead of one differ by {yardstick.floor:.1e}", end=", ")
    print(f"tolerated {yardstick.tolerance:.1e}; after another prefix by {yardstick.control:.1e}")
    modes = ("in-place", "copy") if arguments.mode == "both" else (arguments.mode,)
    rows: dict[str, list[Row]] = {}
    for mode in modes:
        trial = Trial(decoder, mode, yardstick, load, arguments.kvtierd, arguments.directory)
        rows[mode] = list(trial.run(prompts))
        how = "the pool is its cache" if mode == "in-place" else "blocks are copied out and in"
        print(f"\nengine {mode}: {how}\n{table(rows[mode])}", flush=True)
    holds = all(row.comparison.holds for found in rows.values() for row in found)
    # Else equal logits would say nothing of the prefix.
    holds = holds and yardstick.control > 5 * yardstick.tolerance
    if arguments.json:
        document = {
            "schema": "kvtier.warm-start/1",
            "commit": arguments.commit,
            "device": name,
            "torch": torch.__version__,
            "decoder": library,
            "model": geometry.name,
            "dtype": str(dtype)[6:],
            "prompt_tokens": load.prompt_tokens,
            "shared_tokens": load.shared_tokens,
            "chunk_tokens": load.chunk_tokens,
            "torch_alone_ms": round(yardstick.ms, 3),
            "logits_floor": yardstick.floor,
            "logits_after_another_prefix": yardstick.control,
            "engines": {mode: [row.as_json() for row in found] for mode, found in rows.items()},
            "holds": holds,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwarm_start: {'ok' if holds else 'FAILED: answers differ'}")
    return 0 if holds else 1


def run_hit_plans(arguments: argparse.Namespace) -> int:
    """For each size cold, all, cut and both ends, from each tier."""
    import torch
    from decoder import LLAMA_8B, SMALL
    from hit_plans import PlanRow, PlanTrial, table
    from trial import Load, Yardstick, make_prompts

    on_cpu = arguments.cpu or arguments.small
    if not on_cpu and not torch.cuda.is_available():
        print("warm_start: skipped: no GPU; --small runs on the CPU")
        return MISSING
    device = torch.device("cpu") if on_cpu else torch.device("cuda", 0)
    geometry = SMALL if arguments.small else LLAMA_8B
    sizes = (192, 400) if arguments.small else (2_000, 10_000, 32_000)
    if arguments.prompt_tokens:
        sizes = (arguments.prompt_tokens,)
    if arguments.small:
        torch.set_num_threads(1)
    kind, _ = decoder_kind()
    decoder = kind(geometry, device, torch.float32 if on_cpu else torch.bfloat16)
    rows: list[PlanRow] = []
    for tokens in sizes:
        chunk = arguments.chunk_tokens or max(tokens // 4 // 16 * 16, 16)
        load = Load(tokens, tokens // 32 * 16, chunk, arguments.new_tokens, arguments.repeats)
        prompts = make_prompts(load, geometry.vocabulary)
        # What they share would be found before it is published.
        prompts = [[(token + i) % geometry.vocabulary for token in one] for i, one in enumerate(prompts)]
        yardstick = Yardstick(decoder, prompts[:1], load)
        trial = PlanTrial(
            decoder, "in-place", yardstick, load, arguments.kvtierd, arguments.directory
        )
        rows += trial.run(prompts)
        print(table(rows), flush=True)
    holds = all(row.holds for row in rows)
    equal = all(row.comparison.holds for row in rows)
    if arguments.json:
        document = {
            "schema": "kvtier.hit-plans/1",
            "commit": arguments.commit,
            "device": "CPU" if on_cpu else torch.cuda.get_device_name(device),
            "model": geometry.name,
            "rows": [row.as_json() for row in rows],
            "holds": holds,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nhit plans: {'ok' if holds else 'MISSED the bar' if equal else 'FAILED: answers differ'}")
    # A tiny model on a CPU computes in no time: there only the answers count.
    return 0 if equal and (holds or arguments.small) else 1


def transformers_version() -> str:
    """ "" if there is none that this program can use."""
    try:
        import transformers
    except ImportError:
        return ""
    version: str = transformers.__version__
    return version if int(version.split(".")[0]) >= _LEAST_TRANSFORMERS else ""


def decoder_kind() -> tuple[type[Decoder], str]:
    """The decoder's class, and what it is made with."""
    version = transformers_version()
    if version:
        from transformers_decoder import TransformersDecoder

        return TransformersDecoder, f"transformers {version}"
    from torch_decoder import TorchDecoder

    return TorchDecoder, "torch alone"


def missing(small: bool) -> str:
    """What this cannot run without, or ""."""
    try:
        import torch

        import kvtier
    except ImportError as error:
        return str(error)
    del torch, kvtier
    if not small and not transformers_version():
        return f"no transformers from {_LEAST_TRANSFORMERS} on; --small does without"
    return ""


if __name__ == "__main__":
    parsed = parse()
    reason = missing(parsed.small)
    if reason:
        print(f"warm_start: skipped: {reason}")
        sys.exit(MISSING)
    sys.exit(run_hit_plans(parsed) if parsed.hit_plans else main(parsed))
