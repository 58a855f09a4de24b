# SPDX-License-Identifier: Apache-2.0
"""tools/fleet: the simulated hosts, router, cold tier and traffic."""

import collections
import contextlib
import importlib.util
import io
import json
import pathlib
import random
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/fleet"


def load(name, file=None):
    """The tool is a folder that python3 runs, not a package: its modules are loaded by path."""
    spec = importlib.util.spec_from_file_location(name, TOOL / (file or f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


traces = load("traces")
simulation = load("simulation")
tool = load("fleet_tool", "__main__.py")
BLOCK = traces.BLOCK_TOKENS
# A block is 512 bytes and takes a second.
MODEL = simulation.Model("test", token_bytes=1, token_s=1 / BLOCK, position_s=0)


def request(time_s, *blocks):
    return traces.Request(time_s, len(blocks) * BLOCK, list(blocks))


def serve(requests, hosts=1, tiers=(100, 0, 0), **setting):
    """tiers: their blocks."""
    sizes = tuple(count * BLOCK for count in tiers)
    fleet = simulation.Fleet(simulation.Setting(MODEL, hosts, sizes, **setting))
    return fleet.run(requests)


def found(result):
    """Blocks by where they were found, without those that were found nowhere."""
    return {name: tokens // BLOCK for name, tokens in result.tokens.items() if tokens}


def random_requests(count, seed=1):
    """Prompts that share prefixes: each block's key tells all before it."""
    numbers, keys = random.Random(seed), {}
    result = []
    for time_s in range(count):
        path, chain = (), []
        for _ in range(numbers.randrange(1, 9)):
            path += (numbers.randrange(3),)
            chain.append(keys.setdefault(path, len(keys)))
        result.append(request(time_s, *chain))
    return result


class HostTest(unittest.TestCase):
    def test_a_prompt_that_comes_again_is_found_in_the_pool(self):
        self.assertEqual(found(serve([request(0, 1, 2), request(9, 1, 2)])),
                         {"pool": 2, "computed": 2})

    def test_what_the_pool_cannot_hold_goes_down_tier_by_tier(self):
        requests = [request(0, 1), request(2, 2), request(4, 3), request(6, 1)]
        self.assertEqual(found(serve(requests, tiers=(1, 1, 1))), {"disk": 1, "computed": 3})
        self.assertEqual(found(serve(requests, tiers=(1, 2, 0))), {"host": 1, "computed": 3})
        self.assertEqual(found(serve(requests, tiers=(1, 1, 0))), {"computed": 4})

    def test_only_what_goes_to_disk_is_written_there(self):
        requests = [request(0, 1), request(2, 2), request(4, 3)]
        self.assertEqual(serve(requests, tiers=(1, 5, 5)).disk_write, 0)
        self.assertEqual(serve(requests, tiers=(1, 0, 0)).disk_write, 0)
        self.assertEqual(serve(requests, tiers=(1, 0, 5)).disk_write, 2 * BLOCK / 4)

    def test_tails_go_before_heads(self):
        requests = [request(0, 1, 2, 3), request(9, 9), request(18, 1, 2, 3)]
        self.assertEqual(found(serve(requests, tiers=(3, 0, 0))), {"pool": 2, "computed": 5})

    def test_hits_are_those_of_a_plain_list_by_last_use(self):
        requests, held, hits = random_requests(2000), [], 0
        for one in requests:
            leading = True
            for block in one.blocks:
                leading = leading and block in held
                hits += leading
            held = [block for block in held if block not in one.blocks] + one.blocks[::-1]
            held = held[-50:]
        result = found(serve(requests, tiers=(10, 15, 25)))
        self.assertEqual(result["pool"] + result["host"] + result["disk"], hits)
        self.assertTrue(all(result.values()))

    def test_a_prompt_waits_for_those_before_it(self):
        result = serve([request(0, 1, 2), request(1, 3)])
        self.assertEqual((result.wait_s, result.wait_p99_s), (0.5, 0.0))
        self.assertEqual(result.utilization, 3)

    def test_tokens_of_a_partial_block_are_computed(self):
        prompt = traces.Request(0, BLOCK + 7, [1])
        self.assertEqual(serve([prompt, prompt]).tokens,
                         {"pool": BLOCK, "host": 0, "disk": 0, "peer": 0, "cold": 0,
                          "computed": BLOCK + 14})


class RouterTest(unittest.TestCase):
    def test_round_robin_takes_all_hosts_in_turn(self):
        requests = [request(10 * n, 1) for n in range(4)]
        self.assertEqual(found(serve(requests, hosts=2, router="round_robin")),
                         {"pool": 2, "computed": 2})

    def test_a_prefix_goes_to_the_host_that_holds_most_of_it(self):
        requests = [request(0, 1, 2), request(0, 1, 3), request(20, 1, 3, 4), request(40, 1, 2, 5)]
        self.assertEqual(found(serve(requests, hosts=2, router="prefix", load_limit_s=1)),
                         {"pool": 4, "computed": 6})

    def test_a_busy_host_is_passed_over(self):
        requests = [request(0, 1, 2, 3), request(1, 1, 2, 3)]
        self.assertEqual(found(serve(requests, hosts=2, load_limit_s=1)), {"computed": 6})
        self.assertEqual(found(serve(requests, hosts=2, load_limit_s=2)),
                         {"pool": 3, "computed": 3})

    def test_the_view_of_the_router_is_what_the_hosts_hold(self):
        sizes = (3 * BLOCK, 4 * BLOCK, 5 * BLOCK)
        fleet = simulation.Fleet(simulation.Setting(MODEL, 3, sizes, router="random", replace_s=70))
        fleet.run(random_requests(2000))
        held = {}
        for number, host in enumerate(fleet.hosts):
            for tier in host.tiers:
                for block in tier:
                    held.setdefault(block, set()).add(number)
        self.assertEqual(fleet._holders, held)

    def test_a_host_that_is_replaced_has_lost_its_blocks(self):
        requests = [request(0, 1), request(9, 1), request(11, 1)]
        self.assertEqual(found(serve(requests, replace_s=10)), {"pool": 1, "computed": 2})


class SharedTest(unittest.TestCase):
    def test_hosts_share_through_the_cold_tier(self):
        requests = [request(0, 1, 2), request(50, 1, 2)]
        setting = dict(hosts=2, router="round_robin", cold_after_s=10)
        self.assertEqual(found(serve(requests, cold_uses=1, **setting)),
                         {"cold": 2, "computed": 2})
        self.assertEqual(found(serve(requests, **setting)), {"computed": 4})

    def test_a_block_can_be_read_only_once_it_was_written(self):
        requests = [request(0, 1), request(50, 1)]
        result = serve(requests, hosts=2, router="round_robin", cold_uses=1, cold_after_s=60)
        self.assertEqual(found(result), {"computed": 2})

    def test_uses_are_counted_by_each_host(self):
        alternating = [request(10 * n, 1) for n in range(6)]
        result = serve(alternating, hosts=2, router="round_robin", cold_uses=4)
        self.assertEqual((result.cold_write, found(result)), (0, {"pool": 4, "computed": 2}))
        result = serve(alternating, hosts=2, router="round_robin", cold_uses=3)
        self.assertEqual(result.cold_write, BLOCK / 50)

    def test_the_break_even_is_the_bytes_over_the_time_to_compute_them(self):
        requests = [request(0, 1, 2), request(50, 1, 2)]
        result = serve(requests, hosts=2, router="round_robin", cold_uses=1)
        self.assertEqual(result.break_even, BLOCK)
        self.assertEqual(result.cold_read, 2 * BLOCK / 50)
        self.assertEqual(result.saved, 0.5)

    def test_blocks_in_the_memory_of_a_peer_are_fetched_those_on_its_disk_are_not(self):
        requests = [request(0, 1, 2, 3), request(50, 1, 2, 3)]
        setting = dict(hosts=2, router="round_robin", peers=True)
        self.assertEqual(found(serve(requests, tiers=(1, 2, 0), **setting)),
                         {"peer": 3, "computed": 3})
        self.assertEqual(found(serve(requests, tiers=(1, 0, 2), **setting)),
                         {"peer": 1, "computed": 5})

    def test_the_warm_up_is_not_counted(self):
        result = serve([request(0, 1), request(9, 1)], warm_up_s=5)
        self.assertEqual((result.requests, found(result)), (1, {"pool": 1}))


class TrafficTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def mooncake(self, *records):
        path = self.path / "trace.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    def test_a_mooncake_file_is_read_without_its_partial_blocks(self):
        path = self.mooncake({"timestamp": 1500, "input_length": 600, "hash_ids": [7, 8]},
                             {"timestamp": 0, "input_length": 1024, "hash_ids": [7, 9]})
        [session] = traces.read_trace(path)
        self.assertEqual([one.time_s for one in session], [0, 1.5])
        self.assertEqual([len(one.blocks) for one in session], [2, 1])
        self.assertEqual(session[0].blocks[0], session[1].blocks[0])

    def test_equal_ids_behind_different_prefixes_are_different_blocks(self):
        path = self.mooncake({"timestamp": 0, "input_length": 1024, "hash_ids": [1, 5]},
                             {"timestamp": 1, "input_length": 1024, "hash_ids": [2, 5]})
        [[first, second]] = traces.read_trace(path)
        self.assertNotEqual(first.blocks[1], second.blocks[1])

    def test_agentic_files_are_sessions_whose_small_blocks_are_joined(self):
        main = {"t": 5, "in": 1024, "hash_ids": list(range(16))}
        inner = {"t": 1, "in": 520, "hash_ids": list(range(8)) + [99]}
        for name in ("a.json", "b.json"):
            (self.path / name).write_text(json.dumps(
                {"block_size": 64, "requests": [{"t": 2, "requests": [inner]}, main]}))
        first, second = traces.read_trace(self.path)
        self.assertEqual([(one.time_s, len(one.blocks)) for one in first], [(3, 1), (5, 2)])
        self.assertEqual(first[0].blocks[0], first[1].blocks[0])
        self.assertFalse(set(first[1].blocks) & set(second[1].blocks))

    def test_prompts_that_a_model_would_refuse_are_left_out(self):
        path = self.mooncake({"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]})
        with self.assertRaises(ValueError):
            traces.read_trace(path, max_tokens=1000)

    def test_copies_make_up_the_rate_and_share_nothing(self):
        session = [request(n, 1, 2 + n) for n in range(100)]
        traffic = traces.Traffic([session], hosts=10, rate=0.5)
        requests = traffic.requests()
        self.assertEqual((traffic.copies, len(requests)), (5, 500))
        self.assertEqual(sorted(requests, key=lambda one: one.time_s), requests)
        self.assertLessEqual(requests[-1].time_s, traffic.duration_s)
        self.assertEqual(len({one.blocks[-1] for one in requests}), 500)
        # Of each copy, what came before the end of the time and what was moved from behind it.
        self.assertLessEqual(len({one.blocks[0] for one in requests}), 10)

    def test_cells_divide_the_requests_whole_sessions_where_wanted(self):
        session = [request(n, 1, 100 + n % 50) for n in range(1000)]
        for front, whole_sessions in (("session", True), ("random", False)):
            cell = traces.Traffic([session], 5, 0.2, cells=5, front=front).requests()
            self.assertLess(abs(len(cell) - 200), 100, front)
            sizes = collections.Counter(one.blocks[1] for one in cell)
            self.assertEqual(set(sizes.values()) == {20}, whole_sessions, front)


class ProgramTest(unittest.TestCase):
    def run_tool(self, *arguments):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                status = tool.main(arguments)
            except SystemExit as end:
                status = end.code
        return status, output.getvalue()

    def test_one_row_for_each_combination_in_both_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.jsonl"
            records = ({"timestamp": 1000 * n, "input_length": 1024, "hash_ids": [1, n % 7]}
                       for n in range(50))
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            status, text = self.run_tool(str(path), "--hosts", "2", "--router", "random,prefix",
                                         "--cold", "none,1", "--warm-up", "10", "--disk", "0GiB")
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("\n| random |"), 4)
        self.assertEqual(text.count("\n| prefix |"), 4)

    def test_what_cannot_be_is_refused_with_a_reason(self):
        for arguments, reason in ((("no-such-trace",), "No such file"),
                                  (("x", "--router", "best"), "must be one of"),
                                  (("x", "--cold", "0"), "must be none"),
                                  (("x", "--pool", "80"), "GiB or TiB"),
                                  (("x", "--hosts", "7", "--cells", "2"), "multiple")):
            status, text = self.run_tool(*arguments)
            self.assertNotEqual(status, 0)
            self.assertIn(reason, text)

    def test_longer_prefixes_break_even_at_less_bandwidth(self):
        status, text = self.run_tool("break-even")
        self.assertEqual(status, 0)
        rates = [float(line.split("|")[5]) for line in text.splitlines() if "llama-3.1-8b" in line]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertEqual(len(rates), 5)


if __name__ == "__main__":
    unittest.main()
