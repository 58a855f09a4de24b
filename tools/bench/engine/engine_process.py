# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine, measured: started by engine_bench.py, told what to do by lines of JSON.

Operations, each answered by a line of JSON on the descriptor KVTIER_BENCH_REPLY_FD:

    {"op": "ask", "length": 2048, "trial": 0}      one request alone: its time to first token
    {"op": "forget"}                               vLLM's own prefix cache is dropped
    {"op": "forget", "connector": true}            and its offloading's host memory, too
    {"op": "load", "requests": 32, "length": 1000, "tokens": 128, "trial": 0}
                                                   many requests at once: throughput and pauses
    {"op": "converse", "traces": "...", "sessions": 12, "turns": 8, "longest": 32000, "seed": 1,
     "spread_s": 20}                               agents' sessions, each waiting for its answers;
                                                   with "requests_per_s" and a file: chat
    {"op": "end"}

Times are taken in the loop that steps the engine, as a server in front of it would see them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
import time
import zlib
from typing import Any

from conversation import block_names, read_load

FIRST_TOKEN_ID, VOCABULARY_MARGIN = 10, 10
OUTPUT_TOKENS = 32


def prompt(kind: str, length: int, trial: int, vocabulary: int) -> list[int]:
    """The same tokens in every process for the same arguments."""
    source = random.Random(f"{kind} {length} {trial}")
    return [
        source.randrange(FIRST_TOKEN_ID, vocabulary - VOCABULARY_MARGIN) for _ in range(length)
    ]


def percentile(ascending: list[float], of_hundred: int) -> float:
    """0 where there is none, as between the tokens of answers that have one."""
    return ascending[len(ascending) * of_hundred // 100] if ascending else 0.0


@dataclasses.dataclass
class Tally:
    """Counts over all requests of a run; times in seconds. A request's name is its engine's."""

    prompt_tokens: int = 0
    _cached_tokens: int = 0
    _produced: int = 0
    _first: dict[str, float] = dataclasses.field(default_factory=dict)  # times to first token
    _later: list[float] = dataclasses.field(default_factory=list)  # without each session's first turn
    _last: dict[str, float] = dataclasses.field(default_factory=dict)  # when its last token came
    _pauses: list[float] = dataclasses.field(default_factory=list)
    _short_of_possible: list[int] = dataclasses.field(default_factory=list)
    each: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # requests, as they end

    def note_tokens(self, output: Any, since: float, now: float, is_later_turn: bool) -> None:
        """A step gave the request, which was asked at `since`, tokens."""
        name = output.request_id
        if name not in self._first and output.outputs[0].token_ids:
            self._first[name] = now - since
            if is_later_turn:
                self._later.append(now - since)
        elif name in self._last:
            self._pauses.append(now - self._last[name])
        self._last[name] = now

    def note_end(self, output: Any, possible_tokens: int, request: dict[str, Any]) -> None:
        """The request has ended, of whose prompt so many tokens could have been hits. request: what
        else is known of it."""
        cached = output.num_cached_tokens or 0
        self.each.append({
            **request, "ttft_ms": round(1e3 * self._first[output.request_id], 1),
            **_waits_ms(output.metrics), "possible_tokens": possible_tokens,
            "cached_tokens": cached, "output_tokens": len(output.outputs[0].token_ids),
        })  # fmt: skip
        self._produced += len(output.outputs[0].token_ids)
        self._cached_tokens += cached
        if cached < possible_tokens:
            self._short_of_possible.append(possible_tokens - cached)

    def report(self, seconds: float, objective_s: float) -> dict[str, Any]:
        times, pauses = sorted(self._first.values()), sorted(self._pauses)
        in_time = sum(one <= objective_s for one in times)
        return {
            "seconds": seconds,
            "requests_in_time_per_s": in_time / seconds,
            "all_tokens_per_s": (self.prompt_tokens + self._produced) / seconds,
            "p90_ttft_ms": 1e3 * percentile(times, 90),
            "pause_p99_ms": 1e3 * percentile(pauses, 99),
            "requests": len(times),
            "prompt_tokens": self.prompt_tokens,
            "cached_share": self._cached_tokens / self.prompt_tokens,
            "requests_with_less": len(self._short_of_possible),
            "tokens_less": sum(self._short_of_possible),
            "mean_ttft_ms": 1e3 * sum(times) / len(times),
            "p50_ttft_ms": 1e3 * percentile(times, 50),
            "p99_ttft_ms": 1e3 * percentile(times, 99),
            "later_mean_ttft_ms": 1e3 * sum(self._later) / max(1, len(self._later)),
        }


def _waits_ms(metrics: Any) -> dict[str, float]:
    """How long vLLM let the request wait before a step had it, and from then to its first token."""
    if metrics is None:
        return {}
    return {
        "queued_ms": round(1e3 * (metrics.scheduled_ts - metrics.queued_ts), 1),
        "prefill_ms": round(1e3 * (metrics.first_token_ts - metrics.scheduled_ts), 1),
    }


class Engine:
    def __init__(self, model: str, options: dict) -> None:
        from vllm import LLM

        self._vocabulary = json.load(open(os.path.join(model, "config.json")))["vocab_size"]
        self._llm = LLM(model=model, **options)
        self._engine = self._llm.llm_engine
        self._requests = 0
        self._loaded_tokens: dict[str, int] = {}  # by the names of requests
        self._watch_loads()

    def ask(self, request: dict) -> dict:
        tokens = prompt("ask", request["length"], request["trial"], self._vocabulary)
        return self._alone(tokens, request.get("tokens", OUTPUT_TOKENS))

    def forget(self, request: dict) -> dict:
        """Blocks that a connector still stores are not free. An engine without a request may not
        step, so that a short one is served now and then."""
        for attempt in range(200):
            if self._llm.reset_prefix_cache(reset_connector=request.get("connector", False)):
                return {"done": True}
            time.sleep(0.05)
            if attempt % 20 == 19:
                self._alone(prompt("idle", 15, attempt, self._vocabulary), 1)
        raise RuntimeError("vLLM's blocks are not freed")

    def load(self, request: dict) -> dict:
        began = time.perf_counter()
        last: dict[str, float] = {}
        first: dict[str, float] = {}
        pauses: list[float] = []
        longest_step = 0.0
        for i in range(request["requests"]):
            tokens = prompt("load", request["length"], request["trial"] * 1000 + i, self._vocabulary)
            last[self._add(tokens, request["tokens"])] = began
        unfinished, errors, produced = len(last), 0, 0
        while unfinished:
            step_began = time.perf_counter()
            outputs = self._engine.step()
            now = time.perf_counter()
            longest_step = max(longest_step, now - step_began)
            for output in outputs:
                name = output.request_id
                if name in first:
                    pauses.append(now - last[name])
                else:
                    first[name] = now - began
                last[name] = now
                if output.finished:
                    unfinished -= 1
                    produced += len(output.outputs[0].token_ids)
                    errors += output.outputs[0].finish_reason not in ("length", "stop")
        seconds = time.perf_counter() - began
        pauses.sort()
        return {
            "seconds": seconds,
            "tokens_per_s": produced / seconds,
            "mean_ttft_ms": 1e3 * sum(first.values()) / len(first),
            "pause_p50_ms": 1e3 * percentile(pauses, 50),
            "pause_p99_ms": 1e3 * percentile(pauses, 99),
            "longest_pause_ms": 1e3 * max(pauses, default=0.0),
            "longest_step_ms": 1e3 * longest_step,
            "errors": errors,
        }

    def converse(self, request: dict) -> dict:
        load = read_load(request, self._vocabulary)
        sessions, delays = load.sessions, load.delays_s
        turn_of = [0] * len(sessions)
        asked: dict[str, tuple[int, float]] = {}
        possible = self._possible_hits(sessions)
        tally = Tally()
        began = time.perf_counter()
        # When the next turn of each is due.
        waiting = {number: began + delay for number, delay in enumerate(delays)}
        while waiting or asked:
            now = time.perf_counter()
            for number in [one for one, due in waiting.items() if due <= now]:
                del waiting[number]
                turn = sessions[number][turn_of[number]]
                asked[self._add(turn.prompt, turn.output_tokens, None)] = (number, now)
                tally.prompt_tokens += len(turn.prompt)
            if not asked:
                time.sleep(max(0.0, min(waiting.values()) - time.perf_counter()))
                continue
            for output in self._engine.step():
                now = time.perf_counter()
                number, since = asked[output.request_id]
                tally.note_tokens(output, since, now, turn_of[number] > 0)
                if not output.finished:
                    continue
                del asked[output.request_id]
                turn = sessions[number][turn_of[number]]
                of_request = {
                    "session": number, "turn": turn_of[number], "asked_s": round(since - began, 3),
                    "ended_s": round(now - began, 3), "prompt_tokens": len(turn.prompt),
                    "loaded_tokens": self._loaded_tokens.get(output.request_id),
                }  # fmt: skip
                tally.note_end(output, possible[number][turn_of[number]], of_request)
                turn_of[number] += 1
                if turn_of[number] < len(sessions[number]):
                    waiting[number] = now + sessions[number][turn_of[number]].think_s
        seconds = time.perf_counter() - began
        return {
            **tally.report(seconds, request.get("objective_ms", 0.0) / 1e3),
            "possible_share": sum(map(sum, possible)) / tally.prompt_tokens,
            "connector": self._connector_counts(),
            "each": tally.each,
        }

    def _watch_loads(self) -> None:
        """vLLM says with each first token how many tokens a connector has brought, but keeps it from
        its users."""
        get_output = self._engine.engine_core.get_output

        def watched() -> Any:
            outputs = get_output()
            for one in outputs.outputs:
                if one.prefill_stats is not None:
                    # vLLM appends to the name that it was given.
                    name = one.request_id.partition("-")[0]
                    self._loaded_tokens[name] = one.prefill_stats.num_external_cached_tokens
            return outputs

        self._engine.engine_core.get_output = watched

    def _possible_hits(self, sessions: list) -> list[list[int]]:
        """For each turn, the tokens that a cache would have which forgot nothing: whole blocks in
        common with an earlier prompt of its session or of one that begins before, but for the last
        token. Sessions of agents have none in common."""
        block = self._engine.vllm_config.cache_config.block_size
        known: set[int] = set()
        possible = []
        for session in sessions:
            possible.append([])
            for turn in session:
                names = list(block_names(turn.prompt, block))
                hits = next((i for i, one in enumerate(names) if one not in known), len(names))
                possible[-1].append(min(hits * block, (len(turn.prompt) - 1) // block * block))
                known.update(names)
        return possible

    def _connector_counts(self) -> dict[str, float]:
        """kvtier's figures in vLLM's registry since the engine's start, if vLLM keeps them."""
        if not self._engine.log_stats:
            return {}
        return {
            f"{metric.labels['operation']}:{metric.labels['outcome']}": metric.value
            for metric in self._llm.get_metrics()
            if metric.name == "vllm:kvtier_connector_blocks"
        }

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    def _add(self, tokens: list[int], output_tokens: int, seed: int | None = 11) -> str:
        """seed None: each token is the likeliest, which costs the engine nothing."""
        from vllm import SamplingParams

        self._requests += 1
        name = str(self._requests)
        # Random weights repeat the likeliest token for ever; tokens that are drawn, with a seed, tell
        # caches with wrong bytes apart.
        parameters = SamplingParams(
            temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=output_tokens,
            ignore_eos=True, detokenize=False,
        )  # fmt: skip
        self._engine.add_request(name, {"prompt_token_ids": tokens}, parameters)
        return name

    def _alone(self, tokens: list[int], output_tokens: int) -> dict:
        began = time.perf_counter()
        self._add(tokens, output_tokens)
        first = None
        while True:
            for output in self._engine.step():
                now = time.perf_counter()
                produced = list(output.outputs[0].token_ids)
                if first is None and produced:
                    first = now - began
                if output.finished:
                    assert first is not None
                    return {
                        "ttft_ms": 1e3 * first,
                        "all_ms": 1e3 * (now - began),
                        "cached_tokens": output.num_cached_tokens,
                        "digest": zlib.crc32(str(produced).encode()),
                        "distinct_tokens": len(set(produced)),
                    }


def main() -> None:
    with os.fdopen(int(os.environ["KVTIER_BENCH_REPLY_FD"]), "w") as replies:
        began = time.perf_counter()
        engine = Engine(sys.argv[1], json.loads(sys.argv[2]))

        def reply(what: dict) -> None:
            print(json.dumps(what), file=replies, flush=True)

        reply({"start_s": time.perf_counter() - began})
        for line in sys.stdin:
            request = json.loads(line)
            if request["op"] == "end":
                break
            reply(getattr(engine, request["op"])(request))
        engine.close()


if __name__ == "__main__":
    main()
