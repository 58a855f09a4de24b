# SPDX-License-Identifier: Apache-2.0
"""The results of engine_bench.py: rows, as JSON and as a table."""

from __future__ import annotations

import json
import pathlib
import statistics


class Results:
    """Rows as they come, printed at once, so that a run that is cut short still says something."""

    def __init__(self, path: pathlib.Path, facts: dict) -> None:
        self._path = path
        self._all: dict = {"facts": facts, "rows": []}

    def add(self, configuration: str, kind: str, row: dict) -> None:
        row = {"configuration": configuration, "kind": kind, **row}
        row = {key: round(value, 3) if isinstance(value, float) else value
               for key, value in row.items()}  # fmt: skip
        self._all["rows"].append(row)
        self._path.write_text(json.dumps(self._all, indent=1))
        print("row", json.dumps(row), flush=True)

    def add_requests(self, configuration: str, load: str, rows: list[dict]) -> None:
        """Requests of a load, each on a line of `requests.jsonl`: too many for the rows."""
        with open(self._path.with_name("requests.jsonl"), "a") as file:
            for row in rows:
                print(json.dumps({"configuration": configuration, "load": load, **row}), file=file)

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
        lines += [_of_prompts(*key, rows) for key, rows in groups.items()]
        for row in self._all["rows"]:
            if "tokens_per_s" in row:
                lines.append(_of_load(row))
            elif row["kind"] == "conversation":
                lines.append(_of_conversation(row))
            elif row["kind"] == "saturation":
                lines.append(_of_saturation(row))
        return "\n".join(lines)


def _of_prompts(configuration: str, kind: str, length: int, rows: list[dict]) -> str:
    times = [row["ttft_ms"] for row in rows]
    same = [row["same_as_vram"] for row in rows if row["same_as_vram"] is not None]
    return (
        f"| {configuration} | {kind} | {length} | {statistics.median(times):.1f} "
        f"({min(times):.1f} to {max(times):.1f}) | {min(row['cached_tokens'] for row in rows)} "
        f"| {sum(same)} of {len(same)} |"
    )


def _of_load(row: dict) -> str:
    return (
        f"| {row['configuration']} | {row['kind']} | | {row['tokens_per_s']:.0f} tokens/s, "
        f"pause p50 {row['pause_p50_ms']:.1f} p99 {row['pause_p99_ms']:.1f}, longest step "
        f"{row['longest_step_ms']:.1f} ms | | errors {row['errors']} |"
    )


def _of_conversation(row: dict) -> str:
    return (
        f"| {row['configuration']} | conversation {row['seed']}, {row['requests']} requests in "
        f"{row['seconds']:.0f} s | {row['prompt_tokens']} | mean {row['mean_ttft_ms']:.0f}, "
        f"p50 {row['p50_ttft_ms']:.0f}, p99 {row['p99_ttft_ms']:.0f}, without first turns mean "
        f"{row['later_mean_ttft_ms']:.0f} | {100 * row['cached_share']:.1f} % of "
        f"{100 * row['possible_share']:.1f} | {row['requests_with_less']} requests had less |"
    )


def _of_saturation(row: dict) -> str:
    return (
        f"| {row['configuration']} | {row.get('requests_per_s', row['sessions'])} "
        f"{'requests/s' if 'requests_per_s' in row else 'sessions'}"
        f"{'' if row['met'] else ', objective missed'} | {row['prompt_tokens']} "
        f"| p50 {row['p50_ttft_ms']:.0f}, p90 {row['p90_ttft_ms']:.0f}, "
        f"p99 {row['p99_ttft_ms']:.0f}, {row['requests_in_time_per_s']:.2f} requests/s in time, "
        f"{row['all_tokens_per_s']:.0f} tokens/s, pause p99 {row['pause_p99_ms']:.0f} "
        f"| {100 * row['cached_share']:.1f} % of {100 * row['possible_share']:.1f} | {_usage(row)} |"
    )


def _usage(row: dict) -> str:
    """Processor time of engine and daemon for a request, and what both wrote and read."""
    per_request_ms = {who: 1e3 * row.get(f"{who}_cpu_s", 0.0) / row["requests"]
                      for who in ("engine", "daemon")}  # fmt: skip
    gb = {what: sum(row.get(f"{who}_{what}_bytes", 0) for who in ("engine", "daemon")) / 1e9
          for what in ("written", "read")}  # fmt: skip
    return (
        f"CPU ms/request: engine {per_request_ms['engine']:.0f}, daemon "
        f"{per_request_ms['daemon']:.0f}; wrote {gb['written']:.1f} GB, read {gb['read']:.1f}"
    )
