# SPDX-License-Identifier: Apache-2.0
"""A campaign against a build: kills, damage, power loss, simulations, fuzzers and a soak, for as long as
there is time.

    tools/campaign.sh --minutes 60                        all parts
    tools/campaign.sh --only daemon-kill --seed 17        one part, from one seed on
    tools/campaign.sh --minutes 60 --resume campaign.json goes on where that file's runs ended
    tools/campaign.sh --minutes 8 --jobs 28               so many daemons, clients' groups, fuzzers at once
    tools/campaign.sh --only engine-kill,engine-daemon-kill --device cuda:0       on a GPU, with torch
    tools/campaign.sh --resume campaign.json --merge other.json     adds what another machine has done

The JSON file (by default campaign.json in the build directory) has the counts of all runs that it was
given to, and a seed for each failure; a table in Markdown lies beside it. Its times are those of all
jobs together. Timing is not repeated by a seed: it gives the same prompts, pauses and places, not the
same interleaving, but for `simulation` and `power-loss`, whose seeds repeat everything. The latter
cuts a recording of a daemon's writes, which needs FUSE to be made and nothing to be used: --recording
names its file, which is made if it is not there. Exit: 0 nothing failed, 1 something did, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pathlib
import shlex
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import client_kills
import daemon_kills
import damage
import engine_kills
import power_loss
import simulations
import soak
from record import Dealer, Job, Record
from world import build_directory, program

_FORK = multiprocessing.get_context("fork")


class Part(NamedTuple):
    """run: until the job is over. weight: its share of the time. first_seed: without --seed."""

    run: Callable[[Job], None]
    weight: int
    first_seed: int = 1
    again: str = ""


def _power_loss(options: argparse.Namespace, path: pathlib.Path) -> Part:
    """With a recording that all jobs share. One of this run alone is kept, for failures."""
    file = options.recording
    if file is None:
        file = path.with_suffix(".writes.xz")
        if options.resume is None:
            file.unlink(missing_ok=True)
    recording = power_loss.prepare(file, options.seed or 1)

    def run(job: Job) -> None:
        if isinstance(recording, str):
            job.skip(recording)
        else:
            power_loss.run_cuts(job, recording)

    return Part(run, _WEIGHTS["power-loss"], again=f" --minutes 0 --recording {shlex.quote(str(file))}")


_WEIGHTS = {
    "simulation": 4,
    "daemon-kill": 3,
    "kept-daemon-kill": 2,
    "client-kill": 3,
    "engine-kill": 2,
    "engine-daemon-kill": 2,
    "disk-damage": 3,
    "host-damage": 2,
    "pool-damage": 2,
    "power-loss": 4,
    "fuzz": 3,
    "soak": 3,
}
_RUNS = {
    "simulation": simulations.run_simulations,
    "daemon-kill": daemon_kills.run,
    "kept-daemon-kill": daemon_kills.run_keeping,
    "client-kill": client_kills.run,
    "disk-damage": damage.run_disk,
    "host-damage": damage.run_host,
    "pool-damage": damage.run_pool,
    "fuzz": simulations.run_fuzzers,
    "soak": soak.run,
}
_ENGINE_RUNS = {
    "engine-kill": engine_kills.run_workers,
    "engine-daemon-kill": engine_kills.run_daemons,
}


def _part(name: str, options: argparse.Namespace, path: pathlib.Path) -> Part:
    if name == "power-loss":
        return _power_loss(options, path)
    if name in _ENGINE_RUNS:
        run, device = _ENGINE_RUNS[name], options.device
        return Part(lambda job: run(job, device), _WEIGHTS[name], again=f" --device {device}")
    first_seed = simulations.FIRST_SIMULATED_SEED if name == "simulation" else 1
    return Part(_RUNS[name], _WEIGHTS[name], first_seed)


def _parts(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _WEIGHTS:
            raise argparse.ArgumentTypeError(f"{name}: must be one of {', '.join(_WEIGHTS)}")
    return names


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/campaign.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20, help="for all parts together (20)")
    parser.add_argument("--jobs", type=int, default=1, help="of one part at the same time (1)")
    parser.add_argument("--only", type=_parts, default=list(_WEIGHTS), metavar="NAME,...",
                        help=f"of {', '.join(_WEIGHTS)}")
    parser.add_argument("--device", default="host", help="of engines' memory: host, or cuda:0")
    parser.add_argument("--seed", type=int, help="the first seed of parts that have not run yet")
    parser.add_argument("--resume", type=pathlib.Path, metavar="FILE",
                        help="a JSON file to go on with; made if it is not there")
    parser.add_argument("--recording", type=pathlib.Path, metavar="FILE",
                        help="of writes, for power-loss; made if it is not there")
    parser.add_argument("--merge", type=pathlib.Path, nargs="+", default=[], metavar="FILE",
                        help="JSON files to add to the one of --resume; nothing is run")
    return parser.parse_args(arguments)


def _run_jobs(
    name: str, part: Part, record: Record, path: pathlib.Path, seconds: float, first_seed: int,
    count: int,
) -> None:
    """Each process has a file of its own; the counts are added when all have ended."""
    deadline = time.monotonic() + seconds
    dealer = Dealer(record.part(name, first_seed)["next_seed"])
    files = [path.with_suffix(f".{name}-{number}.json") for number in range(count)]

    def work(file: pathlib.Path) -> None:
        file.unlink(missing_ok=True)
        seconds_left = deadline - time.monotonic()
        part.run(Job(name, Record(file, 1), seconds_left, first_seed, dealer.take, part.again))

    processes = [_FORK.Process(target=work, args=(file,), daemon=True) for file in files]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    finally:
        dealer.close()
        for file in files:
            if file.exists():
                record.merge(json.loads(file.read_text()))
                file.unlink()
        record.save()
    ended_badly = [process.exitcode for process in processes if process.exitcode != 0]
    if ended_badly:
        Job(name, record, 0, first_seed).fail(first_seed, f"{len(ended_badly)} processes of this part "
                                              f"failed, the first with {ended_badly[0]}")


def _run(options: argparse.Namespace, path: pathlib.Path, record: Record) -> None:
    weights = sum(_WEIGHTS[name] for name in options.only)
    for name in options.only:
        begun = time.monotonic()
        part = _part(name, options, path)
        seconds = 60 * options.minutes * part.weight / weights
        first_seed = part.first_seed if options.seed is None else options.seed
        next_seed = record.part(name, first_seed)["next_seed"]
        print(f"{name}: {seconds:.0f} s, from seed {next_seed} on", flush=True)
        seconds = max(0.0, begun + seconds - time.monotonic())
        if options.jobs > 1:
            _run_jobs(name, part, record, path, seconds, first_seed, options.jobs)
        else:
            part.run(Job(name, record, seconds, first_seed, again=part.again))


def _merge(options: argparse.Namespace, record: Record) -> None:
    for file in options.merge:
        record.merge(json.loads(file.read_text()))
    record.save()


def _end(*_: Any) -> None:
    sys.exit(1)


def main() -> int:
    options = _arguments(sys.argv[1:])
    if not program("kvtierd").exists():
        print(f"campaign: there is no {program('kvtierd')}; build it, or set KVTIER_BUILD_DIRECTORY",
              file=sys.stderr)
        return 2
    path = options.resume or build_directory() / "campaign.json"
    if options.resume is None:
        path.unlink(missing_ok=True)
    record = Record(path, options.seed or 1)
    failures_before = record.failures()
    # Worlds are cleaned up by their `with` statements.
    signal.signal(signal.SIGTERM, _end)
    if options.merge:
        _merge(options, record)
    else:
        _run(options, path, record)
    table = record.to_markdown()
    path.with_suffix(".md").write_text(table)
    print(f"\n{table}\n{path}: {record.failures()} failures")
    return 1 if record.failures() > failures_before else 0


if __name__ == "__main__":
    sys.exit(main())
