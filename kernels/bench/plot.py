#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws decode's share of the read ceiling over the context, a line for each batch.

    kernels/bench/plot.py h200-kernels.json h200-decode.svg

reads what kvtier-kernel-bench --grid wide wrote. Needs gnuplot (Debian: gnuplot-nox).
"""

import argparse
import json
import subprocess

FEWEST_POINTS = 3  # of a line
# The colours of viridis, which stay apart in grey and for eyes that see fewer colours.
VIRIDIS = "0 '#440154', 1 '#414487', 2 '#2a788e', 3 '#22a884', 4 '#7ad151', 5 '#fde725'"


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


def script_of(run, lines):
    """Returns what gnuplot reads: the axes, and each line with its points inline."""
    shades = len(lines) - 1 or 1
    curves = ", ".join(
        f"$batch{batch} using 1:2 with linespoints pointtype 7 pointsize 0.4 linewidth 1.5 "
        f"linecolor palette fraction {i / shades:.3f} title '{batch}'"
        for i, batch in enumerate(lines)
    )
    blocks = "\n".join(
        f"$batch{batch} << END\n"
        + "".join(f"{context} {share:.3f}\n" for context, share in sorted(line.items()))
        + "END"
        for batch, line in lines.items()
    )
    contexts = sorted({context for line in lines.values() for context in line})
    tics = ", ".join(f"'{context // 1024}k' {context}" for context in contexts)
    return f"""
set terminal svg size 800,500 font 'sans-serif,13' background rgb 'white'
set title "Decode on an {run['device']}: bf16, 32 query and 8 KV heads of 128, page 16\\n\\
ceiling {run['ceilings']['read_gbps']:.0f} GB/s, L2-cold"
set xlabel 'context, tokens'
set ylabel 'share of the read ceiling, %'
set logscale x 2
set xrange [{contexts[0]}:{contexts[-1] * 1.02}]
set xtics ({tics})
set yrange [0:105]
set grid linecolor rgb '#d0d0d0'
set key bottom right title 'batch'
set palette defined ({VIRIDIS})
unset colorbox
{blocks}
plot {curves}
"""


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

    with open(arguments.svg, "w", encoding="utf-8") as file:
        subprocess.run(["gnuplot"], input=script_of(run, lines), stdout=file, text=True, check=True)


if __name__ == "__main__":
    main()
