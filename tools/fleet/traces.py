# SPDX-License-Identifier: Apache-2.0
"""Recorded requests, and the traffic of a fleet made of copies of them."""

import json
import pathlib
import random
from collections import namedtuple

#: Tokens of a block here. Recorded blocks of fewer tokens are joined.
BLOCK_TOKENS = 512

#: time_s: its arrival. tokens: of the prompt. blocks: the keys of its full blocks, first to last; a
#: key stands for a block and everything before it, so equal keys are equal prefixes.
Request = namedtuple("Request", "time_s tokens blocks")


def read_trace(path, max_tokens=None):
    """The requests of a file of the Mooncake format (JSON lines), or of a folder with files of the
    agentic format (one session each), as a list of sessions, each a list of requests.

    A Mooncake file does not say which requests belong together: it is one session. Prompts longer
    than max_tokens are left out, as a model would refuse them. Raises OSError, ValueError.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        sessions = [_agentic(file) for file in sorted(path.glob("*.json"))]
    else:
        sessions = [_mooncake(path)]
    sessions = [[request for request in session
                 if max_tokens is None or request.tokens <= max_tokens] for session in sessions]
    sessions = [sorted(session, key=lambda request: request.time_s)
                for session in sessions if session]
    if not sessions:
        raise ValueError(f"{path}: no requests")
    first_key = 0
    for session in sessions:  # keys of two sessions never meet
        session[:] = [request._replace(blocks=[first_key + key for key in request.blocks])
                      for request in session]
        first_key = _keys_used(session, first_key)
    return sessions


def _mooncake(path):
    keys = {}
    with open(path, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    return [Request(record["timestamp"] / 1000, record["input_length"],
                    _chain(record["hash_ids"][:record["input_length"] // BLOCK_TOKENS], 1, keys))
            for record in records]


def _agentic(path):
    session = json.loads(path.read_text(encoding="utf-8"))
    joined, rest = divmod(BLOCK_TOKENS, session["block_size"])
    if rest or not joined:
        raise ValueError(f"{path}: blocks of {session['block_size']} tokens")
    keys = {}
    return [Request(time_s, record["in"], _chain(record["hash_ids"], joined, keys))
            for time_s, record in _flat(session["requests"], 0)]


def _flat(records, start_s):
    """The requests of a session and of its sub-agents."""
    for record in records:
        if "requests" in record:
            yield from _flat(record["requests"], start_s + record["t"])
        else:
            yield start_s + record["t"], record


def _chain(ids, joined, keys):
    """Numbers each block by itself and all before it; of `joined` recorded ones the last counts.
    A rest that fills no block is left out."""
    chain, key = [], -1
    for position, recorded in enumerate(ids, 1):
        key = keys.setdefault((key, recorded), len(keys))
        if position % joined == 0:
            chain.append(key)
    return chain


def _keys_used(session, least=0):
    return max((1 + key for request in session for key in request.blocks), default=least)


def duration_s(sessions):
    """From the first request to the last."""
    return max(session[-1].time_s for session in sessions)


class Traffic:
    """What one cell of a fleet receives.

    Copies of the trace, with keys of their own, make up the fleet's request rate. Each session of a
    copy begins at a random time; what would come after the end comes at the beginning as a session
    of its own. front: how a request finds its cell: "session" (by its first two blocks) or
    "random".
    """

    def __init__(self, sessions, hosts, rate, cells=1, front="session", seed=1):
        self.duration_s = duration_s(sessions)
        self.copies = max(1, round(hosts * rate * self.duration_s / sum(map(len, sessions))))
        self._sessions, self._cells, self._front = sessions, cells, front
        self._keys = max(map(_keys_used, sessions))
        self._random = random.Random(seed)

    def requests(self):
        """The requests of one cell, by time."""
        result = []
        for copy in range(self.copies):
            for session in self._sessions:
                offset_s = self._random.uniform(0, self.duration_s) if self.copies > 1 else 0
                for request in self._chosen(session):
                    rounds, time_s = divmod(request.time_s + offset_s, self.duration_s or 1)
                    first = (2 * copy + (rounds > 0 and offset_s > 0)) * self._keys
                    blocks = [first + key for key in request.blocks]
                    result.append(Request(time_s if offset_s else request.time_s,
                                          request.tokens, blocks))
        result.sort(key=lambda request: request.time_s)
        return result

    def _chosen(self, session):
        if self._cells == 1:
            return session
        draw, share = self._random.random, 1 / self._cells
        if self._front == "random":
            return [request for request in session if draw() < share]
        roots = {}
        return [request for request in session
                if roots.setdefault(tuple(request.blocks[:2]), draw()) < share]
