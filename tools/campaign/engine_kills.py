# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the workers of engines, and of daemons under them: every block that a worker finds in the
memory that the one before has left, or loads, has the bytes that its hash names, and the GPU's memory
comes back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

from engine_findings import WORKERS, FindingsFile, block_bytes
from record import Job
from soak import descriptors, threads
from world import Nursery, World

KILLS_A_ROUND = 240
DAEMONS = 3
DAEMON_KILLS_A_ROUND = 99
KILLS_TO_A_KEEPER = 7
LONGEST_LIFE_S = 0.3
#: Blocks of host memory and of the disk, of some 600 that the prompts have.
_HOST_BLOCKS, _DISK_BLOCKS = 400, 900
_WARM_UP = 2  # rounds, after which all memory is kept
_BACK_WITHIN_S = 1.0
_ROUNDS_TO_A_LOOK = 11  # at the memory, which takes so long
_READY_WITHIN_S = 120
#: A context's own memory differs by some of the driver's pages.
_SLACK_BYTES = 32 << 20
_PAUSE_S = 0.002


class Machine:
    """The device of a campaign. Raises ImportError (no torch)."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._free: Callable[[], int] | None = None
        if device != "host":
            import torch

            self._free = lambda: int(torch.cuda.mem_get_info(device)[0])
            self._free()

    def free_bytes(self) -> int:
        """The GPU's free memory; 0 without one."""
        return self._free() if self._free is not None else 0

    def is_back(self, job: Job, byte_count: int, within_s: float) -> bool:
        """Whether so much is free within the time. Without a GPU at once."""
        began = time.monotonic()
        while self.free_bytes() < byte_count:
            if time.monotonic() > began + within_s:
                return False
            time.sleep(_PAUSE_S)
        job.peak("longest time until the memory was back in ms",
                 int(1000 * (time.monotonic() - began)))
        return True

    def lacking(self, byte_count: int) -> str:
        return f"{(byte_count - self.free_bytes()) >> 20} MiB of the GPU are not back"


class Site:
    """A daemon and the workers around it. Used in a `with` statement."""

    def __init__(self, device: str, seed: int, workers: int) -> None:
        size = block_bytes(device)
        self._stack = contextlib.ExitStack()
        settings = [
            f"pool.device={device}",
            "pool.bytes=16MiB",
            f"host.bytes={_HOST_BLOCKS * size}B",
            f"disk.bytes={_DISK_BLOCKS * size}B",
            "cache.slab_bytes=8MiB",
            "retention.persist_after=0s",
            "restart.keep_for=1min",
        ]
        self.world = self._stack.enter_context(World(1, 1, 0, *settings))
        self.world.resize_disk(1, settings[3])
        self.findings = FindingsFile(self.world.directory / "findings")
        self._workers = range(workers)
        self._next_seed = seed * 1_000_000 * WORKERS
        self._alive: dict[int, int] = {}
        self.world.daemon.start()
        socket, path = self.world.daemon.socket, str(self.world.directory / "findings")
        self._nursery = Nursery("engine_worker.py", socket, device, str(seed), path)
        self._stack.callback(self._nursery.close)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """The workers that do not live."""
        self._next_seed += WORKERS
        for worker in self._workers:
            if worker not in self._alive:
                self._alive[worker] = self._nursery.start(self._next_seed + worker)

    def strike(self, worker: int) -> None:
        """kill -9, and does not wait."""
        os.kill(self._alive[worker], signal.SIGKILL)

    def reap(self, worker: int) -> int:
        """Its exit status, -9 unless it ended by itself."""
        return self._nursery.kill(self._alive.pop(worker))

    def counts(self, what: str) -> list[int]:
        return [self.findings.of[worker].get(what) for worker in self._workers]

    def wait_for(self, what: str, more_than: list[int]) -> None:
        """Until each worker has counted more. Raises RuntimeError."""
        deadline = time.monotonic() + _READY_WITHIN_S
        while any(now <= then for now, then in zip(self.counts(what), more_than)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"workers are not served: {what}: {self.counts(what)}")
            time.sleep(_PAUSE_S)

    def wait_until_quiet(self) -> tuple[int, int]:
        """Until the daemon has no session left; its descriptors and threads. Raises RuntimeError."""
        deadline = time.monotonic() + _READY_WITHIN_S
        while self.world.daemon.status()["sessions"]["count"]:
            if time.monotonic() > deadline:
                raise RuntimeError("sessions of the dead are still there")
            time.sleep(_PAUSE_S)
        self.world.daemon.settle()
        process = self.world.daemon.process_id
        return descriptors(process), threads(process)

    def report(self, job: Job) -> list[str]:
        """Adds the workers' counts to the job's. The failures are returned."""
        for what in ("own blocks checked", "kept blocks checked", "loaded blocks checked",
                     "blocks not loaded", "stores ended", "wrong blocks"):
            job.count(what, self.findings.sum(what))
        wrong = self.findings.sum("wrong blocks")
        found = [f"{wrong} wrong blocks"] if wrong else []
        if line := self.world.broken_promise():
            found.append(f"a daemon ended by itself: {line}")
        return found


def _kill_workers(job: Job, seed: int, machine: Machine) -> None:
    random_numbers = random.Random(seed)
    with Site(machine.device, seed, WORKERS) as site:
        free, before = 0, (0, 0)
        for number in range(KILLS_A_ROUND // WORKERS + _WARM_UP):
            served = site.counts("served")
            site.start()
            site.wait_for("served", served)
            moments = sorted(
                (random_numbers.uniform(0, LONGEST_LIFE_S), worker) for worker in range(WORKERS)
            )
            began = time.monotonic()
            for moment, worker in moments:
                time.sleep(max(0.0, began + moment - time.monotonic()))
                site.strike(worker)
            for worker in range(WORKERS):
                one = site.findings.of[worker]
                job.count("kills while a load was under way",
                          one.get("loads begun") > one.get("loads ended"))
                if (status := site.reap(worker)) != -9:
                    job.fail(seed, f"a worker ended by itself, with {status}", site.world.log())
                    return
            job.count("kills", WORKERS)
            if not machine.is_back(job, free, _BACK_WITHIN_S):
                job.fail(seed, machine.lacking(free), site.world.log())
                return
            if number + 1 == _WARM_UP:
                before = site.wait_until_quiet()
                free = machine.free_bytes() - _SLACK_BYTES
            if job.is_over():
                break
        after = site.wait_until_quiet()
        job.peak("descriptors gained at most", after[0] - before[0])
        job.peak("threads gained at most", after[1] - before[1])
        for what in site.report(job):
            job.fail(seed, what, site.world.log())


def _kill_daemons(job: Job, seed: int, machine: Machine) -> None:
    random_numbers = random.Random(seed)
    workers = WORKERS // DAEMONS
    with contextlib.ExitStack() as stack:
        sites = [
            stack.enter_context(Site(machine.device, 10 * seed + i, workers)) for i in range(DAEMONS)
        ]
        for site in sites:
            site.start()
        _wait_for_all(sites, [[0] * workers] * DAEMONS)
        free = machine.free_bytes() - _SLACK_BYTES
        for number in range(1, DAEMON_KILLS_A_ROUND // DAEMONS + 1):
            time.sleep(random_numbers.uniform(0.05, LONGEST_LIFE_S))
            served = []
            killed = time.monotonic()
            for site in sites:
                keeper = site.world.keeper() if number % KILLS_TO_A_KEEPER == 0 else 0
                time.sleep(random_numbers.uniform(0, 0.02))
                job.count("kills while a load was under way",
                          sum(site.counts("loads begun")) > sum(site.counts("loads ended")))
                site.world.daemon.kill()
                job.count("kills")
                if keeper:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(keeper, signal.SIGKILL)
                        job.count("of them with the keeper")
                served.append(site.counts("served"))
            for site in sites:
                site.world.daemon.launch()
            _wait_for_all(sites, served)
            job.peak("longest time until all workers were served in ms",
                     int(1000 * (time.monotonic() - killed)))
            looks = number % _ROUNDS_TO_A_LOOK == 0
            if looks and not machine.is_back(job, free, _BACK_WITHIN_S):
                job.fail(seed, machine.lacking(free), sites[0].world.log())
                return
            if job.is_over():
                break
        for site in sites:
            for what in site.report(job):
                job.fail(seed, what, site.world.log())


def _wait_for_all(sites: list[Site], served: list[list[int]]) -> None:
    for site, then in zip(sites, served):
        site.wait_for("served", then)


def _run(job: Job, device: str, one_round: Callable[[Job, int, Machine], None]) -> None:
    try:
        import torch  # noqa: F401  # the workers need it

        machine = Machine(device)
    except ImportError as error:
        job.skip(f"python3 has no torch: {error}")
        return
    for seed in job.seeds():
        before = machine.free_bytes()
        try:
            one_round(job, seed, machine)
        except (RuntimeError, OSError) as error:
            job.fail(seed, f"{type(error).__name__}: {error}")
        free = before - _SLACK_BYTES
        if not machine.is_back(job, free, _BACK_WITHIN_S):
            job.fail(seed, f"{machine.lacking(free)} after all has ended")


def run_workers(job: Job, device: str) -> None:
    _run(job, device, _kill_workers)


def run_daemons(job: Job, device: str) -> None:
    _run(job, device, _kill_daemons)
