# SPDX-License-Identifier: Apache-2.0
"""Loads of many requests, read from traces.

Sessions of agents: every request has the prompt of the one before and what came since. They are read
from a directory whose files hold `requests`, each with `in` and `out` (tokens), `hash_ids` (one for each
`block_size` tokens of the prompt; equal ids in a session are equal tokens) and `think_time` (seconds
before it). Chat: requests that come when the trace says, whether others have been answered or not. They
are read from a file with a line for each: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`
(equal in all of the trace). All lengths are divided by `SHRINK`, so that a dozen or so sessions fit one
GPU while their lengths keep their proportions, and think times by `HASTE`.
"""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

SHRINK, HASTE = 4, 20
CHAT_BLOCK_TOKENS = 512
MAX_OUTPUT_TOKENS = 64
MAX_THINK_S = 5.0


@dataclass
class Turn:
    """A request. think_s: between the end of the one before and this one."""

    prompt: list[int]
    output_tokens: int
    think_s: float


@dataclass
class Load:
    """Sessions, and when each begins, from the load's begin on."""

    sessions: list[list[Turn]]
    delays_s: list[float]


def is_chat(traces: str) -> bool:
    return traces.endswith(".jsonl")


def read_load(request: dict, vocabulary: int) -> Load:
    """request: as Settings.level makes it. Raises ValueError if no trace has prompts of so few tokens."""
    traces, longest, seed = pathlib.Path(request["traces"]), request["longest"], request["seed"]
    count = request["sessions"]
    if is_chat(request["traces"]):
        load = read_chat(traces, vocabulary, longest, count, seed, request["requests_per_s"])
    else:
        sessions = read_sessions(traces, vocabulary, longest, count, request["turns"], seed)
        load = Load(sessions, start_delays_s(len(sessions), request["spread_s"], seed))
    if not load.sessions:
        raise ValueError("no trace has prompts of so few tokens")
    return load


def read_chat(
    path: pathlib.Path, vocabulary: int, longest: int, count: int, seed: int, requests_per_s: float
) -> Load:
    """The first `count` requests with at most `longest` tokens, each a session of one turn. They come
    as far apart as in the trace, but for one factor, which makes their mean rate requests_per_s. seed:
    as read_sessions'."""
    fitting: list[dict] = []
    with open(path) as lines:
        for line in lines:
            request = json.loads(line)
            if request["input_length"] // SHRINK <= longest:
                fitting.append(request)
            if len(fitting) == count:
                break
    blocks = _blocks(f"{seed} chat", fitting, CHAT_BLOCK_TOKENS // SHRINK, vocabulary)
    sessions = [
        [_turn({"in": one["input_length"], "out": one["output_length"], **one}, blocks)]
        for one in fitting
    ]
    times_ms = [one["timestamp"] for one in fitting]
    span_ms = times_ms[-1] - times_ms[0] if times_ms else 0
    factor = len(fitting) / requests_per_s / span_ms if span_ms else 0.0
    return Load(sessions, [factor * (one - times_ms[0]) for one in times_ms])


def read_sessions(
    directory: pathlib.Path, vocabulary: int, longest: int, count: int, turns: int, seed: int
) -> list[list[Turn]]:
    """The first turns of `count` sessions whose prompts, all of them, have at most `longest`
    tokens. seed: draws the sessions (0: in the order of their names) and all tokens, so that no
    other seed's prompts are cached. A trace that serves for several sessions has other tokens in
    each, so that none of them hits another's blocks."""
    paths = sorted(directory.glob("*.json"))
    if seed:
        random.Random(seed).shuffle(paths)
    fitting = []
    for path in paths:
        trace = json.loads(path.read_text())
        requests = [one for one in trace["requests"] if "in" in one][:turns]
        if len(requests) >= 2 and max(one["in"] for one in requests) // SHRINK <= longest:
            fitting.append((path.stem, requests, trace["block_size"] // SHRINK))
    sessions: list[list[Turn]] = []
    while fitting and len(sessions) < count:
        copy, place = divmod(len(sessions), len(fitting))
        stem, requests, block_tokens = fitting[place]
        name = f"{seed} {stem}" + (f" {copy}" if copy else "")
        sessions.append(_turns(name, requests, block_tokens, vocabulary))
    return sessions


def distinct_tokens(sessions: list[list[Turn]], block: int = 16) -> int:
    """The tokens that a cache would hold which forgot nothing: the sessions' working set."""
    known: set[int] = set()
    for session in sessions:
        for turn in session:
            known.update(block_names(turn.prompt, block))
    return len(known) * block


def block_names(prompt: list[int], block: int) -> Iterator[int]:
    """Names of its full blocks: equal ones follow equal tokens."""
    before = 0
    for end in range(block, len(prompt) + 1, block):
        before = hash((before, *prompt[end - block : end]))
        yield before


def start_delays_s(sessions: int, spread_s: float, seed: int) -> list[float]:
    """When each session begins: the first at once, the others at any time within spread_s."""
    source = random.Random(seed)
    return [0.0] + [source.uniform(0.0, spread_s) for _ in range(sessions - 1)]


def _turns(name: str, requests: list[dict], block_tokens: int, vocabulary: int) -> list[Turn]:
    blocks = _blocks(name, requests, block_tokens, vocabulary)
    return [_turn(one, blocks) for one in requests]


def _blocks(
    name: str, requests: list[dict], block_tokens: int, vocabulary: int
) -> dict[int, list[int]]:
    """The tokens of each block, by its id; the same for the same name."""
    blocks: dict[int, list[int]] = {}
    for number in {number for request in requests for number in request["hash_ids"]}:
        source = random.Random(f"{name} {number}")
        blocks[number] = [source.randrange(10, vocabulary - 10) for _ in range(block_tokens)]
    return blocks


def _turn(request: dict, blocks: dict[int, list[int]]) -> Turn:
    prompt = [token for number in request["hash_ids"] for token in blocks[number]]
    return Turn(
        prompt[: max(1, request["in"] // SHRINK)],
        max(1, min(MAX_OUTPUT_TOKENS, request["out"] // SHRINK)),
        min(MAX_THINK_S, request.get("think_time", 0.0) / HASTE),
    )
