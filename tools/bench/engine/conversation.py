# SPDX-License-Identifier: Apache-2.0
"""Sessions of agents as load: every request has the prompt of the one before and what came since.

Read from traces whose files hold `requests`, each with `in` and `out` (tokens), `hash_ids` (one for each
`block_size` tokens of the prompt; equal ids in a session are equal tokens) and `think_time` (seconds
before it). All lengths are divided by `SHRINK`, so that a dozen or so sessions
fit one GPU while their lengths keep their proportions, and think times by `HASTE`.
"""

from __future__ import annotations

import json
import pathlib
import random
from dataclasses import dataclass

SHRINK, HASTE = 4, 20
MAX_OUTPUT_TOKENS = 64
MAX_THINK_S = 5.0


@dataclass
class Turn:
    """A request. think_s: between the end of the one before and this one."""

    prompt: list[int]
    output_tokens: int
    think_s: float


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
    return sum(len(_known_blocks(session, block)) for session in sessions) * block


def _known_blocks(session: list[Turn], block: int) -> set[int]:
    known: set[int] = set()
    for turn in session:
        before = 0
        for end in range(block, len(turn.prompt) + 1, block):
            before = hash((before, *turn.prompt[end - block : end]))
            known.add(before)
    return known


def start_delays_s(sessions: int, spread_s: float, seed: int) -> list[float]:
    """When each session begins: the first at once, the others at any time within spread_s."""
    source = random.Random(seed)
    return [0.0] + [source.uniform(0.0, spread_s) for _ in range(sessions - 1)]


def _turns(name: str, requests: list[dict], block_tokens: int, vocabulary: int) -> list[Turn]:
    blocks: dict[int, list[int]] = {}
    for number in {number for request in requests for number in request["hash_ids"]}:
        source = random.Random(f"{name} {number}")
        blocks[number] = [source.randrange(10, vocabulary - 10) for _ in range(block_tokens)]
    return [_turn(one, blocks) for one in requests]


def _turn(request: dict, blocks: dict[int, list[int]]) -> Turn:
    prompt = [token for number in request["hash_ids"] for token in blocks[number]]
    return Turn(
        prompt[: max(1, request["in"] // SHRINK)],
        max(1, min(MAX_OUTPUT_TOKENS, request["out"] // SHRINK)),
        min(MAX_THINK_S, request.get("think_time", 0.0) / HASTE),
    )
