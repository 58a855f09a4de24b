# SPDX-License-Identifier: Apache-2.0
"""Processes that do what a worker of an engine does, to be killed: vLLM's connector as it runs there,
around memory that outlives them, with a scheduler of some lines in vLLM's place.

    engine_worker.py SOCKET DEVICE PROMPTS_SEED FINDINGS
        takes "start SEED" and "kill PID", line by line, and answers each with a number

DEVICE: "host", or "cuda:0". FINDINGS: a file of Findings for each of the workers, which outlive them;
the worker of a seed is the one of that number. Needs torch.
"""

import collections
import hashlib
import mmap
import os
import queue
import random
import signal
import sys
import time

import numpy as np
import torch

import kvtier
from kvtier.vllm.connector_worker import WorkerSide
from kvtier.vllm.kept_allocation import open_memory, tensor_over
from kvtier.vllm.kept_cache import KeptCacheWorker, KeptChanges, Publication
from kvtier.vllm.link import LookupLink, attach_regions
from kvtier.vllm.step_plan import BlockList, StepPlan
from kvtier.vllm.transfers import Transfers

from blocks import BLOCK_TOKENS, bytes_of, conversations, random_prefix
from engine_findings import WORKERS, Findings, block_bytes
from world import die_with_parent

#: More than twice the longest prompt.
BLOCKS = 64
ROOT = hashlib.sha256(b"the hashes of a campaign").digest()
_ANSWER_TIMEOUT_S = 0.5
_LOAD_TIMEOUT_S = 60.0


class Engine:
    """One worker, and what schedules it. One thread, beside the link's."""

    def __init__(self, socket: str, device: str, worker: int, findings: Findings) -> None:
        self._findings = findings
        self._block_bytes = block_bytes(device)
        byte_count = BLOCKS * self._block_bytes
        name = hashlib.sha256(b"worker %d of a campaign" % worker).digest()
        gpu = None if device == "host" else int(device.removeprefix("cuda:"))
        self._memory = open_memory(socket, name, byte_count, BLOCKS, gpu)
        tensor = tensor_over(self._memory, byte_count, "cpu" if gpu is None else "cuda")
        self._rows = tensor.view(torch.uint8).view(BLOCKS, self._block_bytes)
        self._is_on_gpu = gpu is not None
        self._kept = KeptCacheWorker(self._memory)
        self._answers: queue.Queue = queue.Queue()
        self._link = LookupLink(lambda: self._attach(socket, gpu), self._answers.put)
        self._worker = WorkerSide(
            Transfers(self._link), [BLOCK_TOKENS], kvtier.Retention.EXTENDED, self._kept
        )
        #: Least recently used first.
        self._cached: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._free = list(range(BLOCKS))
        self._stores: dict[int, list[bytes]] = {}
        self._changes = KeptChanges()
        self._steps = 0
        self._take_over()

    def step(self, prompt: list[bytes]) -> None:
        """Answers a prompt as an engine does: finds, loads or computes each of its blocks."""
        self._steps += 1
        local = 0
        while local < len(prompt) and prompt[local] in self._cached:
            self._cached.move_to_end(prompt[local])
            self._check(prompt[local], self._cached[prompt[local]], "own blocks checked")
            local += 1
        rest = prompt[local:]
        found = self._look_up(rest)
        targets = self._take(len(rest), set(prompt))
        if targets is None:  # too many are being stored
            self._poll()
            return
        request = str(self._steps)
        plan = StepPlan(kept=self._take_changes())
        self._kept.apply(plan.kept, ROOT)
        if found:
            plan.loads[request] = [BlockList(request, 0, targets[:found], rest[:found])]
            self._findings.add("loads begun")
        self._compute(plan, prompt, local + found, targets[found:])
        self._worker.begin(plan)
        if found:
            self._await_load(request, targets[:found], rest[:found])
        self._poll()

    def _attach(self, socket: str, gpu: int | None) -> object:
        record = kvtier.ModelRecord(
            name="campaign of engines",
            groups=[kvtier.KvGroup(layers=1, layer_bytes=self._block_bytes, block_tokens=BLOCK_TOKENS)],
        )
        place = {"fd": self._memory.fd, "bytes": self._memory.byte_count, "blocks": BLOCKS}
        if gpu is not None:
            place.update(memory=kvtier.RegionMemory.VMM, device=gpu)
        return attach_regions(socket, [record], [place], self._kept.keep)

    def _take_over(self) -> None:
        """The blocks that the worker before has left, each of which must be what its hash names."""
        self._findings.add("starts")
        kept = self._memory.entries()
        for block, one in zip(kept.blocks.tolist(), kept.hashes):
            self._check(one, block, "kept blocks checked")
            self._cached[one] = block
            self._free.remove(block)
        self._findings.set("loads ended", self._findings.get("loads begun"))

    def _look_up(self, hashes: list[bytes]) -> int:
        """How many of them from the first on the daemon has; none without an answer in time."""
        while not self._answers.empty():
            self._answers.get()
        if not hashes:
            return 0
        self._link.ask([one + bytes(4) for one in hashes])
        try:
            _, presence = self._answers.get(timeout=_ANSWER_TIMEOUT_S)
        except queue.Empty:
            return 0
        return next((i for i, one in enumerate(presence or [0]) if not one), len(hashes))

    def _take(self, count: int, needed: set[bytes]) -> "list[int] | None":
        """Blocks to be written, which hold nothing from now on."""
        pinned = {one for hashes in self._stores.values() for one in hashes} | needed
        for one in [one for one in self._cached if one not in pinned]:
            if len(self._free) >= count:
                break
            block = self._cached.pop(one)
            self._changes.written.append(block)
            self._free.append(block)
        if len(self._free) < count:
            return None
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _take_changes(self) -> KeptChanges:
        """Without blocks that were loaded and are to be written already."""
        changes, self._changes = self._changes, KeptChanges()
        written = set(changes.written)
        changes.loaded = [
            Publication(0, [block for block, _ in pairs], [one for _, one in pairs])
            for pairs in (
                [pair for pair in zip(of.blocks, of.hashes) if pair[0] not in written]
                for of in changes.loaded
            )
        ]
        return changes

    def _compute(self, plan: StepPlan, prompt: list[bytes], first: int, blocks: list[int]) -> None:
        hashes = prompt[first:]
        if not hashes:
            return
        for block, one in zip(blocks, hashes):
            self._rows[block].copy_(torch.from_numpy(bytes_of(one, self._block_bytes)))
        if self._is_on_gpu:
            torch.cuda.synchronize()
        parents: list[bytes | None] = [prompt[first - 1] if first else None, *hashes[:-1]]
        depths = list(range(first, len(prompt)))
        plan.stores.append(
            BlockList("", 0, blocks, hashes, parents, depths, number=self._steps)
        )
        plan.kept.computed.append(Publication(0, blocks, hashes))
        self._stores[self._steps] = hashes
        self._cached.update(zip(hashes, blocks))

    def _await_load(self, request: str, blocks: list[int], hashes: list[bytes]) -> None:
        """A load that was cut off by the daemon's end fails when no byte of it can come any more."""
        loaded: set[str] = set()
        deadline = time.monotonic() + _LOAD_TIMEOUT_S
        while request not in loaded:
            self._poll()
            loaded, _ = self._worker.take_loaded()
            if time.monotonic() > deadline:
                raise RuntimeError("a load does not end")
        self._findings.add("loads ended")
        failed = self._worker.take_failed_blocks()
        self._worker.take_failed_keys()
        for block, one in zip(blocks, hashes):
            if block in failed:
                self._free.append(block)
                self._findings.add("blocks not loaded")
                continue
            self._check(one, block, "loaded blocks checked")
            self._cached[one] = block
        good = [(block, one) for block, one in zip(blocks, hashes) if block not in failed]
        self._changes.loaded.append(
            Publication(0, [block for block, _ in good], [one for _, one in good])
        )
        if good:
            self._findings.add("served")

    def _poll(self) -> None:
        self._worker.poll()
        for number in self._worker.take_stored():
            self._stores.pop(number)
            self._findings.add("stores ended")

    def _check(self, one: bytes, block: int, what: str) -> None:
        row = self._rows[block].cpu().numpy() if self._is_on_gpu else self._rows[block].numpy()
        differs = row != bytes_of(one, self._block_bytes)
        self._findings.add(what)
        if differs.any():
            self._findings.add("wrong blocks")
            print(
                f"engine_worker: wrong: {what}: {one.hex()[:16]} in block {block}: "
                f"{int(differs.sum())} bytes, the first at {int(np.argmax(differs))}",
                file=sys.stderr,
                flush=True,
            )


def run(socket: str, device: str, seed: int, prompts: list, findings: Findings) -> None:
    engine = Engine(socket, device, seed % WORKERS, findings)
    random_numbers = random.Random(seed)
    while True:
        engine.step(random_prefix(prompts, random_numbers))


def start(socket: str, device: str, seed: int, prompts: list, file: mmap.mmap) -> int:
    child = os.fork()
    if child == 0:
        try:
            die_with_parent()
            run(socket, device, seed, prompts, Findings(file, seed % WORKERS))
        except BaseException as error:
            print(f"engine_worker: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    return child


def main() -> None:
    socket, device, prompts_seed, path = sys.argv[1:]
    torch.set_num_threads(1)
    prompts = conversations(int(prompts_seed))
    with open(path, "r+b") as file:
        findings = mmap.mmap(file.fileno(), 0)
    for line in sys.stdin:
        verb, number = line.split()
        if verb == "start":
            print(start(socket, device, int(number), prompts, findings), flush=True)
        else:
            os.kill(int(number), signal.SIGKILL)  # it was not waited for yet
            status = os.waitpid(int(number), 0)[1]
            print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
