# SPDX-License-Identifier: Apache-2.0
"""Simulates hosts behind a router on a recorded trace: where blocks are found, what networks carry.

    python3 tools/fleet TRACE --hosts 50 --router random,prefix --cold none,1
    python3 tools/fleet break-even

One row for each combination of the lists. docs/CLUSTER.md has the assumptions and figures.
"""

import argparse
import gc
import itertools
import re
import sys

from simulation import LOCAL_TIERS, Fleet, Model, Setting
from traces import Traffic, read_trace

#: 8B: fitted to what vLLM 0.33 took for 2,048, 10,000 and 32,000 tokens on one H200 (49, 270 and
#: 1,210 ms). 70B: the same by the ratio of operations, on eight GPUs of which 70 % count.
MODELS = {model.name: model for model in (
    Model("llama-3.1-8b", 128 << 10, 21.69e-6, 1.003e-9),
    Model("llama-3.1-70b", 320 << 10, 37.9e-6, 0.895e-9))}
UNITS = {"GiB": 1 << 30, "TiB": 1 << 40}
SIZES = {"llama-3.1-8b": ("80GiB", "200GiB", "2TiB"), "llama-3.1-70b": ("600GiB", "1TiB", "16TiB")}
PREFIX_TOKENS = (512, 2048, 8192, 32768, 131072)


def size_text(text):
    if not re.fullmatch(r"\d+(GiB|TiB)", text):
        raise argparse.ArgumentTypeError(f"{text}: must be a number with GiB or TiB")
    return text


def size_bytes(text):
    return int(text[:-3]) * UNITS[text[-3:]]


def one_of(*choices):
    def parse(text):
        values = text.split(",")
        for value in values:
            if value not in choices:
                raise argparse.ArgumentTypeError(f"{value}: must be one of {', '.join(choices)}")
        return values
    return parse


def uses(text):
    if not re.fullmatch(r"(none|[1-9]\d*)(,(none|[1-9]\d*))*", text):
        raise argparse.ArgumentTypeError(f"{text}: must be none, or uses before a block is written")
    return [0 if value == "none" else int(value) for value in text.split(",")]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="tools/fleet", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="a Mooncake file, a folder of agentic files, or break-even")
    parser.add_argument("--model", choices=MODELS, default="llama-3.1-8b")
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second per host")
    parser.add_argument("--cells", type=int, default=1,
                        help="parts of the fleet that share nothing; one is simulated")
    parser.add_argument("--front", choices=("session", "random"), default="session",
                        help="how a request finds its cell")
    parser.add_argument("--router", type=one_of("random", "round_robin", "prefix"),
                        default=["prefix"])
    parser.add_argument("--load-limit", type=float, default=1.0,
                        help="seconds of queued prefill beyond which a host is passed over")
    parser.add_argument("--cold", type=uses, default=[0],
                        help="none, or uses on one host after which a block is written")
    parser.add_argument("--cold-after", type=float, default=60, help="and so many seconds later")
    parser.add_argument("--peers", type=one_of("off", "on"), default=["off"])
    parser.add_argument("--replace", type=float, default=0,
                        help="seconds after which the next host is lost and replaced; 0: never")
    for tier in LOCAL_TIERS:
        parser.add_argument("--" + tier, type=size_text, help="of one host; defaults by the model")
    parser.add_argument("--object-mib", type=int, default=4, help="of the cold tier's objects")
    parser.add_argument("--max-tokens", type=int, default=131072)
    parser.add_argument("--warm-up", type=float, default=900, help="seconds that are not counted")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.hosts < 1 or options.cells < 1 or options.hosts % options.cells or options.rate <= 0:
        parser.error("hosts must be a multiple of cells, both and the rate positive")
    return options


def settings(options):
    sizes = tuple(size_bytes(getattr(options, tier) or default)
                  for tier, default in zip(LOCAL_TIERS, SIZES[options.model]))
    for router, cold, peers in itertools.product(options.router, options.cold, options.peers):
        yield Setting(MODELS[options.model], options.hosts // options.cells, sizes, router, cold,
                      options.cold_after, peers == "on", options.load_limit, options.replace,
                      options.warm_up, options.seed)


SETTING = ("router", "cold", "peers")
FOUND = (*SETTING, "pool %", "host %", "disk %", "peer %", "cold %", "computed %", "time saved %",
         "prefill busy %", "wait ms", "p99", "busiest host")
NETWORK = (*SETTING, "from peers GB/s", "cold read GB/s", "peak", "cold written GB/s", "objects/s",
           "written in 24 h TB", "break-even GB/s", "disk written GB/s a host")


def name_of(setting):
    return [setting.router, str(setting.cold_uses or "none"), "yes" if setting.peers else "no"]


def found(setting, result):
    """Where prompt tokens were found; busiest host: its prefill beside the mean."""
    tokens = sum(result.tokens.values()) or 1
    return (name_of(setting) + [f"{100 * count / tokens:.1f}" for count in result.tokens.values()]
            + [f"{100 * result.saved:.1f}", f"{100 * result.utilization:.0f}",
               f"{1000 * result.wait_s:,.0f}", f"{1000 * result.wait_p99_s:,.0f}",
               f"{result.busiest:.2f}"])


def network(setting, result, object_bytes):
    """Rates of all simulated hosts together, but for the disk's."""
    cold_bytes = result.cold_read + result.cold_write
    return (name_of(setting)
            + [f"{rate / 1e9:.2f}" for rate in (result.peer, result.cold_read,
                                                result.cold_read_peak, result.cold_write)]
            + [f"{cold_bytes / object_bytes:,.0f}", f"{result.cold_write * 86400 / 1e12:,.0f}",
               f"{result.break_even / 1e9:.1f}", f"{result.disk_write / setting.hosts / 1e9:.2f}"])


def print_table(header, rows):
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for cells in rows:
        print("| " + " | ".join(cells) + " |")


def print_break_even():
    """Of a prefix that is loaded whole: how long it takes to compute, its bytes, and the bandwidth
    of one load that takes as long; and of the block at its end."""
    print_table(("model", "tokens", "computed in ms", "GB", "break-even GB/s", "of the last 512"),
                ((model.name, f"{tokens:,}", f"{1000 * model.prefill_s(0, tokens):,.0f}",
                  f"{tokens * model.token_bytes / 1e9:.2f}",
                  f"{tokens * model.token_bytes / model.prefill_s(0, tokens) / 1e9:.1f}",
                  f"{model.block_bytes / model.prefill_s(tokens - 512, tokens) / 1e9:.1f}")
                 for model in MODELS.values() for tokens in PREFIX_TOKENS))


def main(arguments=None):
    options = parse_arguments(arguments)
    if options.trace == "break-even":
        print_break_even()
        return 0
    try:
        sessions = read_trace(options.trace, options.max_tokens)
    except (OSError, ValueError, KeyError) as error:
        print(f"tools/fleet: {options.trace}: {error}", file=sys.stderr)
        return 1
    traffic = Traffic(sessions, options.hosts, options.rate, options.cells, options.front,
                      options.seed)
    requests = traffic.requests()
    print(f"{options.hosts // options.cells} of {options.hosts} hosts, {traffic.copies} copies of "
          f"the trace, {len(requests)} requests in {traffic.duration_s:.0f} s\n")
    results = [(setting, Fleet(setting).run(requests)) for setting in settings(options)]
    print_table(FOUND, (found(*pair) for pair in results))
    print()
    print_table(NETWORK, (network(*pair, options.object_mib << 20) for pair in results))
    return 0


if __name__ == "__main__":
    gc.disable()  # millions of small objects and no cycles: it would take a third of the time
    sys.exit(main())
