# SPDX-License-Identifier: Apache-2.0
"""`python -m kvtier.demo`: one prompt, computed once, then served from each tier.

A small transformer in numpy (random weights, greedy decoding) keeps its KV in a pool of kvtierd. The
time to the first token is shown cold, and with the prompt's KV in the pool, in host memory and on
disk; the logits must be the same bits each time. It uses the daemon that `connect()` finds, if its
pool is in host memory and it may be administered, and otherwise starts one of its own in a temporary
directory, with `kvtierd --dev`. Blocks of a daemon that was running are evicted at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import kvtier

from . import _programs

LAYERS, HEADS, HEAD_DIM, VOCABULARY = 6, 4, 64, 4096
BLOCK_TOKENS = 16
#: Whole blocks and one token: what is left to compute is then the same cold and warm.
PROMPT_TOKENS = 64 * BLOCK_TOKENS + 1
ANSWER_TOKENS = 16
CHUNK_TOKENS = 128
BLOCK_BYTES = LAYERS * 2 * HEADS * HEAD_DIM * 2 * BLOCK_TOKENS
#: One prompt with its answer and half as much: another prompt then pushes it out.
POOL_BYTES = BLOCK_BYTES * (PROMPT_TOKENS // BLOCK_TOKENS) * 3 // 2
RECORD = kvtier.ModelRecord(
    "kvtier-demo",
    layers=LAYERS,
    kv_heads=HEADS,
    k_head_dim=HEAD_DIM,
    v_head_dim=HEAD_DIM,
    dtype=kvtier.DType.FLOAT16,
    block_tokens=BLOCK_TOKENS,
    revision="random weights, seed 1",
)
#: Each wait of the demonstration ends after so long, with an error that says what was waited for.
PATIENCE_S = 60
_PR_SET_PDEATHSIG = 1

Array = npt.NDArray[np.float32]


class DemoError(RuntimeError):
    """The demonstration cannot go on, or did not show what it should."""


class Model:
    """A pre-norm transformer. Its keys and values live in the pool and nowhere else."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        width = HEADS * HEAD_DIM

        def weights(*shape: int) -> Array:
            return random.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5)

        self._embedding = random.standard_normal((VOCABULARY, width), dtype=np.float32)
        self._layers = [
            (
                weights(width, 3 * width),
                weights(width, width),
                weights(width, 4 * width),
                weights(4 * width, width),
            )
            for _ in range(LAYERS)
        ]
        self._angles = (1e-4 ** np.linspace(0, 1, HEAD_DIM // 2)).astype(np.float32)

    def forward(self, pool: kvtier.Pool, sequence: Any, first: int, tokens: list[int]) -> Array:
        """Writes the KV of `tokens`, which stand at `first`, into the sequence's blocks, attends to
        all before them there, and returns the logits of the last."""
        x = self._embedding[tokens]
        positions = np.arange(first, first + len(tokens))
        slots = sequence.slot_mapping(first, len(tokens))
        block, offset = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
        table = sequence.block_table()[: -(-(first + len(tokens)) // BLOCK_TOKENS)]
        future = np.arange(first + len(tokens)) > positions[:, None]
        for layer, (qkv, out, up, down) in enumerate(self._layers):
            cache = pool.layer(layer)
            q, k, v = np.split(_norm(x) @ qkv, 3, axis=1)
            cache.k[block, offset] = self._rotate(_heads(k), positions)
            cache.v[block, offset] = _heads(v)
            keys, values = (_context(part, table, len(future[0])) for part in (cache.k, cache.v))
            scores = np.einsum("qhd,khd->hqk", self._rotate(_heads(q), positions), keys, optimize=True)
            scores = np.where(future, np.float32(-1e9), scores / np.float32(HEAD_DIM**0.5))
            scores = np.exp(scores - scores.max(axis=2, keepdims=True))
            scores /= scores.sum(axis=2, keepdims=True)
            mixed = np.einsum("hqk,khd->qhd", scores, values, optimize=True)
            x = x + mixed.reshape(len(tokens), -1) @ out
            x = x + np.maximum(_norm(x) @ up, 0) @ down
        return np.asarray(_norm(x[-1:]) @ self._embedding.T)[0]

    def _rotate(self, x: Array, positions: npt.NDArray[np.int64]) -> Array:
        """Rotary embedding, so that a token's place matters."""
        turns = positions[:, None].astype(np.float32) * self._angles
        sin, cos = np.sin(turns)[:, None, :], np.cos(turns)[:, None, :]
        a, b = x[..., ::2], x[..., 1::2]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _norm(x: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6))


def _heads(x: Array) -> Array:
    return x.reshape(len(x), HEADS, HEAD_DIM)


def _context(part: npt.NDArray[Any], table: npt.NDArray[np.int32], tokens: int) -> Array:
    """The first `tokens` of the blocks in `table`, in float32."""
    return part[table].reshape(-1, HEADS, HEAD_DIM)[:tokens].astype(np.float32)


@dataclass
class Run:
    """One answer to the prompt, and how it came about."""

    name: str
    ttft_ms: float
    cached_tokens: int
    sources: dict[str, int]
    logits: bytes
    answer: list[int]


def generate(name: str, model: Model, pool: kvtier.Pool, prompt: list[int]) -> Run:
    """Answers the prompt; what the pool, host memory or disk has of it is not computed again."""
    begin = time.perf_counter()
    with pool.open_sequence(prompt, reserve_tokens=ANSWER_TOKENS) as sequence:
        if not sequence.wait(PATIENCE_S * 1000):
            raise DemoError("the cached blocks did not arrive in time")
        info = sequence.info()
        last = len(prompt) - 1
        for first in range(info.cached_tokens, last, CHUNK_TOKENS):
            end = min(first + CHUNK_TOKENS, last)
            model.forward(pool, sequence, first, prompt[first:end])
            _show_progress(name, end, last)
        logits = model.forward(pool, sequence, last, prompt[last:])
        ttft_ms = (time.perf_counter() - begin) * 1000
        sequence.mark_computed(len(prompt))
        answer = [int(logits.argmax())]
        first_logits = logits.tobytes()
        while len(answer) < ANSWER_TOKENS:
            sequence.append(answer[-1:])
            logits = model.forward(pool, sequence, last + len(answer), answer[-1:])
            sequence.mark_computed(len(prompt) + len(answer))
            answer.append(int(logits.argmax()))
    found = {"pool": info.pool_tokens, "host": info.host_tokens, "disk": info.disk_tokens}
    sources = {tier: tokens for tier, tokens in found.items() if tokens}
    return Run(name, ttft_ms, info.cached_tokens, sources, first_logits, answer)


def _show_progress(name: str, done: int, total: int) -> None:
    """A bar on standard error where it is a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        filled = 40 * done // total
        bar = "#" * filled + "." * (40 - filled)
        end = "\r\x1b[K" if done == total else ""
        line = f"\r{name:<6} computing [{bar}] {done:,} of {total:,} tokens{end}"
        print(line, end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- daemons


class OwnDaemon:
    """`kvtierd --dev` with small tiers in a temporary directory; ends with this process."""

    def __init__(self, directory: str) -> None:
        self._directory = pathlib.Path(directory)
        self._environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": directory,
            "XDG_CACHE_HOME": str(self._directory / "cache"),
        }
        self._environment.pop("KVTIER_SOCKET", None)
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = str(self._directory / "kvtier" / "kvtier.sock")

    def start(self) -> None:
        """Returns when it serves. Raises DemoError with the end of its log."""
        settings = {
            "pool.device": "host",
            "pool.bytes": "64MiB",
            "host.bytes": "256MiB",
            "disk.bytes": "1GiB",
            "disk.free_floor_bytes": "0B",
            "restart.keep_for": "0s",
        }
        command = [_programs.find("kvtierd"), "--dev"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        log_path = self._directory / "kvtierd.log"
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, preexec_fn=_die_with_parent
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                kvtier.connect(self.socket).close()
                return
            except kvtier.KvtierError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    tail = log_path.read_text(errors="replace")[-2000:]
                    raise DemoError(f"kvtierd does not serve ({error}); its log:\n{tail}") from error
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9, and waits until the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def find_daemon() -> tuple[str | None, str]:
    """What a daemon that is running, and serves for the demonstration, calls its socket (in a
    container it may be elsewhere than here); or none, and why."""
    try:
        status = kvtier.admin({"op": "status"}, timeout_ms=5000)
        with kvtier.connect() as connection:
            devices = [device.kind for device in connection.devices()]
    except kvtier.KvtierError as error:
        return None, f"no other can be used ({error.reason})"
    if devices[0] != kvtier.DeviceKind.HOST:
        return None, "the one that runs has its pool on a GPU, which numpy cannot reach"
    if not status["disk"]["enabled"]:
        return None, "the one that runs has no disk tier"
    return status["socket"], ""


@contextlib.contextmanager
def daemon(private: bool) -> Iterator[tuple[str, OwnDaemon | None]]:
    """The socket of the daemon to use, "" for the one that any client finds; and the daemon if it is
    this program's own."""
    socket, why = (None, "as asked") if private else find_daemon()
    if socket is not None:
        print(f"daemon: the one that runs, at {socket}")
        yield "", None
        return
    with tempfile.TemporaryDirectory(prefix="kvtier-demo-") as directory:
        own = OwnDaemon(directory)
        own.start()
        print(f"daemon: one of its own in {directory}: {why}")
        try:
            yield own.socket, own
        finally:
            own.kill()


# ---------------------------------------------------------------- moving between tiers


def _admin(socket: str, request: dict[str, Any]) -> Any:
    return kvtier.admin(request, pathlib.Path(socket).parent / "admin.sock" if socket else "")


def push_to_host(socket: str, pool: kvtier.Pool, hashes: list[bytes]) -> list[bytes]:
    """Other prompts come until nothing of `hashes` is left in the pool; returns their hashes."""
    # All of it has copies below now: a machine too busy to make them in time would drop some.
    _admin(socket, {"op": "drain"})
    others: list[bytes] = []
    random = np.random.default_rng()
    deadline = time.monotonic() + PATIENCE_S
    while any(kvtier.Presence.POOL in presence for presence in pool.lookup(hashes)):
        if time.monotonic() > deadline:
            raise DemoError("other prompts did not push the prompt out of the pool")
        tokens = random.integers(VOCABULARY, 1 << 20, 16 * BLOCK_TOKENS, dtype=np.uint32)
        try:
            with pool.open_sequence(tokens, retention=kvtier.Retention.MEMORY) as sequence:
                sequence.mark_computed(len(tokens))
            others += pool.hash_blocks(tokens)
        except kvtier.ResourceExhaustedError:
            time.sleep(0.05)  # offloads are on their way
    return others


def push_to_disk(socket: str, own: OwnDaemon | None, hashes: list[bytes]) -> None:
    """Leaves the blocks on disk only: by kill -9 and a restart where that harms no one."""
    _admin(socket, {"op": "drain"})
    if own is not None:
        own.kill()
        own.start()
        return
    deadline = time.monotonic() + PATIENCE_S
    for tier in ("pool", "host"):
        while evict(socket, hashes, tier)["moving"]:
            if time.monotonic() > deadline:
                raise DemoError(f"blocks kept moving while they should have left the {tier} tier")
            time.sleep(0.05)


def evict(socket: str, hashes: list[bytes], tier: str | None = None) -> Any:
    request: dict[str, Any] = {"op": "evict", "hashes": [one.hex() for one in hashes]}
    return _admin(socket, {**request, "tier": tier} if tier else request)


# ---------------------------------------------------------------- the demonstration


def show(run: Run) -> None:
    skipped = f"{run.cached_tokens:,} of {PROMPT_TOKENS:,}"
    sources = ", ".join(run.sources) or "nowhere: computed"
    print(f"{run.name:<6}{run.ttft_ms:>11.1f} ms{skipped:>20}   {sources}", flush=True)


def check(runs: list[Run]) -> None:
    """Raises DemoError unless each run answered alike, from the tier of its name."""
    cold = runs[0]
    for run in runs[1:]:
        if run.logits != cold.logits or run.answer != cold.answer:
            raise DemoError(f"{run.name}: another answer than cold: {run.answer}, {cold.answer}")
        if list(run.sources) != [run.name] or run.cached_tokens != PROMPT_TOKENS - 1:
            raise DemoError(f"{run.name}: {run.cached_tokens} tokens came from {run.sources}")


def demonstrate(socket: str, own: OwnDaemon | None) -> list[Run]:
    model = Model()
    # A prompt of its own in each run of the program, so that the first time is always cold.
    prompt = np.random.default_rng().integers(0, VOCABULARY, PROMPT_TOKENS).tolist()
    hashes: list[bytes] = []
    others: list[bytes] = []
    runs = []
    print(f"\n{'run':<6}{'first token':>14}{'prefill skipped':>20}   served from", flush=True)
    for name in ("cold", "pool", "host", "disk"):
        with kvtier.connect(
            socket, client_name="kvtier.demo", request_timeout_ms=PATIENCE_S * 1000
        ) as connection:
            pool = connection.attach(connection.register_model(RECORD), pool_bytes=POOL_BYTES)
            if not hashes:
                hashes = list(pool.hash_blocks(prompt[:-1]))
            if name == "host":
                others = push_to_host(socket, pool, hashes)
            runs.append(generate(name, model, pool, prompt))
            made = pool.hash_blocks(prompt + runs[-1].answer)  # more than the prompt's blocks
        show(runs[-1])
        if name == "host":
            push_to_disk(socket, own, hashes)
    if own is None:
        # A daemon that others use is left without blocks that no one asks for again.
        evict(socket, list(made) + others)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kvtier.demo", description="Shows one prompt cold and from each tier."
    )
    parser.add_argument(
        "--private", action="store_true", help="start a daemon even if one is running"
    )
    arguments = parser.parse_args()
    print(
        f"model: {LAYERS} layers of {HEADS * HEAD_DIM}, random weights, in numpy; "
        f"a prompt of {PROMPT_TOKENS:,} tokens"
    )
    try:
        with daemon(arguments.private) as (socket, own):
            runs = demonstrate(socket, own)
            check(runs)
    except (DemoError, kvtier.KvtierError, ImportError, OSError) as error:
        sys.exit(f"kvtier.demo: {error}")
    print(f"\nThe first token's logits and {ANSWER_TOKENS} tokens were the same bits each time.")
    times = " ".join(f"{run.name}_ms={run.ttft_ms:.1f}" for run in runs)
    print(f"demo: ok {times} identical=yes")


if __name__ == "__main__":
    main()
