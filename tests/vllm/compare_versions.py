# SPDX-License-Identifier: Apache-2.0
"""Compares the KV of two versions of vLLM bit by bit, for `EQUAL_VERSIONS` of kvtier.vllm.identity. Run
by hand, as tools/test-vllm.sh runs tests:

    compare_versions.py 'PYTHON OF THE ONE' 'PYTHON OF THE OTHER' [KIND...]

Each of the two is a command that runs a Python with that vLLM. Two versions are equal for a kind of
model if they have the same blocks under the same hashes, and agree in the whole model record but for
the name of the version. The first of the two makes the models.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

import numpy

from canary_noise import MORE, PER_STEP, Kind, errors

KINDS = ("llama", "windows", "experts", "windows and experts", "latent", "states")
ROUNDS = 4


def compute(kind, directory):
    """Returns blocks and facts of this process's vLLM. The model is made unless it is there."""
    one = Kind(kind, directory)
    engine = one.engine()
    blocks = {}
    for seed in range(ROUNDS):
        prompts = one.prompts(seed, PER_STEP)
        found, generated = one.compute(engine, prompts, tokens=MORE + 1, at_once=PER_STEP)
        blocks |= found
        sequences = [prompt + more[:MORE] for prompt, more in zip(prompts, generated)]
        blocks |= one.compute(engine, sequences, at_once=PER_STEP)[0]
    facts = engine.ask({"op": "facts"})
    engine.stop()
    return blocks, facts


def compute_all(kinds, directory):
    """Writes the blocks and facts of each kind, in the directory of its model."""
    for kind in kinds:
        own = directory / kind
        own.mkdir(exist_ok=True)
        blocks, facts = compute(kind, own)
        numpy.savez(own / "computed.npz", **blocks)
        (own / "facts.json").write_text(json.dumps(facts))


def computed_by(command, kinds, directory):
    """Returns the blocks and facts of each kind, as a process of the command computes them."""
    arguments = [*shlex.split(command), __file__, "--compute", str(directory), *kinds]
    subprocess.run(arguments, check=True, stdout=sys.stderr)
    computed = {}
    for kind in kinds:
        with numpy.load(directory / kind / "computed.npz") as file:
            blocks = {name: file[name] for name in file.files}
        computed[kind] = blocks, json.loads((directory / kind / "facts.json").read_text())
    return computed


def compare(kind, one, other):
    first, facts = one
    second, other_facts = other
    both = first.keys() & second.keys()
    worst = [max(errors(first[block], second[block])) for block in both]
    differing = [fact for fact in facts if facts[fact] != other_facts.get(fact)]
    print(
        f"{kind}: {len(first)} and {len(second)} blocks, {len(both)} have the same hash, "
        f"{worst.count(0.0)} of them the same bits, the largest error "
        f"{max(worst, default=float('nan')):.4g}; facts that differ: {differing}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compute", action="store_true")
    parser.add_argument("arguments", nargs="+")
    given = parser.parse_args()
    if given.compute:
        return compute_all(given.arguments[1:], pathlib.Path(given.arguments[0]))
    one, other, *kinds = given.arguments
    kinds = kinds or KINDS
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        computed, others = (computed_by(command, kinds, directory) for command in (one, other))
    for kind in kinds:
        compare(kind, computed[kind], others[kind])


if __name__ == "__main__":
    main()
