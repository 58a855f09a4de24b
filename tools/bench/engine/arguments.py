# SPDX-License-Identifier: Apache-2.0
"""The command line of engine_bench.py."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable

from conversation import is_chat
from settings import MODELS

CONFIGURATIONS = (
    "none", "native", "fs", "lmcache", "lmcache_mp", "pegaflow", "kvtier", "absent", "kept", "pair",
)  # fmt: skip
WITHOUT_SESSIONS = {"kept", "pair"}
# The largest of a count; a mistyped one is not begun.
MOST = 1_000_000


def whole(least: int) -> Callable[[str], int]:
    """A whole number of at least so much."""

    def parse(text: str) -> int:
        return int(_number(text, int, least))

    return parse


def decimal(least: float = 0.0) -> Callable[[str], float]:
    """A number of at least so much."""

    def parse(text: str) -> float:
        return float(_number(text, float, least))

    return parse


def several(one: Callable[[str], float]) -> Callable[[str], list]:
    """Some, with commas between them."""

    def parse(text: str) -> list:
        return [one(part) for part in text.split(",")]

    return parse


def _number(text: str, kind: type, least: float) -> float:
    what = "whole number" if kind is int else "number"
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no {what}") from None
    if not least <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is not from {least} to {MOST}")
    return value


def level(text: str) -> float:
    """Sessions, or requests each second, of which a part makes sense, too."""
    value = float(_number(text, float, 0.01))
    return int(value) if value == int(value) else value


def names(text: str) -> list[str]:
    found = [one.strip() for one in text.split(",")]
    for one in found:
        if one not in CONFIGURATIONS:
            raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(CONFIGURATIONS)}")
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="engine-bench.sh",
        usage="engine-bench.sh [--out DIRECTORY] [--configurations NAME,...] [OPTION...]",
        description="A vLLM user's times with and without kvtier, in one run on one machine.",
    )
    add = parser.add_argument
    add("--out", type=pathlib.Path, default=pathlib.Path("engine-bench"), help="results of an earlier run there are replaced")
    add("--configurations", type=names, default="none,native,kvtier", help=", ".join(CONFIGURATIONS))
    add("--model", choices=sorted(MODELS), default="llama")
    add("--lengths", type=several(whole(16)), default="2048,10000,32000", help="of the prompts, in tokens")
    add("--trials", type=whole(1), default=3)
    add("--host-gib", type=decimal(), default=36, help="of the connectors, each")
    add("--disk-gib", type=decimal(), default=40, help="of the daemons")
    add("--set", action="append", default=[], help="another of kvtierd's settings, KEY=VALUE")
    add("--kv-gib", type=decimal(), default=40, help="vLLM's KV cache on the GPU")
    add("--requests", type=whole(0), default=32, help="at once, in the load; 0: no load")
    add("--request-length", type=whole(1), default=1000)
    add("--output", type=whole(1), default=128, help="tokens of each such request")
    add("--only-hits", action="store_true", help="no loads, no second engine")
    add("--disk-hits", action="store_true", help="also hits that host memory forgot")
    add("--traces", help="a directory with sessions of agents, or a .jsonl file of chat")
    add("--sessions", type=whole(1), default=12, help="of the traces, at once; requests of chat")
    add("--turns", type=whole(2), default=8, help="of each session")
    add("--seeds", type=several(whole(0)), default="0", help="one run of the sessions for each")
    add("--spread-s", type=decimal(), default=0, help="in which the sessions begin")
    add("--only-converse", action="store_true", help="nothing but the sessions")
    add("--levels", type=several(level), default=[], help="sessions at once, or requests of chat each second, level by level")
    add("--objective-ms", type=decimal(1), default=2000, help="ends the levels")
    add("--host-share", type=decimal(), default=0, help="of the last level's blocks")
    add("--layers", type=whole(0), default=0, help="of the model, if not its own number")
    add("--graphs", action="store_true", help="with CUDA graphs")
    add("--no-compile", action="store_true", help="graphs without torch.compile")
    add("--small", action="store_true", help="a tiny model, for vLLM on CPUs")
    add("--limit-s", type=whole(0), default=0, help="of a configuration; 0: none")
    arguments = parser.parse_args()
    if arguments.only_converse != bool(arguments.traces):
        parser.error("--traces and --only-converse go together")
    if arguments.only_converse and WITHOUT_SESSIONS & set(arguments.configurations):
        parser.error(f"{', '.join(sorted(WITHOUT_SESSIONS))} have no sessions of agents")
    of_chat = bool(arguments.traces) and is_chat(arguments.traces)
    if of_chat and not arguments.levels:
        parser.error("chat needs --levels, the requests each second")
    if not of_chat and not all(isinstance(one, int) for one in arguments.levels):
        parser.error("--levels of agents' sessions are whole numbers")
    if (arguments.levels or arguments.host_share) and not (arguments.levels and arguments.traces):
        parser.error("--levels needs --traces, and --host-share needs --levels")
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out} is no directory")
    return arguments
