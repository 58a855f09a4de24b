# SPDX-License-Identifier: Apache-2.0
"""Hosts with tiers, a router before them, and what they share: which blocks are found where.

Every block has the same size, so the tiers of a host are one list by last use, cut into pool, host
memory and disk. Of a prefix the later blocks count as used earlier: tails go before heads.
"""

import random
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass

from traces import BLOCK_TOKENS

LOCAL_TIERS = ("pool", "host", "disk")
BIN_S = 10  # peaks are the highest mean of so long


@dataclass(frozen=True)
class Model:
    """token_bytes: KV of a token on all ranks. To compute the token at position p takes
    token_s + position_s * p."""

    name: str
    token_bytes: int
    token_s: float
    position_s: float

    def prefill_s(self, first, end):
        """To compute the tokens from `first` to `end` when those before are there."""
        return (end - first) * self.token_s + (end**2 - first**2) / 2 * self.position_s

    @property
    def block_bytes(self):
        return BLOCK_TOKENS * self.token_bytes


@dataclass(frozen=True)
class Setting:
    """router: "random", "round_robin" or "prefix". load_limit_s: a host with more prefill work queued
    is passed over by "prefix". replace_s: every so often the next host is lost with all its
    tiers, and a new one takes its place; 0: never. cold_uses: uses on one host after which a block
    is written to the cold tier, cold_after_s later; 0: there is none. peers: blocks in another
    host's memory are fetched from there. warm_up_s: what comes before is not counted."""

    model: Model
    hosts: int
    tier_bytes: tuple  # of LOCAL_TIERS
    router: str = "prefix"
    cold_uses: int = 0
    cold_after_s: float = 0
    peers: bool = False
    load_limit_s: float = 1
    replace_s: float = 0
    warm_up_s: float = 0
    seed: int = 1


class Host:
    def __init__(self, capacities):
        self.tiers = tuple(OrderedDict() for _ in capacities)  # block: its uses here
        self._capacities = capacities
        self.busy_until_s = 0.0

    def find(self, blocks):
        """The tiers' numbers of the leading blocks that are here."""
        pool, host, disk = self.tiers
        found = []
        for block in blocks:
            if block in pool:
                found.append(0)
            elif block in host:
                found.append(1)
            elif block in disk:
                found.append(2)
            else:
                break
        return found

    def use(self, blocks, found):
        """Puts a prefix, of which `found` is what find() said, at the warm end. Returns the number
        of blocks that went to disk, and those that no tier holds now."""
        pool, host, disk = self.tiers
        for block in reversed(blocks[len(found):]):  # a block is not where those before it are not
            pool[block] = 1
        for block, tier in zip(reversed(blocks[:len(found)]), reversed(found)):
            pool[block] = self.tiers[tier].pop(block) + 1
        to_disk, gone = 0, []
        for tier, lower, capacity in zip(self.tiers, (host, disk, None), self._capacities):
            for _ in range(len(tier) - capacity):
                block, count = tier.popitem(last=False)
                if lower is None:
                    gone.append(block)
                else:
                    lower[block] = count
                    to_disk += lower is disk and self._capacities[2] > 0
        return to_disk, gone


#: tokens: prompt tokens by where they were found, or "computed". Rates are bytes a second of
#: all hosts together. saved: share of the prefill time. saved_s: of the cold tier alone.
Result = namedtuple("Result", "requests tokens saved wait_s wait_p99_s busiest utilization peer "
                              "cold_read cold_read_peak cold_write disk_write break_even")


class Fleet:
    def __init__(self, setting):
        self._setting = setting
        block_bytes = setting.model.block_bytes
        self._capacities = tuple(size // block_bytes for size in setting.tier_bytes)
        self.hosts = [Host(self._capacities) for _ in range(setting.hosts)]
        self._holders = {}  # block: numbers of the hosts that hold it, as events tell a router
        self._cold = {}  # block: when it can be read
        self._random = random.Random(setting.seed)
        self._turn, self._replaced = 0, 0
        self._counts, self._bins = Counter(), Counter()
        self._waits, self._host_s = [], Counter()

    def run(self, requests):
        """Serves the requests, which are in order of time."""
        end_s = 0
        for request in requests:
            while 0 < self._setting.replace_s * (self._replaced + 1) <= request.time_s:
                self.replace(self._replaced % len(self.hosts))
                self._replaced += 1
            self._serve(request, request.time_s >= self._setting.warm_up_s)
            end_s = request.time_s
        return self._result(max(end_s - self._setting.warm_up_s, 1e-9))

    def replace(self, number):
        """A new host in the place of one."""
        for tier in self.hosts[number].tiers:
            self._forget(number, tier)
        self.hosts[number] = Host(self._capacities)

    def route(self, request):
        """The number of the host that is to serve a request."""
        if self._setting.router == "random":
            return self._random.randrange(len(self.hosts))
        if self._setting.router == "round_robin":
            self._turn += 1
            return (self._turn - 1) % len(self.hosts)
        limit_s = request.time_s + self._setting.load_limit_s
        free = [n for n, host in enumerate(self.hosts) if host.busy_until_s <= limit_s]
        chosen = set(free)
        _, holders = self._deepest(
            request.blocks, 0, lambda block: self._holders.get(block, frozenset()) & chosen)
        return self._least_busy(holders or free or range(len(self.hosts)))

    def _least_busy(self, numbers):
        """Of equally busy hosts any, by chance: the first would attract all."""
        least_s = min(self.hosts[n].busy_until_s for n in numbers)
        return self._random.choice(sorted(n for n in numbers
                                          if self.hosts[n].busy_until_s <= least_s))

    @staticmethod
    def _deepest(blocks, first, holders_of):
        """How many leading blocks some host holds, by bisection from `first` on (a host with a
        block has those before it), and which hosts."""
        low, high, holders = first, len(blocks), ()
        while low < high:
            middle = (low + high + 1) // 2
            found = holders_of(blocks[middle - 1])
            if found:
                low, holders = middle, found
            else:
                high = middle - 1
        return low, holders

    def _serve(self, request, counted):
        setting, model, blocks = self._setting, self._setting.model, request.blocks
        number = self.route(request)
        host = self.hosts[number]
        local = host.find(blocks)
        known = len(local)
        found = {name: local.count(tier) for tier, name in enumerate(LOCAL_TIERS)}
        found["peer"] = 0
        if setting.peers:
            reached, _ = self._deepest(blocks, known, self._in_memory)
            found["peer"] = reached - known
            known = reached
        before_cold = known
        while known < len(blocks) and self._cold.get(blocks[known], 1e18) <= request.time_s:
            known += 1
        found["cold"] = known - before_cold
        first = min(known * BLOCK_TOKENS, request.tokens)
        compute_s = model.prefill_s(first, request.tokens)
        wait_s = max(0.0, host.busy_until_s - request.time_s)
        host.busy_until_s = request.time_s + wait_s + compute_s
        written, to_disk = self._store(number, request, local)
        if not counted:
            return
        self._count_tokens(request, found)
        self._waits.append(wait_s)
        self._host_s[number] += compute_s
        cold_first = min(before_cold * BLOCK_TOKENS, request.tokens)
        self._counts.update({
            "compute_s": compute_s, "all_s": model.prefill_s(0, request.tokens),
            "cold_s": model.prefill_s(cold_first, first), "peer": found["peer"],
            "cold_read": found["cold"], "cold_write": written, "disk_write": to_disk})
        self._bins[request.time_s // BIN_S] += found["cold"]

    def _in_memory(self, block):
        return [n for n in self._holders.get(block, ())
                if block in self.hosts[n].tiers[0] or block in self.hosts[n].tiers[1]]

    def _store(self, number, request, local):
        """Returns the blocks written to the cold tier and to disk."""
        blocks, host = request.blocks, self.hosts[number]
        to_disk, gone = host.use(blocks, local)
        for block in blocks[len(local):]:
            holders = self._holders.get(block)
            if holders is None:
                self._holders[block] = {number}
            else:
                holders.add(number)
        self._forget(number, gone)
        if not self._setting.cold_uses:
            return 0, to_disk
        pool = host.tiers[0]  # of a longer prompt, what it holds
        due = [block for block in blocks
               if pool.get(block, 0) >= self._setting.cold_uses and block not in self._cold]
        for block in due:
            self._cold[block] = request.time_s + self._setting.cold_after_s
        return len(due), to_disk

    def _forget(self, number, blocks):
        for block in blocks:
            holders = self._holders[block]
            holders.discard(number)
            if not holders:
                del self._holders[block]

    def _count_tokens(self, request, found):
        left = request.tokens
        for source in (*LOCAL_TIERS, "peer", "cold"):
            tokens = min(left, found[source] * BLOCK_TOKENS)
            self._counts["tokens " + source] += tokens
            left -= tokens
        self._counts["tokens computed"] += left

    def _result(self, counted_s):
        counts, size = self._counts, self._setting.model.block_bytes
        rate = {name: counts[name] * size / counted_s
                for name in ("peer", "cold_read", "cold_write", "disk_write")}
        waits = sorted(self._waits) or [0.0]
        total = sum(self._host_s.values())
        return Result(
            requests=len(self._waits),
            tokens={name: counts["tokens " + name]
                    for name in (*LOCAL_TIERS, "peer", "cold", "computed")},
            saved=1 - counts["compute_s"] / (counts["all_s"] or 1),
            wait_s=sum(waits) / len(waits), wait_p99_s=waits[int(0.99 * (len(waits) - 1))],
            busiest=max(self._host_s.values(), default=0) * len(self.hosts) / (total or 1),
            utilization=total / counted_s / len(self.hosts),
            cold_read_peak=max(self._bins.values(), default=0) * size / BIN_S,
            break_even=counts["cold_read"] * size / counts["cold_s"] if counts["cold_s"] else 0,
            **rate)
