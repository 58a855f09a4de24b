#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws decode's share of the read ceiling over the context, a line for each batch.

    kernels/bench/plot.py h200-kernels.json h200-decode.svg

reads what kvtier-kernel-bench --grid wide wrote. Needs matplotlib (Debian: python3-matplotlib).
"""

import argparse
import json

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "kvtier"  # the same file for the same numbers

import matplotlib.pyplot as plt  # noqa: E402  (after the choice of the backend)

FEWEST_POINTS = 3  # of a line


def plain_decode(result):
    """Whether the result is of the plane that the plot shows."""
    return (
        result["kernel"] == "decode"
        and result["variant"] == ""
        and result["kv_dtype"] == "bf16"
        and (result["q_heads"], result["kv_heads"]) == (32, 8)
        and result["head_dim"] == 128
        and result["page"] == 16
    )


def lines_by_batch(results):
    lines = {}
    for result in filter(plain_decode, results):
        line = lines.setdefault(int(result["batch"]), {})
        line[int(result["context"])] = 100 * result["ceiling_ratio"]
    return {batch: line for batch, line in sorted(lines.items()) if len(line) >= FEWEST_POINTS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", help="the benchmark's output")
    parser.add_argument("svg", help="the file to write")
    arguments = parser.parse_args()
    with open(arguments.json, encoding="utf-8") as file:
        run = json.load(file)
    lines = lines_by_batch(run["results"])
    if not lines:
        parser.error(f"{arguments.json}: no decode over batches and contexts (--grid wide)")

    figure, axes = plt.subplots(figsize=(8, 5))
    colours = plt.get_cmap("viridis")
    for i, (batch, line) in enumerate(lines.items()):
        contexts = sorted(line)
        axes.plot(
            contexts,
            [line[context] for context in contexts],
            marker="o",
            markersize=3,
            color=colours(i / len(lines)),
            label=f"{batch}",
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda tokens, _: f"{int(tokens) // 1024}k")
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("share of the read ceiling, %")
    axes.set_ylim(0, 105)
    axes.grid(alpha=0.3)
    axes.legend(title="batch", loc="lower right")
    axes.set_title(
        f"Decode on an {run['device']}: bf16, 32 query and 8 KV heads of 128, page 16\n"
        f"ceiling {run['ceilings']['read_gbps']:.0f} GB/s, L2-cold"
    )
    figure.tight_layout()
    figure.savefig(arguments.svg, metadata={"Date": None})


if __name__ == "__main__":
    main()
