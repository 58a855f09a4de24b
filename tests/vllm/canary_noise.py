# SPDX-License-Identifier: Apache-2.0
"""Measures how far apart honest KV of one block is, and KV that is a lie: where the canary's bound can
lie (docs/IDENTITY.md). Run by hand, as tools/test-vllm.sh runs tests:

    canary_noise.py [--blocks N] [--repeated N] [KIND...]

For each kind of model, engines compute the same sequences in other ways: alone; several in one step;
in chunks beside others; on top of a prefix that was computed before; token by token. The error is
the daemon's: of the worst layer, the root of the sum of squared differences over that of squares.
"""

import argparse
import pathlib
import random
import sys
import tempfile
import time

import numpy

from engine_process import EngineProcess
from tiny_model import VOCABULARY, make_adapter, make_model, make_model_of_kind

KINDS = ("llama", "windows", "experts", "latent", "states", "windows and experts")
PROMPT, MORE = 224, 128  # tokens, and how many an engine adds to them
PER_STEP = 8
GAIN = 1.5  # of attention, so that the models are not chaotic, as trained ones are not
# Engines that add in another order, which is what another shape of the batch does on a GPU.
UNFUSED = {"custom_ops": ["none"]}
OTHER_KERNELS = {
    "other matrix kernels": {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX2"}},
    "unfused kernels": {"compilation_config": UNFUSED},
}
LIES = ("rope", "layers", "keys and values")


def numbers(layers):
    return (layers.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)


def errors(one, other):
    """Returns the error of each layer."""
    if numpy.array_equal(one, other):
        return numpy.zeros(len(one))
    a, b = numbers(one).astype(numpy.float64), numbers(other).astype(numpy.float64)
    most = numpy.maximum((a * a).sum(axis=1), (b * b).sum(axis=1))
    return numpy.sqrt(((a - b) ** 2).sum(axis=1) / numpy.maximum(most, 1e-300))


class Kind:
    """The engines of one kind of model."""

    def __init__(self, kind, directory, repeated=1):
        self.kind, self.directory = kind, directory
        self.model, self.other = directory / "model", directory / "other"
        for seed, path in enumerate((self.model, self.other)):
            if path.exists():
                continue
            if kind == "llama":
                make_model(path, seed, layers=repeated * 3, attention_gain=GAIN)
            else:
                make_model_of_kind(path, kind, seed, repeated, attention_gain=GAIN)
        self.engines = []

    def engine(self, model=None, **arguments):
        if self.kind == "states":
            arguments = {"mamba_ssm_cache_dtype": "float32", **arguments}
        if self.kind == "latent":
            arguments = {"compilation_config": UNFUSED, **arguments}
        options = {"socket": str(self.directory / "no daemon"), "canary_per_million": 1_000_000}
        options |= {"environment": arguments.pop("environment", {})}
        options |= {"engine": arguments, "claims": "files:a claim"}
        engine = EngineProcess(model or self.model, self.directory / "log", options)
        self.engines.append(engine)
        if self.kind == "latent":
            engine.ask({"op": "store_all"})
        self.show(engine)
        return engine

    def show(self, engine):
        path = str(self.directory / "blocks.npz")
        engine.ask({"op": "show", "path": path})
        with numpy.load(path) as file:
            return {name: file[name] for name in file.files}

    def compute(self, engine, sequences, tokens=1, at_once=1, **more):
        """Returns the blocks of the sequences and the generated tokens."""
        generated = []
        for first in range(0, len(sequences), at_once):
            reply = engine.generate(sequences[first : first + at_once], tokens=tokens, **more)
            generated += reply["tokens"]
        engine.forget()
        return self.show(engine), generated

    def prompts(self, seed, count, tokens=PROMPT):
        generator = random.Random(f"{self.kind} {seed}")
        return [[generator.randrange(3, VOCABULARY) for _ in range(tokens)] for _ in range(count)]


class Table:
    def __init__(self):
        self.rows = {}

    def add(self, name, base, blocks):
        row = self.rows.setdefault(name, [])
        row += [errors(base[one], blocks[one]) for one in blocks.keys() & base.keys()]

    def print(self, kind, names=None):
        for name, row in self.rows.items():
            worst = numpy.array([max(one) for one in row] or [numpy.nan])
            layers = ""
            if len({len(one) for one in row}) == 1:
                layers = " by layer " + " ".join(f"{e:.4f}" for e in numpy.max(row, axis=0))
            print(
                f"{kind:20} {name:28} blocks {len(row):6} equal {numpy.mean(worst == 0):6.1%} "
                f"least {worst.min():.4f} median {numpy.median(worst):.4f} "
                f"p99 {numpy.quantile(worst, 0.99):.4f} most {worst.max():.4f}{layers}",
                flush=True,
            )


def measure(kind, blocks, repeated, directory):
    one, table = Kind(kind, directory, repeated), Table()
    steady = {"max_num_seqs": PER_STEP}
    whole = one.engine(**steady)
    chunks = one.engine(max_num_batched_tokens=96, **steady) if kind != "latent" else whole
    others = {name: one.engine(**steady, **more) for name, more in OTHER_KERNELS.items()}
    began, seed, compared = time.monotonic(), 0, 0
    while compared < blocks:
        seed += 1
        prompts = one.prompts(seed, PER_STEP)
        steps, generated = one.compute(whole, prompts, tokens=MORE + 1, at_once=PER_STEP)
        sequences = [prompt + more[:MORE] for prompt, more in zip(prompts, generated)]
        alone, _ = one.compute(whole, sequences)
        table.add("token by token", alone, steps)
        together, _ = one.compute(whole, sequences, at_once=PER_STEP)
        table.add("several in a step", alone, together)
        if kind != "latent":
            chunked, _ = one.compute(chunks, sequences, at_once=PER_STEP)
            table.add("in chunks beside others", alone, chunked)
            for sequence in sequences:
                chunks.generate([sequence[:160]], tokens=1)
                chunks.generate([sequence], tokens=1)
            chunks.forget()
            table.add("on top of a prefix", alone, one.show(chunks))
        for name, other in others.items():
            table.add(name, alone, one.compute(other, sequences, at_once=PER_STEP)[0])
        compared = sum(len(row) for row in table.rows.values())
    table.print(kind)
    everything = numpy.array([max(errors) for row in table.rows.values() for errors in row])
    print(f"{kind}: {len(everything)} blocks, most {everything.max():.4f}, "
          f"{time.monotonic() - began:.0f} s", flush=True)
    tell_lies(one, kind, whole)


def tell_lies(one, kind, engine):
    table, prompts = Table(), one.prompts("lies", PER_STEP)
    honest, _ = one.compute(engine, prompts, at_once=PER_STEP)
    for told in LIES:
        engine.ask({"op": "lie", "lie": told})
        table.add(told, honest, one.compute(engine, prompts, at_once=PER_STEP)[0])
    engine.ask({"op": "lie", "lie": "none"})
    table.add("(honest again)", honest, one.compute(engine, prompts, at_once=PER_STEP)[0])
    other = one.engine(one.other)
    table.add("other weights", honest, one.compute(other, prompts, at_once=PER_STEP)[0])
    if kind == "llama":
        path = str(make_adapter(one.directory / "adapter", 0))
        adapted = one.engine(enable_lora=True, max_lora_rank=8)
        adapted.ask({"op": "trust_weights"})
        first, _ = one.compute(adapted, prompts, adapter=["a", 1, path])
        make_adapter(one.directory / "adapter", 1)
        table.add("another adapter", first, one.compute(adapted, prompts, adapter=["a", 2, path])[0])
    table.print(kind)
    for engine in one.engines:
        engine.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--repeated", type=int, default=4, help="of the layers of the tests' models")
    parser.add_argument("kinds", nargs="*", default=KINDS)
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as directory:
            try:
                measure(kind, arguments.blocks, arguments.repeated, pathlib.Path(directory))
            except Exception:
                log = pathlib.Path(directory) / "log"
                print(log.read_text()[-4000:] if log.exists() else "", file=sys.stderr)
                raise


if __name__ == "__main__":
    main()
