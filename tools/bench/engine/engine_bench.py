# SPDX-License-Identifier: Apache-2.0
"""A vLLM user's times with and without kvtier, in one run on one machine.

Called by tools/engine-bench.sh, which says how. For each configuration a vLLM of its own serves the
same prompts; the model is Llama-3.1-8B's shape with random weights (`--model windows`: one in the
manner of Gemma 3; `--small`: a tiny one for CPUs).

    none     vLLM without a connector
    native   its OffloadingConnector, host memory
    fs       its TieringOffloadingSpec, host memory and a file system
    lmcache  LMCache's connector, host memory of vLLM's own process
    lmcache_mp  LMCache's daemon, host memory and files
    pegaflow PegaFlow's daemon, host memory and a file on the disk
    kvtier   KvtierConnector and a kvtierd of its own
    absent   KvtierConnector without a kvtierd: what its hooks and its layout cost
    kept     the same with `keep_kv_cache`: the KV cache outlives the engine
    pair     two vLLM on one GPU, each with half of the KV cache, and one kvtierd

Measured of each prompt, where the configuration has it: `cold` (computed), `vram` (vLLM's own
prefix cache), `host` (after vLLM has forgotten it), `disk` (with --disk-hits: after others have
taken its place in host memory), `restart` (first request of a new vLLM, the one before was killed),
`daemon killed` (and a new one has started; `alone`: asked while there was none), `other` (asked of
the second vLLM of a pair when the first has computed it); and many requests at once with nothing
cached, as the daemon runs and as it is killed in their midst. With --only-hits no new vLLM and no
new daemon. With --traces and --only-converse
instead: `conversation`, sessions of agents as conversation.py makes them; with --levels as many of
them at once as each level says, until the time to first token of one in ten exceeds --objective-ms;
a file of chat in the place of sessions needs --levels, which are requests each second then;
with what engine and daemon used of processors and drives (usage.py). `requests.jsonl` then has a line
for each request.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
from typing import Any

import connectors
import machine
import rival_daemons
import usage
from arguments import CONFIGURATIONS, parse
from conversation import TraceError
from engine_handle import EngineProcess
from results import Results
from settings import Settings

LOADS = 4
# How long requests run before the daemon is killed under them.
KILL_AFTER_S = 1.5
# Tokens just computed are still being stored.
STORE_S = 1.0
# An engine hands blocks to the tier below its host memory as it steps.
STEP_TO_DISK_S, LONGEST_WRITING_S = 0.5, 60.0
AFTER_START_S = 3.0
# Host memory outlives the daemon, as it does by default, but not for long after the last run.
KEEP_FOR_S = 30
WITH_DISK = ("fs", "lmcache_mp", "pegaflow", "kvtier")
WITH_DAEMON = ("kvtier", "kept", "pair")
# The daemon's figures that are shown beside sessions of agents.
_SHOWN_STATS = ("drops.", "disk_", "host_prefetched_", "tiers.", "misses.")


class Run:
    """One configuration. Its maker calls `end`, which kills the engines that it has started."""

    def __init__(self, settings: Settings, results: Results, name: str) -> None:
        self.settings, self.name = settings, name
        self.daemon: Any = None
        # kvtierd or a rival's daemon: whichever serves this configuration.
        self.daemon_process_id: int | None = None
        self._results = results
        self._engines: list[EngineProcess] = []

    def start(
        self,
        connector: dict | None,
        warm_up: int = 900,
        share: float = 1.0,
        environment: dict[str, str] | None = None,
    ) -> EngineProcess:
        """A new engine, warmed up with prompts of that number, since kernels are compiled and
        memory is mapped by the first requests of each size; 0: not."""
        log = self.settings.log(self.name)
        engine = EngineProcess(self.settings, connector, log, share, environment)
        self._engines.append(engine)
        engine.wait_for_start()
        self.add("start", {"start_s": engine.start_s, "connector": connector})
        if warm_up:
            self.warm_up(engine, warm_up)
        return engine

    def end(self) -> None:
        for engine in self._engines:
            engine.kill()

    def add(self, kind: str, row: dict) -> None:
        self._results.add(self.name, kind, row)

    def warm_up(self, engine: EngineProcess, trial: int) -> None:
        for length in self.settings.lengths:
            engine.call("ask", length=length - 7, trial=trial)
        engine.call("load", trial=trial, requests=4, length=200, tokens=8)

    def ask(self, engine: EngineProcess, kind: str, length: int, trial: int) -> None:
        """A prompt of which vLLM has computed the tokens before."""
        row = engine.call("ask", length=length, trial=trial)
        vram = self._results.vram_hit(self.name, length, trial)
        # Tokens computed anew in other batches may differ in their last bits.
        is_whole = vram is not None and row["cached_tokens"] >= vram["cached_tokens"]
        same = row["digest"] == vram["digest"] if vram and is_whole else None
        self.add(kind, {"length": length, "trial": trial, **row, "same_as_vram": same})

    def ask_all(self, engine: EngineProcess, kind: str) -> None:
        """All prompts whose blocks host memory holds together."""
        for length in self.settings.kept_lengths:
            for trial in range(self.settings.trials):
                self.ask(engine, kind, length, trial)

    def compute_one(self, engine: EngineProcess, length: int, trial: int) -> None:
        """The prompt cold, and at once again."""
        for kind in ("cold", "vram"):
            row = engine.call("ask", length=length, trial=trial)
            self.add(kind, {"length": length, "trial": trial, **row, "same_as_vram": None})

    def compute(self, engine: EngineProcess) -> None:
        for length in self.settings.lengths:
            for trial in range(self.settings.trials):
                self.compute_one(engine, length, trial)

    def hits(self, engine: EngineProcess) -> None:
        """The longest prompts first, for host memory may hold one of them alone; the others' blocks
        are there in the end."""
        for length in sorted(self.settings.lengths, reverse=True):
            for trial in range(self.settings.trials):
                self.compute_one(engine, length, trial)
                time.sleep(STORE_S)
                for _ in range(2):
                    engine.call("forget")
                    self.ask(engine, "host", length, trial)
        if self.daemon is not None:
            self.add("daemon", {"daemon": {one: n for one, n in self.daemon_stats().items() if n}})

    def hits_on_disk(self, engine: EngineProcess) -> None:
        """After as many other blocks as host memory holds, and without the kernel's page cache."""
        longest = max(self.settings.lengths)
        others = self.settings.host_bytes // self.settings.prompt_bytes(longest) + 1
        for trial in range(others):
            engine.call("ask", length=longest, trial=800 + trial, tokens=1)
        self.wait_for_writes(engine)
        if self.daemon is not None:
            self.daemon.drain()
        machine.drop_page_cache()
        engine.call("forget", connector=self.name == "fs")
        for length in self.settings.lengths:
            for trial in range(self.settings.trials):
                self.ask(engine, "disk", length, trial)

    def wait_for_writes(self, engine: EngineProcess) -> None:
        """Until neither the engine nor its daemon has written between two steps."""
        deadline, written, step = time.monotonic() + LONGEST_WRITING_S, -1.0, 0
        while time.monotonic() < deadline:
            before, step = written, step + 1
            engine.call("ask", length=40, trial=step, tokens=1)
            time.sleep(STEP_TO_DISK_S)
            used = self.usage(engine)
            written = sum(used.get(f"{who}_written_bytes", 0) for who in ("engine", "daemon"))
            if written == before:
                return

    def kill_daemon(self, engine: EngineProcess, daemon: Any) -> None:
        """The daemon dies while its engine is idle, one request is served without it, and a new one
        comes."""
        daemon.kill()
        row = engine.call("ask", length=self.settings.lengths[0], trial=700)
        self.add("alone", {"length": self.settings.lengths[0], "trial": 0, **row, "same_as_vram": None})
        began = time.monotonic()
        daemon.start()
        self.add("daemon again", {"start_s": time.monotonic() - began})
        self.daemon_process_id = daemon.process_id
        time.sleep(AFTER_START_S)
        engine.call("forget")
        self.ask_all(engine, "daemon killed")

    def loads(self, engine: EngineProcess) -> None:
        for trial in range(LOADS):
            self.add("load", engine.call("load", trial=trial, **self.settings.load))

    def converse(self, engine: EngineProcess) -> None:
        for seed in self.settings.seeds:
            before = self.daemon_stats()
            row = engine.call("converse", seed=seed, **self.settings.converse)
            self._results.add_requests(self.name, f"seed {seed}", row.pop("each"))
            after = self.daemon_stats()
            changed = {name: after[name] - before.get(name, 0) for name in after}
            changed = {name: change for name, change in changed.items() if change}
            self.add("conversation", {"seed": seed, **row, "daemon": changed})

    def saturate(self, engine: EngineProcess) -> None:
        """More sessions at once, level by level, until the objective is missed."""
        objective_ms = self.settings.objective_ms
        for position, sessions in enumerate(self.settings.levels):
            load = self.settings.level(sessions, position)
            before, stats_before = self.usage(engine), self.daemon_stats()
            row = engine.call("converse", objective_ms=objective_ms, **load)
            unit = "requests/s" if "requests_per_s" in load else "sessions"
            self._results.add_requests(self.name, f"{sessions} {unit}", row.pop("each"))
            time.sleep(STORE_S)
            after, stats = self.usage(engine), self.daemon_stats()
            used = {name: after[name] - before[name] for name in after}
            changed = {name: stats[name] - stats_before.get(name, 0) for name in stats}
            changed = {name: change for name, change in changed.items() if change}
            is_met = row["p90_ttft_ms"] <= objective_ms
            of_level = {name: load[name] for name in ("sessions", "requests_per_s") if name in load}
            row = {**of_level, "met": is_met, **row, **used, "daemon": changed}
            self.add("saturation", row)
            if not is_met:
                return

    def usage(self, engine: EngineProcess) -> dict[str, float]:
        """Counts all that engine and daemon have used since they were started."""
        used = {f"engine_{name}": value for name, value in usage.of(engine.process_id).items()}
        if self.daemon_process_id is not None:
            of_daemon = usage.of(self.daemon_process_id)
            used.update({f"daemon_{name}": value for name, value in of_daemon.items()})
        return used

    def daemon_stats(self) -> dict[str, int]:
        """Its counters of blocks and bytes, by their paths in its status; none without a daemon."""
        if self.daemon is None:
            return {}
        stats, flat = [("", self.daemon.status()["stats"])], {}
        while stats:
            path, value = stats.pop()
            if isinstance(value, dict):
                stats += [(f"{path}.{key}".lstrip("."), one) for key, one in value.items()]
            elif isinstance(value, int) and path.startswith(_SHOWN_STATS):
                flat[path] = value
        return flat


def run_plain(run: Run, connector: dict | None, environment: dict[str, str] | None = None) -> None:
    engine = run.start(connector, environment=environment)
    if run.settings.only_converse:
        (run.saturate if run.settings.levels else run.converse)(engine)
        return
    if connector is None or run.name == "absent":
        run.compute(engine)
    else:
        run.hits(engine)
    if run.settings.disk_hits and run.name in WITH_DISK:
        run.hits_on_disk(engine)
    if not run.settings.only_hits and run.settings.load["requests"]:
        run.loads(engine)


def run_again(
    run: Run, connector: dict, environment: dict[str, str] | None = None
) -> EngineProcess | None:
    """A new vLLM, after the one before was killed; none where only hits are measured."""
    if run.settings.only_converse or run.settings.only_hits:
        return None
    run.end()
    engine = run.start(connector, warm_up=0, environment=environment)
    # The very first request of an engine compiles kernels, cached or not; this request is none of
    # the prompts.
    row = engine.call("ask", length=run.settings.lengths[0], trial=701)
    run.add("first request, cold", {"first_ttft_ms": row["ttft_ms"]})
    run.warm_up(engine, 901)
    run.ask_all(engine, "restart")
    return engine


def run_kept(run: Run, daemon) -> None:
    connector = connectors.kvtier(daemon.socket, keep_kv_cache=True)
    engine = run.start(connector)
    run.compute(engine)
    engine.kill()
    run.ask_all(run.start(connector, 901), "restart")


def run_pair(run: Run, daemon) -> None:
    connector = connectors.kvtier(daemon.socket)
    first, second = (run.start(connector, 900 + i, share=0.5) for i in range(2))
    run.compute(first)
    time.sleep(STORE_S)
    run.ask_all(second, "other")


def run_kvtier(run: Run, daemon) -> None:
    connector = connectors.kvtier(daemon.socket)
    run_plain(run, connector)
    engine = run_again(run, connector)
    if engine is None:
        return
    if run.settings.load["requests"]:
        killer = threading.Timer(KILL_AFTER_S, daemon.kill)
        killer.start()
        row = engine.call("load", trial=LOADS, **run.settings.load)
        killer.join()
        run.add("load, daemon killed", row)
        daemon.start()
    run.kill_daemon(engine, daemon)


def run_with_daemon(run: Run) -> None:
    from harness.private_daemon import PrivateDaemon

    settings = run.settings
    device = "host" if settings.small else "cuda:0"
    daemon = PrivateDaemon(
        str(settings.work),
        [f"pool.device={device}", "pool.bytes=256MiB", f"host.bytes={settings.host_bytes}B",
         f"disk.bytes={settings.disk_bytes}B", "disk.free_floor_bytes=0B", f"restart.keep_for={KEEP_FOR_S}s", *settings.daemon],
    )  # fmt: skip
    try:
        daemon.start()
        run.daemon, run.daemon_process_id = daemon, daemon.process_id
        functions = {"kvtier": run_kvtier, "kept": run_kept, "pair": run_pair}
        functions[run.name](run, daemon)
    finally:
        run.end()
        daemon.kill()
        settings.log(f"{run.name}-daemon").write_text(daemon.log)
        shutil.rmtree(settings.work / "disk", ignore_errors=True)


def run_rival(run: Run, daemon: rival_daemons.RivalDaemon, connector: dict) -> None:
    try:
        run.add("daemon", {"start_s": daemon.start(), "command": " ".join(daemon.command)})
        run.daemon_process_id = daemon.process_id
        environment = {"PYTHONHASHSEED": "0"}
        run_plain(run, connector, environment)
        if engine := run_again(run, connector, environment):
            run.kill_daemon(engine, daemon)
    finally:
        run.end()
        daemon.end()


def run_one(run: Run) -> None:
    settings = run.settings
    try:
        if run.name in WITH_DAEMON:
            run_with_daemon(run)
        elif run.name == "none":
            run_plain(run, None)
        elif run.name == "absent":
            run_plain(run, connectors.kvtier(str(settings.work / "absent.sock")))
        elif run.name == "native":
            run_plain(run, connectors.native(settings))
        elif run.name == "fs":
            run_plain(run, connectors.file_system(settings))
            run_again(run, connectors.file_system(settings))
        elif run.name == "pegaflow":
            run_rival(run, rival_daemons.pegaflow(settings), connectors.pegaflow())
        elif run.name == "lmcache_mp":
            run_rival(run, rival_daemons.lmcache(settings), connectors.lmcache_daemon())
        elif run.name == "lmcache":
            run_plain(run, connectors.lmcache(), connectors.lmcache_environment(settings))
    finally:
        run.end()
        shutil.rmtree(settings.work / "fs", ignore_errors=True)


def time_is_up(signal_number: int, frame: object) -> None:
    raise TimeoutError("it took longer than --limit-s")


def end_early(signal_number: int, frame: object) -> None:
    sys.exit("engine-bench: terminated")


def run_all(
    settings: Settings, results: Results, names: list[str], limit_s: int, out: pathlib.Path
) -> list[str]:
    """Each configuration, and which of them failed."""
    failed = []
    for name in names:
        try:
            signal.alarm(limit_s)
            run_one(Run(settings, results, name))
        except (RuntimeError, OSError) as error:
            print(f"engine-bench: {name}: {error}; {out / name}.log", file=sys.stderr, flush=True)
            failed.append(name)
        finally:
            signal.alarm(0)
    return failed


def main() -> None:
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    logs = [f"{one}{end}.log" for one in CONFIGURATIONS for end in ("", "-daemon")]
    for old in ("results.json", "requests.jsonl", "table.md", *logs):
        (arguments.out / old).unlink(missing_ok=True)
    if arguments.small:
        # For cpu_offloading.py in vLLM's processes.
        os.environ["PYTHONPATH"] += f":{pathlib.Path(__file__).resolve().parent}"
    signal.signal(signal.SIGALRM, time_is_up)
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, end_early)
    with tempfile.TemporaryDirectory(prefix="kvtier-engine-bench-") as work:
        try:
            settings = Settings(arguments, pathlib.Path(work))
        except (TraceError, OSError) as error:
            sys.exit(f"engine-bench: {error}")
        facts = {
            key: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for key, value in vars(arguments).items()
            if key != "out"
        }
        facts.update(machine.facts(), host_bytes=str(settings.host_bytes),
                     disk_bytes=str(settings.disk_bytes),
                     working_set_bytes=str(settings.working_set_bytes))  # fmt: skip
        print("facts", facts, flush=True)
        results = Results(arguments.out / "results.json", facts)
        try:
            names = arguments.configurations
            failed = run_all(settings, results, names, arguments.limit_s, arguments.out)
        finally:
            for log in settings.work.glob("*.log"):
                (arguments.out / log.name).write_bytes(log.read_bytes())
            print(results.table(), flush=True)
            (arguments.out / "table.md").write_text(results.table() + "\n")
    sys.exit(f"engine-bench: failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
