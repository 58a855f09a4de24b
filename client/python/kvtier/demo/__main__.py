# SPDX-License-Identifier: Apache-2.0
"""The program; the package's docstring describes it."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvtier

from .._private_daemon import DaemonFailedError, PrivateDaemon
from .model import BLOCK_TOKENS, Model

PROMPT_FILE = pathlib.Path(__file__).with_name("prompt.txt")
ANSWER_TOKENS = 48
CHUNK_TOKENS = 128
#: A longer wait ends with an error that names its purpose.
PATIENCE_S = 60
SETTINGS = (
    "pool.device=host",
    "pool.bytes=64MiB",
    "host.bytes=256MiB",
    "disk.bytes=1GiB",
    "disk.free_floor_bytes=0B",
)


class DemoError(RuntimeError):
    """The demonstration cannot go on, or a run differed from the cold one."""


@dataclass
class Run:
    """One answer to the prompt, and how it came about."""

    name: str
    ttft_ms: float
    cached_tokens: int
    sources: dict[str, int]
    logits: bytes
    answer: list[int]

    @property
    def text(self) -> str:
        return bytes(self.answer).decode("latin-1")


class Prompt:
    """The text to continue, a token a byte, and its identity in the cache."""

    def __init__(self) -> None:
        tokens = list(PROMPT_FILE.read_bytes())
        # Whole blocks and one token: a cold run and a warm one then compute the last token alike.
        self.tokens = tokens[: (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS + 1]
        # No earlier run of the program has blocks of it, so that the first time is always cold.
        self.identity = kvtier.PromptIdentity(cache_salt=secrets.token_hex(16))

    def hashes(self, pool: kvtier.Pool, answer: list[int] | None = None) -> list[bytes]:
        """The prompt's full blocks, or with an answer all blocks of both."""
        if answer is None:
            return pool.hash_blocks(self.tokens[:-1], self.identity)
        return pool.hash_blocks(self.tokens + answer, self.identity)


def pool_bytes(model: Model, prompt: Prompt) -> int:
    """One prompt with its answer and half as much: other prompts then push it out."""
    blocks = (len(prompt.tokens) + ANSWER_TOKENS) // BLOCK_TOKENS
    return model.record.layout().block_stride * blocks * 3 // 2


def generate(name: str, model: Model, pool: kvtier.Pool, prompt: Prompt) -> Run:
    """Answers the prompt, and computes only the tokens that no tier has."""
    tokens = prompt.tokens
    begin = time.perf_counter()
    with pool.open_sequence(
        tokens, identity=prompt.identity, reserve_tokens=ANSWER_TOKENS
    ) as sequence:
        if not sequence.wait(PATIENCE_S * 1000):
            raise DemoError("the cached blocks did not arrive in time")
        info = sequence.info()
        last = len(tokens) - 1
        for first in range(info.cached_tokens, last, CHUNK_TOKENS):
            end = min(first + CHUNK_TOKENS, last)
            model.forward(pool, sequence, first, tokens[first:end])
            _show_progress(name, end, last)
        logits = model.forward(pool, sequence, last, tokens[last:])
        ttft_ms = (time.perf_counter() - begin) * 1000
        sequence.mark_computed(len(tokens))
        answer = [int(logits.argmax())]
        first_logits = logits.tobytes()
        while len(answer) < ANSWER_TOKENS:
            sequence.append(answer[-1:])
            logits = model.forward(pool, sequence, last + len(answer), answer[-1:])
            sequence.mark_computed(len(tokens) + len(answer))
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


def find_daemon() -> tuple[str | None, str]:
    """The socket of a running daemon that can serve the demonstration, as that daemon names it (in
    a container it may be elsewhere than here); or None, and the reason."""
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
def daemon(private: bool) -> Iterator[tuple[str, PrivateDaemon | None]]:
    """The socket of the daemon to use, "" for the one that any client finds; and the daemon if it is
    this program's own."""
    socket, why = (None, "as asked") if private else find_daemon()
    if socket is not None:
        print(f"daemon: the one that runs, at {socket}")
        yield "", None
        return
    with tempfile.TemporaryDirectory(prefix="kvtier-demo-") as directory:
        own = PrivateDaemon(directory, SETTINGS)
        try:
            own.start()
            print(f"daemon: one of its own in {directory}: {why}")
            yield own.socket, own
        finally:
            own.kill()


# ---------------------------------------------------------------- moving between tiers


def _admin(socket: str, request: dict[str, Any]) -> Any:
    return kvtier.admin(request, pathlib.Path(socket).parent / "admin.sock" if socket else "")


def push_to_host(socket: str, pool: kvtier.Pool, hashes: list[bytes]) -> list[bytes]:
    """Stores other prompts until nothing of `hashes` is left in the pool; returns their hashes."""
    # A machine too busy to copy in time would drop blocks; after this all have copies below.
    _admin(socket, {"op": "drain"})
    others: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while any(kvtier.Presence.POOL in presence for presence in pool.lookup(hashes)):
        if time.monotonic() > deadline:
            raise DemoError("other prompts did not push the prompt out of the pool")
        tokens = np.random.default_rng().integers(1 << 20, size=16 * BLOCK_TOKENS, dtype=np.uint32)
        try:
            with pool.open_sequence(tokens, retention=kvtier.Retention.MEMORY) as sequence:
                sequence.mark_computed(len(tokens))
            others += pool.hash_blocks(tokens)
        except kvtier.ResourceExhaustedError:
            time.sleep(0.05)  # the daemon is copying blocks out of the pool
    return others


def push_to_disk(socket: str, own: PrivateDaemon | None, hashes: list[bytes]) -> None:
    """Leaves the blocks on disk only: by kill -9 and a restart where that harms no other client."""
    _admin(socket, {"op": "drain"})
    if own is not None:
        own.kill()
        own.start()
        return
    deadline = time.monotonic() + PATIENCE_S
    for tier in ("pool", "host"):
        while evict(socket, hashes, tier):
            if time.monotonic() > deadline:
                raise DemoError(f"blocks kept moving while they should have left the {tier} tier")
            time.sleep(0.05)


def evict(socket: str, hashes: list[bytes], tier: str | None = None) -> int:
    """Returns how many blocks stay because they are being copied."""
    moving = 0
    for first in range(0, len(hashes), 256):
        some = [one.hex() for one in hashes[first : first + 256]]
        request: dict[str, Any] = {"op": "evict", "hashes": some}
        moving += _admin(socket, {**request, "tier": tier} if tier else request)["moving"]
    return moving


# ---------------------------------------------------------------- the demonstration


def show(run: Run, prompt: Prompt) -> None:
    skipped = f"{run.cached_tokens:,} of {len(prompt.tokens):,}"
    sources = ", ".join(run.sources) or "nowhere: computed"
    print(f"{run.name:<6}{run.ttft_ms:>11.1f} ms{skipped:>20}   {sources}", flush=True)


def check(runs: list[Run], prompt: Prompt) -> None:
    """Raises DemoError unless each run answered alike, from the tier of its name."""
    cold = runs[0]
    for run in runs[1:]:
        if run.logits != cold.logits or run.text != cold.text:
            raise DemoError(f"{run.name}: another text than cold: {run.text!r}, {cold.text!r}")
        if list(run.sources) != [run.name] or run.cached_tokens != len(prompt.tokens) - 1:
            raise DemoError(f"{run.name}: {run.cached_tokens} tokens came from {run.sources}")


def demonstrate(socket: str, own: PrivateDaemon | None) -> list[Run]:
    model, prompt = Model(), Prompt()
    print(f"model: {model.record.layers} layers, trained, in numpy; ", end="")
    print(f"a prompt of {len(prompt.tokens):,} tokens\n")
    hashes: list[bytes] = []
    others: list[bytes] = []
    runs = []
    print(f"{'run':<6}{'first token':>14}{'prefill skipped':>20}   served from", flush=True)
    for name in ("cold", "pool", "host", "disk"):
        with kvtier.connect(
            socket, client_name="kvtier.demo", request_timeout_ms=PATIENCE_S * 1000
        ) as connection:
            known = connection.register_model(model.record)
            pool = connection.attach(known, pool_bytes=pool_bytes(model, prompt))
            if name == "host":
                others = push_to_host(socket, pool, hashes)
            run = generate(name, model, pool, prompt)
            hashes = prompt.hashes(pool)
            made = prompt.hashes(pool, run.answer)
        runs.append(run)
        show(run, prompt)
        if name == "host":
            push_to_disk(socket, own, hashes)
    check(runs, prompt)
    if own is None:
        # A daemon that others use keeps no blocks that no client will ask for again.
        evict(socket, made + others)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kvtier.demo", description="Shows one prompt cold and from each tier."
    )
    parser.add_argument(
        "--private", action="store_true", help="start a daemon even if one is running"
    )
    arguments = parser.parse_args()
    try:
        with daemon(arguments.private) as (socket, own):
            runs = demonstrate(socket, own)
    except (DemoError, DaemonFailedError, kvtier.KvtierError, ImportError, OSError) as error:
        sys.exit(f"kvtier.demo: {error}")
    print(f"\ntext: ...{runs[0].text}")
    print("The text and the first token's logits were the same each time.")
    times = " ".join(f"{run.name}_ms={run.ttft_ms:.1f}" for run in runs)
    print(f"demo: ok {times} identical=yes")


if __name__ == "__main__":
    main()
