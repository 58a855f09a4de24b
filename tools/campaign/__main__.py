# SPDX-License-Identifier: Apache-2.0
"""A campaign against a build: kills, damage, simulations, fuzzers and a soak, for as long as there is
time.

    tools/campaign.sh --minutes 60                        all parts
    tools/campaign.sh --only daemon-kill --seed 17        one part, from one seed on
    tools/campaign.sh --minutes 60 --resume campaign.json goes on where that file's runs ended

The JSON file (by default campaign.json in the build directory) has the counts of all runs that it was
given to, and a seed for each failure; a table in Markdown lies beside it. Timing is not repeated by a
seed: it gives the same prompts, pauses and places, not the same interleaving, but for `simulation`,
whose seeds repeat everything. Exit: 0 nothing failed, 1 something did, 2 usage.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys
from typing import Callable, NamedTuple

import client_kills
import daemon_kills
import damage
import simulations
import soak
from record import Job, Record
from world import build_directory, program


class Part(NamedTuple):
    """run: until the job is over. weight: its share of the time. first_seed: without --seed."""

    run: Callable[[Job], None]
    weight: int
    first_seed: int = 1


PARTS = {
    "simulation": Part(simulations.run_simulations, 4, simulations.FIRST_SIMULATED_SEED),
    "daemon-kill": Part(daemon_kills.run, 5),
    "client-kill": Part(client_kills.run, 3),
    "disk-damage": Part(damage.run_disk, 3),
    "host-damage": Part(damage.run_host, 2),
    "fuzz": Part(simulations.run_fuzzers, 3),
    "soak": Part(soak.run, 3),
}


def _parts(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name}: must be one of {', '.join(PARTS)}")
    return names


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/campaign.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20, help="for all parts together (20)")
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="NAME,...",
                        help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seed", type=int, help="the first seed of parts that have not run yet")
    parser.add_argument("--resume", type=pathlib.Path, metavar="FILE",
                        help="a JSON file to go on with; made if it is not there")
    return parser.parse_args(arguments)


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    weights = sum(PARTS[name].weight for name in options.only)
    for name in options.only:
        part = PARTS[name]
        seconds = 60 * options.minutes * part.weight / weights
        print(f"{name}: {seconds:.0f} s", flush=True)
        first_seed = part.first_seed if options.seed is None else options.seed
        part.run(Job(name, record, seconds, first_seed))
    table = record.to_markdown()
    path.with_suffix(".md").write_text(table)
    print(f"\n{table}\n{path}: {record.failures()} failures")
    return 1 if record.failures() > failures_before else 0


sys.exit(main())
