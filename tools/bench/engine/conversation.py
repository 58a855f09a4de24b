# SPDX-License-Identifier: Apache-2.0
"""Loads of many requests, read from traces.

Sessions of agents: every request has the prompt of the one before and what came since. They are read
from a directory whose files hold `block_size` and `requests`, each with `in` and `out` (tokens),
`hash_ids` (one for each `block_size` tokens of the prompt; equal ids in a session are equal tokens) and
`think_time` (seconds before it). Chat: requests that come when the trace says, whether others have been
answered or not. They are read from a file with a line for each: `timestamp` (ms), `input_length`,
`output_length`, `hash_ids` (one for each 512 tokens, equal in all of the trace). All lengths are divided
by `SHRINK`, so that a dozen or so sessions fit one GPU while their lengths keep their proportions, and
think times by `HASTE`.
"""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SHRINK, HASTE = 4, 20
CHAT_BLOCK_TOKENS = 512
MAX_OUTPUT_TOKENS = 64
MAX_THINK_S = 5.0
# No trace has larger numbers: one of milliseconds that lasts for months.
MOST = 10**10


class TraceError(ValueError):
    """A trace cannot be read, or has no load of the wanted kind."""


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


@dataclass
class _Request:
    """A request as the trace has it."""

    input_tokens: int
    output_tokens: int
    hash_ids: list[int]
    think_s: float
    at_ms: float


def is_chat(traces: str) -> bool:
    return traces.endswith(".jsonl")


def read_load(request: dict, vocabulary: int) -> Load:
    """request: as Settings.level makes it. Raises TraceError, OSError."""
    traces, longest, seed = pathlib.Path(request["traces"]), request["longest"], request["seed"]
    count = request["sessions"]
    if is_chat(request["traces"]):
        return read_chat(traces, vocabulary, longest, count, seed, request["requests_per_s"])
    sessions = read_sessions(traces, vocabulary, longest, count, request["turns"], seed)
    return Load(sessions, start_delays_s(len(sessions), request["spread_s"], seed))


def read_chat(
    path: pathlib.Path, vocabulary: int, longest: int, count: int, seed: int, requests_per_s: float
) -> Load:
    """The first `count` requests with at most `longest` tokens, each a session of one turn. They come
    as far apart as in the trace, but for one factor, which makes their mean rate requests_per_s. seed:
    as read_sessions'. Raises TraceError, OSError."""
    fitting: list[_Request] = []
    with open(path, errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            entry = _parsed(line, where)
            request = _request(entry, "input_length", "output_length", CHAT_BLOCK_TOKENS, where)
            if fitting and request.at_ms < fitting[-1].at_ms:
                raise TraceError(f"{where}: timestamp: before that of an earlier request")
            if request.input_tokens // SHRINK <= longest:
                fitting.append(request)
            if len(fitting) == count:
                break
    if not fitting:
        raise TraceError(f"{path} has no request of at most {longest * SHRINK} tokens")
    blocks = _blocks(f"{seed} chat", fitting, CHAT_BLOCK_TOKENS // SHRINK, vocabulary)
    span_ms = fitting[-1].at_ms - fitting[0].at_ms
    if len(fitting) > 1 and span_ms == 0:
        raise TraceError(f"{path}: the timestamps of the first {len(fitting)} requests are equal")
    factor = len(fitting) / requests_per_s / span_ms if span_ms else 0.0
    return Load(
        [[_turn(one, blocks)] for one in fitting],
        [factor * (one.at_ms - fitting[0].at_ms) for one in fitting],
    )


def read_sessions(
    directory: pathlib.Path, vocabulary: int, longest: int, count: int, turns: int, seed: int
) -> list[list[Turn]]:
    """The first turns of `count` sessions whose prompts, all of them, have at most `longest`
    tokens. seed: draws the sessions (0: in the order of their names) and all tokens, so that no
    other seed's prompts are cached. A trace that serves for several sessions has other tokens in
    each, so that none of them hits another's blocks. Raises TraceError, OSError."""
    if not directory.is_dir():
        raise TraceError(f"{directory} is no directory of sessions, and no .jsonl file of chat")
    paths = sorted(directory.glob("*.json"))
    if seed:
        random.Random(seed).shuffle(paths)
    fitting = []
    for path in paths:
        requests, block_tokens = _session(path)
        requests = requests[:turns]
        if len(requests) >= 2 and max(one.input_tokens for one in requests) // SHRINK <= longest:
            fitting.append((path.stem, requests, block_tokens // SHRINK))
    if not fitting:
        raise TraceError(
            f"{directory} has no .json file with two requests or more, the first {turns} of which have "
            f"at most {longest * SHRINK} tokens each"
        )
    sessions: list[list[Turn]] = []
    while len(sessions) < count:
        copy, place = divmod(len(sessions), len(fitting))
        stem, requests, block_tokens = fitting[place]
        name = f"{seed} {stem}" + (f" {copy}" if copy else "")
        blocks = _blocks(name, requests, block_tokens, vocabulary)
        sessions.append([_turn(one, blocks) for one in requests])
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


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TraceError(f"{where}: no JSON: {error}") from error


def _session(path: pathlib.Path) -> tuple[list[_Request], int]:
    """Its requests that have a prompt, and the tokens of a block."""
    trace = _parsed(path.read_text(errors="replace"), str(path))
    if not isinstance(trace, dict) or not isinstance(trace.get("requests"), list):
        raise TraceError(f"{path} has no list of requests")
    block_tokens = _number(trace, "block_size", SHRINK, str(path))
    requests = []
    for number, one in enumerate(trace["requests"], 1):
        where = f"{path}, request {number}"
        if not isinstance(one, dict):
            raise TraceError(f"{where} is no object")
        if "in" in one:
            requests.append(_request(one, "in", "out", int(block_tokens), where))
    return requests, int(block_tokens)


def _request(entry: Any, length: str, output: str, block_tokens: int, where: str) -> _Request:
    """length, output: the names of its lengths."""
    if not isinstance(entry, dict):
        raise TraceError(f"{where} is no object")
    ids = entry.get("hash_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, int) for one in ids):
        raise TraceError(f"{where}: hash_ids: no list of whole numbers")
    input_tokens = int(_number(entry, length, 1, where))
    # The last block may be none, as it is not full.
    if (len(ids) + 1) * block_tokens <= input_tokens:
        raise TraceError(f"{where}: {len(ids)} hash_ids of {block_tokens} tokens for {input_tokens}")
    at_ms = _number(entry, "timestamp", 0, where) if length == "input_length" else 0.0
    think_s = _number({"think_time": 0, **entry}, "think_time", 0, where)
    return _Request(input_tokens, int(_number(entry, output, 0, where)), ids, think_s, at_ms)


def _number(entry: dict, name: str, least: float, where: str) -> float:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MOST:
        raise TraceError(f"{where}: {name}: no number from {least} to {MOST}")
    return value


def _blocks(
    name: str, requests: list[_Request], block_tokens: int, vocabulary: int
) -> dict[int, list[int]]:
    """The tokens of each block, by its id; the same for the same name."""
    blocks: dict[int, list[int]] = {}
    for number in {number for request in requests for number in request.hash_ids}:
        source = random.Random(f"{name} {number}")
        blocks[number] = [source.randrange(10, vocabulary - 10) for _ in range(block_tokens)]
    return blocks


def _turn(request: _Request, blocks: dict[int, list[int]]) -> Turn:
    prompt = [token for number in request.hash_ids for token in blocks[number]]
    return Turn(
        prompt[: max(1, request.input_tokens // SHRINK)],
        max(1, min(MAX_OUTPUT_TOKENS, request.output_tokens // SHRINK)),
        min(MAX_THINK_S, request.think_s / HASTE),
    )
