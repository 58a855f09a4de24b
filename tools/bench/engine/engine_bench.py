# SPDX-License-Identifier: Apache-2.0
"""What a user of vLLM feels with and without kvtier, in one run on one machine.

Called by tools/engine-bench.sh, which says how. For each configuration a vLLM of its own serves the
same prompts; the model is Llama-3.1-8B's shape with random weights (`--small`: a tiny one for CPUs).

    none     vLLM without a connector
    native   its OffloadingConnector, host memory
    fs       its TieringOffloadingSpec, host memory and a file system
    kvtier   KvtierConnector and a kvtierd of its own
    kept     the same with `keep_kv_cache`: the KV cache outlives the engine
    pair     two vLLM on one GPU, each with half of the KV cache, and one kvtierd

What is measured of each prompt, where the configuration has it: `cold` (computed), `vram` (vLLM's own
prefix cache), `host` (after vLLM has forgotten it), `restart` (first request of a new vLLM, the one
before was killed), `disk` (a new kvtierd, the one before was killed), `other` (asked of the second
vLLM of a pair when the first has computed it); and many requests at once with
nothing cached, as the daemon runs and as it is killed in their midst. With --traces and
--only-converse instead: `conversation`, sessions of agents as conversation.py makes them.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
MODEL = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
    intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    head_dim=128, vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-5,
    rope_theta=500000.0, hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16",
    bos_token_id=1, eos_token_id=2, attention_bias=False,
)  # fmt: skip
SMALL_MODEL = dict(
    MODEL, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=4, head_dim=64, vocab_size=1024,
)  # fmt: skip
LOADS = 4
# How long requests run before the daemon is killed under them.
KILL_AFTER_S = 1.5


class Settings:
    """Of one run, from the command line. work: a directory for the model, sockets and disk tiers."""

    def __init__(self, arguments: argparse.Namespace, work: pathlib.Path) -> None:
        self.small: bool = arguments.small
        self.lengths: list[int] = [int(one) for one in arguments.lengths.split(",")]
        self.trials: int = arguments.trials
        self.host_bytes = int(arguments.host_gib * GIB)
        self.disk_bytes = int(arguments.disk_gib * GIB)
        self.kv_bytes = int(arguments.kv_gib * GIB)
        self.eager: bool = not arguments.graphs
        self.load = dict(
            requests=arguments.requests, length=arguments.request_length, tokens=arguments.output
        )
        self.converse = dict(
            traces=arguments.traces, sessions=arguments.sessions, turns=arguments.turns,
            longest=max(self.lengths),
        )  # fmt: skip
        self.only_converse: bool = arguments.only_converse
        self.work = work

    def model(self) -> str:
        path = self.work / "model"
        path.mkdir(exist_ok=True)
        config = path / "config.json"
        if not config.exists():
            config.write_text(json.dumps(SMALL_MODEL if self.small else MODEL))
        return str(path)

    def engine_options(self, connector: dict | None, share: float) -> dict:
        options = dict(
            load_format="kvtier_random",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=0,
            max_model_len=max(self.lengths) + 256,
            enforce_eager=self.eager,
            enable_prefix_caching=True,
            disable_log_stats=True,
            prefix_caching_hash_algo="sha256_cbor",
            kv_transfer_config=connector,
        )
        if self.small:
            options["block_size"] = 32
        else:
            # vLLM wants so much to be free, beside a KV cache that was kept or another engine.
            options["gpu_memory_utilization"] = 0.3
            options["kv_cache_memory_bytes"] = int(self.kv_bytes * share)
        return options


class EngineProcess:
    """A vLLM in a process of its own, and its processes' group. share: of the KV cache's bytes."""

    def __init__(
        self,
        settings: Settings,
        connector: dict | None,
        log: pathlib.Path,
        share: float = 1.0,
    ) -> None:
        read_fd, write_fd = os.pipe()
        options = settings.engine_options(connector, share)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "engine_process.py"), settings.model(),
                 json.dumps(options)],
                stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=[write_fd],
                env={**os.environ, "KVTIER_BENCH_REPLY_FD": str(write_fd)},
                start_new_session=True,
            )  # fmt: skip
        os.close(write_fd)
        self._replies = os.fdopen(read_fd)
        self.start_s = self._reply()["start_s"]

    def call(self, op: str, **arguments) -> dict:
        self.send(op, **arguments)
        return self._reply()

    def send(self, op: str, **arguments) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def reply(self) -> dict:
        return self._reply()

    def kill(self) -> None:
        """kill -9 of all its processes."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        # The GPU's memory is free when the driver has noticed.
        time.sleep(1.0)

    def _reply(self) -> dict:
        line = self._replies.readline()
        if not line:
            raise RuntimeError("the engine ended; see its log")
        return json.loads(line)


class Results:
    """Rows as they come, printed at once, so that a run that is cut short still says something."""

    def __init__(self, path: pathlib.Path, facts: dict) -> None:
        self._path = path
        self._all = {"facts": facts, "rows": []}

    def add(self, configuration: str, kind: str, row: dict) -> None:
        row = {"configuration": configuration, "kind": kind, **row}
        row = {key: round(value, 3) if isinstance(value, float) else value
               for key, value in row.items()}  # fmt: skip
        self._all["rows"].append(row)
        self._path.write_text(json.dumps(self._all, indent=1))
        print("row", json.dumps(row), flush=True)

    def vram_hit(self, configuration: str, length: int, trial: int) -> dict | None:
        for row in self._all["rows"]:
            if (row["configuration"], row["kind"]) == (configuration, "vram"):
                if (row["length"], row["trial"]) == (length, trial):
                    return row
        return None

    def table(self) -> str:
        """Medians of the times to first token, and how many rows had the tokens of the VRAM hit."""
        groups: dict[tuple, list[dict]] = {}
        for row in self._all["rows"]:
            if "ttft_ms" in row:
                key = (row["configuration"], row["kind"], row["length"])
                groups.setdefault(key, []).append(row)
        lines = ["| configuration | | tokens | TTFT ms, median (min to max) | cached | same tokens |",
                 "|---|---|---|---|---|---|"]  # fmt: skip
        for (configuration, kind, length), rows in groups.items():
            times = [row["ttft_ms"] for row in rows]
            same = [row["same_as_vram"] for row in rows if row["same_as_vram"] is not None]
            lines.append(
                f"| {configuration} | {kind} | {length} | {statistics.median(times):.1f} "
                f"({min(times):.1f} to {max(times):.1f}) | {min(r['cached_tokens'] for r in rows)} "
                f"| {sum(same)} of {len(same)} |"
            )
        for row in self._all["rows"]:
            if "tokens_per_s" in row:
                lines.append(
                    f"| {row['configuration']} | {row['kind']} | | {row['tokens_per_s']:.0f} tokens/s, "
                    f"pause p50 {row['pause_p50_ms']:.1f} p99 {row['pause_p99_ms']:.1f}, longest step "
                    f"{row['longest_step_ms']:.1f} ms | | errors {row['errors']} |"
                )
            elif row["kind"] == "conversation":
                lines.append(
                    f"| {row['configuration']} | conversation, {row['requests']} requests in "
                    f"{row['seconds']:.0f} s | {row['prompt_tokens']} | mean {row['mean_ttft_ms']:.0f}, "
                    f"p50 {row['p50_ttft_ms']:.0f}, p99 {row['p99_ttft_ms']:.0f} "
                    f"| {100 * row['cached_share']:.0f} % | |"
                )
        return "\n".join(lines)


def ask_all(settings: Settings, engine: EngineProcess, results: Results, name: str, kind: str) -> None:
    for length in settings.lengths:
        for trial in range(settings.trials):
            row = engine.call("ask", length=length, trial=trial)
            vram = results.vram_hit(name, length, trial)
            # What is computed anew in other batches may differ in its last bits.
            is_whole = vram is not None and row["cached_tokens"] >= vram["cached_tokens"]
            same = row["digest"] == vram["digest"] if is_whole else None
            results.add(
                name, kind, {"length": length, "trial": trial, **row, "same_as_vram": same}
            )


def warm_up(settings: Settings, engine: EngineProcess, trial: int) -> None:
    """Kernels are compiled and memory is mapped by the first requests of each size."""
    for length in settings.lengths:
        engine.call("ask", length=length - 7, trial=trial)
    engine.call("load", trial=trial, requests=4, length=200, tokens=8)


def compute(settings: Settings, engine: EngineProcess, results: Results, name: str) -> None:
    """Each prompt cold, and at once again."""
    for length in settings.lengths:
        for trial in range(settings.trials):
            for kind in ("cold", "vram"):
                row = engine.call("ask", length=length, trial=trial)
                results.add(
                    name, kind, {"length": length, "trial": trial, **row, "same_as_vram": None}
                )


def first_engine(
    settings: Settings, results: Results, name: str, connector: dict | None, log: pathlib.Path
) -> EngineProcess:
    """Cold, VRAM and host hits, and a load without hits; the engine goes on."""
    engine = EngineProcess(settings, connector, log)
    results.add(name, "start", {"start_s": engine.start_s})
    warm_up(settings, engine, 900)
    if settings.only_converse:
        results.add(name, "conversation", engine.call("converse", **settings.converse))
        return engine
    compute(settings, engine, results, name)
    if connector is not None:
        # What was just computed is still being stored.
        time.sleep(1.0)
        for _ in range(2):
            engine.call("forget")
            ask_all(settings, engine, results, name, "host")
    for trial in range(LOADS):
        results.add(name, "load", engine.call("load", trial=trial, **settings.load))
    return engine


def run_plain(settings: Settings, results: Results, name: str, connector: dict | None) -> None:
    engine = first_engine(
        settings, results, name, connector, results_log(settings, name)
    )
    engine.kill()


def kvtier_connector(daemon, **options) -> dict:
    return {
        "kv_connector": "KvtierConnector",
        "kv_connector_module_path": "kvtier.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": daemon.socket, **options},
    }


def run_kept(settings: Settings, results: Results, daemon, log: pathlib.Path) -> None:
    connector = kvtier_connector(daemon, keep_kv_cache=True)
    engine = EngineProcess(settings, connector, log)
    warm_up(settings, engine, 900)
    compute(settings, engine, results, "kept")
    engine.kill()
    engine = EngineProcess(settings, connector, log)
    results.add("kept", "start", {"start_s": engine.start_s})
    warm_up(settings, engine, 901)
    ask_all(settings, engine, results, "kept", "restart")
    engine.kill()


def run_pair(settings: Settings, results: Results, daemon, log: pathlib.Path) -> None:
    connector = kvtier_connector(daemon)
    engines = [EngineProcess(settings, connector, log, share=0.5) for _ in range(2)]
    for trial, engine in enumerate(engines, 900):
        warm_up(settings, engine, trial)
    compute(settings, engines[0], results, "pair")
    # What was just computed is still being stored.
    time.sleep(1.0)
    ask_all(settings, engines[1], results, "pair", "other")
    for engine in engines:
        engine.kill()


def run_kvtier(settings: Settings, results: Results, daemon, log: pathlib.Path) -> None:
    connector = kvtier_connector(daemon)
    engine = first_engine(settings, results, "kvtier", connector, log)
    engine.kill()
    if settings.only_converse:
        return

    engine = EngineProcess(settings, connector, log)
    # The very first request of an engine compiles kernels, cached or not; what is asked for here
    # is none of the prompts below.
    row = engine.call("ask", length=settings.lengths[0], trial=700)
    results.add("kvtier", "first request, cold", {"first_ttft_ms": row["ttft_ms"]})
    warm_up(settings, engine, 901)
    ask_all(settings, engine, results, "kvtier", "restart")
    daemon.settle()
    daemon.drain()
    # The daemon dies under a load, comes back with an empty memory, and has its disk.
    killer = threading.Timer(KILL_AFTER_S, daemon.kill)
    killer.start()
    row = engine.call("load", trial=LOADS, **settings.load)
    killer.join()
    results.add("kvtier", "load, daemon killed", row)
    daemon.start()
    time.sleep(3.0)
    engine.call("forget")
    ask_all(settings, engine, results, "kvtier", "disk")
    engine.kill()


def results_log(settings: Settings, name: str) -> pathlib.Path:
    return settings.work / f"{name}.log"


def native(settings: Settings, tiers: list[dict]) -> dict:
    extra: dict = {"cpu_bytes_to_use": settings.host_bytes}
    if tiers:
        extra.update(spec_name="TieringOffloadingSpec", secondary_tiers=tiers)
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def run(settings: Settings, results: Results, name: str) -> None:
    if name == "none":
        run_plain(settings, results, name, None)
    elif name == "native":
        run_plain(settings, results, name, native(settings, []))
    elif name == "fs":
        directory = str(settings.work / "fs")
        tiers = [{"type": "fs", "root_dir": directory}]
        run_plain(settings, results, name, native(settings, tiers))
    elif name in ("kvtier", "kept", "pair"):
        from harness.private_daemon import PrivateDaemon

        device = "host" if settings.small else "cuda:0"
        daemon = PrivateDaemon(
            str(settings.work),
            [f"pool.device={device}", "pool.bytes=256MiB", f"host.bytes={settings.host_bytes}B",
             f"disk.bytes={settings.disk_bytes}B", "disk.free_floor_bytes=0B"],
        )  # fmt: skip
        daemon.start()
        try:
            with_daemon = {"kvtier": run_kvtier, "kept": run_kept, "pair": run_pair}
            with_daemon[name](settings, results, daemon, results_log(settings, name))
        finally:
            daemon.kill()
            (settings.work / f"{name}-daemon.log").write_text(daemon.log)
            shutil.rmtree(settings.work / "disk", ignore_errors=True)
    else:
        raise RuntimeError("there is no such configuration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("engine-bench"))
    parser.add_argument("--configurations", default="none,native,kvtier")
    parser.add_argument("--lengths", default="2048,10000,32000", help="of the prompts, in tokens")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--host-gib", type=float, default=36, help="of the connectors, each")
    parser.add_argument("--disk-gib", type=float, default=40, help="kvtierd's")
    parser.add_argument("--kv-gib", type=float, default=40, help="vLLM's KV cache on the GPU")
    parser.add_argument("--requests", type=int, default=32, help="at once, in the load")
    parser.add_argument("--request-length", type=int, default=1000)
    parser.add_argument("--output", type=int, default=128, help="tokens of each such request")
    parser.add_argument("--traces", help="a directory with sessions of agents")
    parser.add_argument("--sessions", type=int, default=12, help="of the traces, at once")
    parser.add_argument("--turns", type=int, default=8, help="of each session")
    parser.add_argument("--only-converse", action="store_true", help="nothing but the sessions")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs")
    parser.add_argument("--small", action="store_true", help="a tiny model, for vLLM on CPUs")
    arguments = parser.parse_args()
    if arguments.only_converse != bool(arguments.traces):
        parser.error("--traces and --only-converse go together")
    if arguments.only_converse and {"kept", "pair"} & set(arguments.configurations.split(",")):
        parser.error("kept and pair have no sessions of agents")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvtier-engine-bench-") as work:
        settings = Settings(arguments, pathlib.Path(work))
        facts = {key: str(value) for key, value in vars(arguments).items() if key != "out"}
        results = Results(arguments.out / "results.json", facts)
        failed = []
        for name in arguments.configurations.split(","):
            try:
                run(settings, results, name)
            except (RuntimeError, AssertionError, OSError) as error:
                print(f"engine-bench: {name}: {error}", file=sys.stderr, flush=True)
                failed.append(name)
            for log in settings.work.glob("*.log"):
                (arguments.out / log.name).write_bytes(log.read_bytes())
    print(results.table())
    (arguments.out / "table.md").write_text(results.table() + "\n")
    sys.exit(f"engine-bench: failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
