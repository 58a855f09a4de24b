# SPDX-License-Identifier: Apache-2.0
"""Programs that find faults by themselves: the simulator's seeds, and the fuzzers of the decoders."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import tempfile

from record import Job
from world import build_directory, die_with_parent, program

SEEDS_A_ROUND = 200
SEEDS_TIMEOUT_S = 1200
STEPS = 400
#: The first ones run with every test of the tree.
FIRST_SIMULATED_SEED = 10_001
_SECONDS_A_FUZZER = 30
_FUZZER_MARGIN_S = 120
_SUMMARY = re.compile(r"(\d+) seeds hold, (\d+) fail; (\d+) events, (\d+) crashes")
_FAILED_SEED = re.compile(r"^seed (\d+) failed", re.MULTILINE)
_UNITS_RUN = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def run_simulations(job: Job) -> None:
    """Ranges of seeds, each history with faults of disk, index and clock, deaths, and adoption."""
    simulator = program("kvtier-sim")
    if not simulator.exists():
        job.skip(f"there is no {simulator}")
        return
    for seed in job.seeds(SEEDS_A_ROUND):
        last = seed + SEEDS_A_ROUND - 1
        command = [simulator, "--seeds", f"{seed}..{last}", "--steps", str(STEPS)]
        command += ["--max-failures", str(SEEDS_A_ROUND)]
        output = _output_of([str(word) for word in command], SEEDS_TIMEOUT_S)
        summary = _SUMMARY.search(output)
        failed = [int(number) for number in _FAILED_SEED.findall(output)]
        for number in failed:
            again = f"{simulator.name} --seed {number} --steps {STEPS} --verbose"
            job.fail(number, f"the simulation failed ({again})", output)
        if summary is None:
            job.fail(seed, f"the simulator ended without a summary: {output[-1000:]}")
            continue
        for what, number in zip(("histories held", "", "events", "deaths"), summary.groups()):
            if what:
                job.count(what, int(number))
        if int(summary[2]) != len(failed):
            job.fail(seed, f"{summary[2]} histories failed, {len(failed)} were named")


def _fuzzers() -> list[list[str]]:
    """The commands of the build's tests, of those fuzzers that are built."""
    tests = build_directory() / "tests/fuzz/CTestTestfile.cmake"
    if not tests.exists():
        return []
    commands = []
    for line in tests.read_text().splitlines():
        if not line.startswith("add_test(") or "-max_total_time=" not in line:
            continue
        words = shlex.split(line.partition(" ")[2].rstrip(")"))
        # In a bundle both are relative to the build: the program and its corpus.
        words[0] = str(build_directory() / words[0])
        words[-1] = str(build_directory() / words[-1])
        if pathlib.Path(words[0]).exists():
            commands.append(words)
    return commands


def run_fuzzers(job: Job) -> None:
    """Each fuzzer in turn; what they find stays in the temporary directory unless it is a failure,
    whose input is named in the report in hexadecimal digits."""
    fuzzers = _fuzzers()
    if not fuzzers:
        job.skip("no fuzzer is built (they need clang)")
        return
    for seed in job.seeds():
        # Not the same one first each time: a round may be cut short.
        first = seed % len(fuzzers)
        for command in fuzzers[first:] + fuzzers[:first]:
            _fuzz(job, seed, command)
            if job.is_over():
                break


def _fuzz(job: Job, seed: int, command: list[str]) -> None:
    name = pathlib.Path(command[0]).name
    seconds = int(max(1, min(_SECONDS_A_FUZZER, job.seconds_left)))
    with tempfile.TemporaryDirectory(prefix="kvtier-campaign-") as directory:
        artifact = pathlib.Path(directory) / "input"
        new_inputs = pathlib.Path(directory) / "corpus"
        new_inputs.mkdir()
        own = ("-max_total_time=", "-artifact_prefix=")
        options = [word for word in command[1:-2] if not word.startswith(own)]
        options += [f"-max_total_time={seconds}", f"-exact_artifact_path={artifact}"]
        options += [f"-seed={seed % 2**32}"]
        line = [command[0], *options, str(new_inputs), command[-1]]
        output = _output_of(line, seconds + _FUZZER_MARGIN_S)
        units = _UNITS_RUN.search(output)
        job.count(f"inputs of {name}", int(units[1]) if units else 0)
        job.count("seconds of fuzzers", seconds)
        if artifact.exists():
            found = artifact.read_bytes().hex()
            job.fail(seed, f"{name} failed on the input {found}", output)
        elif units is None:
            job.fail(seed, f"{name} ended without statistics", output)


def _output_of(command: list[str], timeout_s: int) -> str:
    """All that it printed; also of one that had to be killed."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    )
    try:
        output = process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0] + f"\nkilled after {timeout_s} s".encode()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return output.decode(errors="replace")
