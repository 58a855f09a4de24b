# SPDX-License-Identifier: Apache-2.0
"""State that the connector keeps of one of vLLM's requests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .cache_groups import CacheGroup
from .rows import keys_of
from .step_plan import Run, Tensors
from .wishes import Wishes


def reads_nothing(request: Any) -> bool:
    """vLLM takes no answer for some, as prompts whose logprobs are asked for. Another connector brings
    all of a prompt that another engine has prefilled: one that answers before it, with less, would
    make this engine compute the rest."""
    transfer = getattr(request, "kv_transfer_params", None)
    is_prefilled = isinstance(transfer, dict) and transfer.get("do_remote_prefill")
    return bool(request.skip_reading_prefix_cache or is_prefilled)


@dataclass
class DiskPlan:
    """Two prefixes that a request may load: with blocks on disk, of so many tokens, and without.
    saved_s: how much sooner it is there with them, if they need not wait."""

    tokens: int
    tokens_in_memory: int
    disk_tokens: int
    saved_s: float


@dataclass
class KnownRequest:
    """request: vLLM's. keys: of its full blocks, by group. local_tokens: found in vLLM's own cache.
    waits_for: for its turn to load that. scheduled_from: the first token that is computed, once it
    is scheduled. begins_at: the first that the next step should compute; None once it has had one.
    pinned: the blocks that steps complete which were planned before. is_freed: has ended, and vLLM has
    freed its other blocks, which is when a step has been planned since. is_mixed: some of its blocks were
    computed with other weights, or loaded without a word, so that none of it may be stored.
    is_own_other: whether vLLM's own cache may have such blocks. cut_blocks: of a hit, to be computed
    anew; None: not drawn yet. is_canary: its hit was cut, so that its stores are compared. is_found:
    whether it is known by now which tensors its adapter has; they are None if that cannot be told.
    will_load: whether vLLM had none when a worker was asked; None: before it has answered."""

    request: Any
    keys: list[list[bytes]] = field(default_factory=list)
    local_tokens: int = 0
    waits_for: DiskPlan | None = None
    scheduled_from: int | None = None
    begins_at: int | None = None
    pinned: list[Run] = field(default_factory=list)
    has_ended: bool = False
    is_freed: bool = False
    is_mixed: bool = False
    is_own_other: bool = False
    cut_blocks: int | None = None
    is_canary: bool = False
    is_found: bool = True
    tensors: Tensors | None = None
    will_load: bool | None = None
    wishes: Wishes = Wishes()

    @property
    def is_in_place(self) -> bool:
        """Whether vLLM reads the adapter's files anew for the request."""
        adapter = getattr(self.request, "lora_request", None)
        return bool(getattr(adapter, "load_inplace", False))

    @property
    def adapter(self) -> tuple[int, Tensors] | None:
        return self.tensors and (self.request.lora_request.lora_int_id, self.tensors)

    @property
    def salt(self) -> bytes | None:
        """Tells the blocks of an adapter's requests apart from those of others; empty without one; None: it
        is not known which tensors that has."""
        if getattr(self.request, "lora_request", None) is None:
            return b""
        return self.tensors and self.tensors.digest

    def hashes(self, group: CacheGroup, first: int, last: int) -> list[bytes]:
        """The daemon's, of the blocks from position `first` up to before `last`."""
        hashes = group.hashes(self.request.block_hashes, first, last)
        salt = self.salt
        return [hashlib.sha256(one + salt).digest() for one in hashes] if salt else hashes

    def tokens_to_compute(self) -> int:
        """Counts tokens of a request that is scheduled."""
        if self.scheduled_from is None:
            return 0
        first = max(self.scheduled_from, self.request.num_computed_tokens)
        return max(0, self.request.num_tokens - first)

    def done(self, groups: Sequence[CacheGroup], run: Run) -> tuple[int, int]:
        """How many blocks of a run have been computed, and of how many the last token is known, too."""
        group = groups[run.index]
        computed = self.request.num_computed_tokens // group.block_tokens - run.first
        computed = max(0, min(computed, len(run.blocks)))
        hashed = len(self.request.block_hashes) // group.hashes_per_block - run.first
        if self.has_ended:
            computed = max(0, min(computed, hashed))  # the others' last tokens never come
        return computed, max(0, min(computed, hashed))

    def unused(self, groups: Sequence[CacheGroup], run: Run) -> int:
        """How many blocks of a run, from its first on, pins alone hold."""
        if self.is_freed:
            return len(run.blocks)
        return max(0, groups[run.index].first_needed(self.request.num_computed_tokens) - run.first)

    def may_store(self, groups: Sequence[CacheGroup]) -> bool:
        """Whether the next step stores pinned blocks, or lets go of some."""
        for run in self.pinned:
            computed, ready = self.done(groups, run)
            if ready > 0 or computed < len(run.blocks):
                return True
        return False

    def add_keys(self, index: int, group: CacheGroup) -> None:
        """The keys of blocks that became full since the last call."""
        if index == len(self.keys):
            self.keys.append([])
        keys, full = self.keys[index], len(self.request.block_hashes) // group.hashes_per_block
        # vLLM takes hashes back of a request whose input is continued.
        if len(keys) > full or (
            keys and keys[-1:] != keys_of(self.hashes(group, len(keys) - 1, len(keys)), index)
        ):
            keys.clear()
        if len(keys) < full:
            keys += keys_of(self.hashes(group, len(keys), full), index)
