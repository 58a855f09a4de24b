# SPDX-License-Identifier: Apache-2.0
"""Full load for as long as there is time: memory, descriptors and threads of the daemon stay flat."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time

import kvtier

from record import Job
from world import LoadClient, World

CLIENTS = 4
_SAMPLE_S = 0.5
_RESIDENT_SLACK_BYTES = 8 << 20


def _status_field(process: int, name: str) -> int:
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise ValueError(f"/proc/{process}/status has no {name}")


def descriptors(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def threads(process: int) -> int:
    """But for those that the kernel makes for io_uring, which come and go."""
    count = 0
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            count += not (task / "comm").read_text().startswith("iou-")
    return count


def resident_bytes(process: int) -> int:
    return _status_field(process, "VmRSS") << 10


def grown(samples: list[tuple[int, int, int]]) -> str:
    """The figures that are larger in the last third than they ever were in the one before it; empty
    if flat. The first third is for memory that a daemon allocates once."""
    third = len(samples) // 3
    if third < 4:
        return ""
    before = [max(column) for column in zip(*samples[third : 2 * third])]
    after = [max(column) for column in zip(*samples[2 * third :])]
    if after[0] > before[0] + 8:
        return f"descriptors grew from {before[0]} to {after[0]}"
    if after[1] > before[1]:
        return f"threads grew from {before[1]} to {after[1]}"
    if after[2] > before[2] * 1.05 + _RESIDENT_SLACK_BYTES:
        return f"resident memory grew from {before[2]} to {after[2]} bytes"
    return ""


def _sample(job: Job, world: World, clients: list[LoadClient]) -> list[tuple[int, int, int]]:
    process = world.daemon.process_id
    samples = []
    while not samples or not job.is_over():
        time.sleep(min(_SAMPLE_S, job.seconds_left))
        if not world.daemon.is_running() or any(client.has_ended() for client in clients):
            raise RuntimeError("the daemon or a client has ended by itself")
        samples.append((descriptors(process), threads(process), resident_bytes(process)))
    return samples


def _run_one(job: Job, seed: int, world: World) -> None:
    world.daemon.start()
    clients: list[LoadClient] = []
    try:
        for number in range(CLIENTS):
            clients.append(LoadClient(world.daemon.socket, 1000 * seed + number, seed))
        samples = _sample(job, world, clients)
        for client in clients:
            report = client.finish()
            for what in ("requests", "requests without room", "requests timed out",
                         "bytes checked", "wrong blocks"):
                job.count(what, report["counts"].get(what, 0))
            for text in report["wrong"] + report["errors"]:
                job.fail(seed, text, world.log())
        if growth := grown(samples):
            job.fail(seed, growth, world.log())
        for what, column in zip(("descriptors", "threads"), zip(*samples)):
            job.peak(f"most {what}", max(column))
        job.peak("most resident KiB", max(sample[2] for sample in samples) >> 10)
    finally:
        for client in clients:
            client.kill()


def run(job: Job) -> None:
    """One round takes all the time there is. Tiers that hold about half of the requested blocks, so
    that all of them work."""
    for seed in job.seeds():
        with World(160, 150, 300, "retention.persist_after=0s", "restart.keep_for=0s") as world:
            try:
                _run_one(job, seed, world)
            except (RuntimeError, kvtier.KvtierError) as error:
                job.fail(seed, str(error), world.log())
