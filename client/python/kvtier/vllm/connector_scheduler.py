# SPDX-License-Identifier: Apache-2.0
"""The connector in vLLM's scheduler: which blocks to load and to store, decided without waiting."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..types import HitRule
from .adapters import AdapterDigests
from .cache_groups import CacheGroup, prefix_unit
from .canary import CanarySampler
from .disk_prefetch import DiskPrefetch
from .disk_turns import DiskTurns
from .encoder_outputs import EncoderOutputs
from .hit_prices import HitPrices
from .kept_cache import KeptCacheScheduler
from .known_request import KnownRequest, reads_nothing
from .lookups import Lookups
from .prefix_planner import PrefixPlanner
from .step_plan import BlockList, StepPlan, Tensors
from .store_planner import StorePlanner
from .stores import Stores
from .token_ids import TokenTeller
from .wishes import WishTeller


class SchedulerSide:
    """Belongs to the scheduler's thread. lookups: the daemon's answers; workers: how many there
    are, each with its part of every block. always_load: also blocks that take longer to load than
    to compute. kept: None if the KV cache is not kept. tokens: None if the daemon is told no token
    ids. prefetch: None if blocks on disk stay there until their requests begin. adapters: tells their
    requests apart. wishes: None if the daemon is told none. canary: None if no hit is cut. outputs: of
    encoders."""

    def __init__(
        self,
        lookups: Lookups,
        groups: Sequence[CacheGroup],
        workers: int = 1,
        always_load: bool = False,
        kept: KeptCacheScheduler | None = None,
        clock: Callable[[], float] = time.monotonic,
        tokens: TokenTeller | None = None,
        prefetch: DiskPrefetch | None = None,
        adapters: AdapterDigests | None = None,
        wishes: WishTeller | None = None,
        canary: CanarySampler | None = None,
        outputs: EncoderOutputs | None = None,
    ) -> None:
        self._canary = canary
        self.adapters = adapters or AdapterDigests()
        self._outputs = outputs or EncoderOutputs()
        self._lookups = lookups
        self._tokens = tokens
        self._groups = groups
        self.kept = kept
        self.prices = HitPrices(clock)
        self._turns = DiskTurns(self.prices.disk_s, clock)
        self._prefetch = prefetch
        self._manager: Any = None
        self._has_old_blocks = False  # of other weights, in vLLM's own cache
        self._requests: dict[str, KnownRequest] = {}
        self._prefixes = PrefixPlanner(
            lookups, groups, always_load, self.prices, self._turns, self._requests, self._known, clock
        )
        self._lacks_blocks = False  # vLLM, for the request that it asked about last
        self._plan = StepPlan()
        self.storing = StorePlanner(groups, Stores(workers, clock), tokens, wishes)

    @property
    def epoch(self) -> int:
        """How often the weights have become others."""
        return self._plan.epoch

    def bind(self, manager: Any) -> None:
        """Gets vLLM's KVCacheManager, before the first step."""
        self._manager = manager
        self._prefixes.bind(manager)
        if self.kept is not None and manager.enable_caching:
            self.kept.bind(manager.block_pool)
        else:
            self.kept = None  # vLLM may have turned caching off since the workers started
        self.storing.bind(manager, self.kept)

    def came(self, request: Any) -> None:
        """vLLM has a new request, and will ask about it when it could begin."""
        self._prefixes.arrivals.came(request)

    def matched_tokens(self, request: Any, local_tokens: int) -> int | None:
        """How many tokens after the first `local_tokens` are to be loaded; None: ask again."""
        tokens = self._matched_tokens(request, local_tokens)
        if tokens and self._canary is not None:
            known = self._requests[request.request_id]
            tokens = self._prefixes.cut(known, local_tokens, tokens, self._canary)
        self._lacks_blocks = tokens is not None  # until it has them
        return tokens

    def _matched_tokens(self, request: Any, local_tokens: int) -> int | None:
        """How many of them the daemon has."""
        self._take_prefetched()
        self._prefixes.arrivals.looked_at(request.request_id)
        known = self._known(request)
        if not known.is_found:
            return None
        if known.waits_for is not None and known.local_tokens == local_tokens:
            return self._prefixes.at_turn(known, known.waits_for)
        known.local_tokens, known.waits_for, known.scheduled_from = local_tokens, None, None
        # It begins anew, but for what vLLM's own cache has of it: the blocks that it had may be other ones.
        self.storing.let_go(known)
        if self.adapters.own and self.holds_nothing():
            self.adapters.own_is_empty()
        known.is_own_other = self.adapters.own_is_other(known) or self._has_old_blocks
        known.is_mixed = self._outputs.are_old(known) or known.is_own_other and local_tokens > 0
        if local_tokens % prefix_unit(self._groups) != 0 or known.salt is None:
            return 0
        if reads_nothing(request) or self.adapters.have_changed(known, looks_at_files=True):
            return 0
        return self._prefixes.find(known, local_tokens)

    def allocated(self, request: Any, blocks: Sequence[Sequence[Any]], external_tokens: int) -> None:
        """The request has its blocks, by vLLM's groups; those that it needs of the external tokens
        are to be loaded."""
        self._lacks_blocks = False
        known = self._requests.get(request.request_id)
        if known is None:
            return
        if self._prefetch is not None:
            self._prefetch.drop(request.request_id)
        first = known.local_tokens
        tokens = max(first + external_tokens, known.scheduled_from or 0)  # 0 once a load has ended
        is_new, known.scheduled_from = known.scheduled_from is None, tokens
        # A load that vLLM waited for, another connector's, too, is in the request's own count.
        known.begins_at = max(tokens, request.num_computed_tokens)
        if is_new:
            self._prefixes.scheduled(known)
        if external_tokens == 0:
            self._turns.leave(request.request_id)
            return
        loads = self._plan.loads[request.request_id] = []
        for index, group in enumerate(self._groups):
            begin = max(first // group.block_tokens, group.first_needed(tokens))
            end = tokens // group.block_tokens
            names = known.hashes(group, begin, end)
            targets = list(blocks[group.number][begin:end])
            if self._tokens is not None:
                # Blocks that memory alone brought over the daemon's restart have lost theirs.
                depths = range(begin, end)
                self._tokens.tell(index, group.block_tokens, request, depths, names)
            if any(block.is_null for block in targets):
                wanted = [not block.is_null for block in targets]
                names = list(itertools.compress(names, wanted))
                targets = list(itertools.compress(targets, wanted))
            if targets:
                numbers = [block.block_id for block in targets]
                load = BlockList(request.request_id, index, numbers, names)
                load.adapter = None if known.is_in_place else known.adapter
                if self.kept is not None and not known.salt:
                    self.kept.loading(request.request_id, index, targets, names)
                on_disk = self._lookups.are_on_disk(known.keys[index][begin:end])
                load.disk_tokens = sum(on_disk) * group.block_tokens
                loads.append(load)
        disk_tokens = max((load.disk_tokens for load in loads), default=0)
        if disk_tokens:
            self._turns.begin(request.request_id, disk_tokens)
        else:
            self._turns.leave(request.request_id)

    def plan_step(self, output: Any) -> StepPlan:
        """The loads of this step, and stores of blocks that the steps before it have computed."""
        self._turns.step()
        step_tokens = sum(output.num_scheduled_tokens.values())
        self.storing.plan_step(self._plan, step_tokens, self._lacks_blocks)
        self._lacks_blocks = False
        for name, tokens in output.num_scheduled_tokens.items():
            scheduled = self._requests.get(name)
            if scheduled is not None:
                self.storing.pin(scheduled, tokens)
        if self._canary is not None:
            self._canary.computed(step_tokens)
        new = self._prefixes.plan_step()
        if self._prefetch is not None:
            self._prefetch_new(new, self._prefetch)
        plan, self._plan = self._plan, StepPlan(self._plan.epoch)
        plan.questions = self.adapters.take_questions()
        if self.kept is not None:
            plan.kept = self.kept.take_changes()
        return plan

    def finished(self, request: Any) -> None:
        """The request has ended; vLLM frees its blocks, but for those that are pinned."""
        self._prefixes.arrivals.ended(request.request_id)
        self._lookups.forget(request.request_id)
        self._turns.leave(request.request_id)
        if self._prefetch is not None:
            self._prefetch.drop(request.request_id)
        known = self._requests.pop(request.request_id, None)
        if known is not None:
            self.storing.finished(self._plan, known)

    def failed(self, keys: Collection[bytes]) -> None:
        """These could not be loaded: the requests that wanted them compute them, and must not hear
        again that the daemon has them."""
        self._lookups.refuse(keys)
        if self.kept is not None:
            self.kept.failed(keys)

    def loaded(self, requests: Collection[str]) -> None:
        """The loads of these have ended, whether all of their blocks came or not."""
        self._turns.ended(requests)

    def stored(self, workers: Mapping[int, int]) -> None:
        """By the numbers of stores, how many workers have ended them since the last call."""
        self.storing.stored(workers)

    def hear_of_adapters(self, loaded: Mapping[int, Tensors], answers: Mapping[int, bool]) -> None:
        """As LoadedAdapters.take_news."""
        self.adapters.hear(loaded, answers)
        if loaded:
            for known in [*self._requests.values(), *self.storing.requests()]:
                if self.adapters.have_changed(known):
                    self.storing.let_go(known)

    def turn(self, is_empty: bool = True) -> None:
        """The engine has other weights: earlier answers and blocks that are not being stored yet are not
        used any more. Between two steps. is_empty: whether vLLM's own cache is."""
        self.note_own_cache(is_empty)
        self._lookups.turn()
        if self._prefetch is not None:
            self._prefetch.drop_all()
        if self.kept is not None:
            self.kept.reset()
        for known in [*self._requests.values(), *self.storing.requests()]:
            known.waits_for = None
            known.is_mixed = known.scheduled_from is not None
            self.storing.let_go(known)
        self.storing.turn(self._plan)
        self._plan = StepPlan(self._plan.epoch + 1)

    def note_own_cache(self, is_empty: bool) -> None:
        """vLLM was told to empty its own cache. One that is not empty goes on with blocks of the weights
        before, and nothing that is computed on top of those may be stored."""
        self._has_old_blocks = not is_empty
        self._outputs.turn()

    def holds_nothing(self) -> bool:
        """Whether vLLM's own cache is empty, and nothing uses its blocks, one of which stands for none
        and is never free."""
        pool = self._manager.block_pool
        is_unused: bool = pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        return is_unused and len(pool.cached_block_hash_to_block) == 0

    def has_work(self) -> bool:
        """Whether the engine must go on stepping although it has no request."""
        kept = self.kept is not None and self.kept.has_changes()
        return bool(self._plan) or kept or self.storing.has_work()

    def frees_blocks_soon(self) -> bool:
        """Whether blocks are pinned that will be free in a moment."""
        return self.storing.frees_blocks_soon()

    def _known(self, request: Any) -> KnownRequest:
        known = self._requests.get(request.request_id)
        if known is None:
            known = self._requests[request.request_id] = KnownRequest(request)
            known.is_found = getattr(request, "lora_request", None) is None
            if self.storing.wishes is not None:
                known.wishes = self.storing.wishes.of(request)
        if not known.is_found:
            self.adapters.find(known)
        for index, group in enumerate(self._groups):
            known.add_keys(index, group)
        return known

    def _prefetch_new(self, new: Sequence[Any], prefetch: DiskPrefetch) -> None:
        """Requests that a step was planned without: they wait, if only for the next one. Groups
        without full attention need few blocks, which depend on where the prefix ends."""
        for request in new:
            if request.is_finished() or reads_nothing(request):
                continue
            known = self._known(request)
            if known.scheduled_from is not None or known.salt is None:
                continue
            groups = [(i, one) for i, one in enumerate(self._groups) if one.rule is HitRule.ALL]
            prefetch.want(request.request_id, [(i, self._prefixes.lacking(one, known, i)) for i, one in groups])

    def _take_prefetched(self) -> None:
        """Requests that wait for a turn to load these from disk are planned anew."""
        if self._prefetch is None:
            return
        for name, keys in self._prefetch.take_arrived():
            self._lookups.came_to_memory(keys)
            known = self._requests.get(name)
            if known is not None:
                known.waits_for = None
