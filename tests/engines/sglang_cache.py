# SPDX-License-Identifier: Apache-2.0
"""SGLang's radix cache with an external linker, as its scheduler makes and uses it, on the CPU."""

import array
import itertools
import threading
import types

import sglang_modules  # noqa: F401 - imported because it makes `import sglang` find the wheel's
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import (
    HybridLinearKVPool,
    MHATokenToKVPool,
    MLATokenToKVPool,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.linker_factory import create_unified_cache_linker
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from kvtier.sglang import KvtierLinker

PAGE_TOKENS, PAGES, LAYERS, HEADS, HEAD_DIM, STATES = 16, 64, 3, 2, 8, 20
requests = itertools.count()


def mha_pool(dtype=torch.bfloat16, v_head_dim=HEAD_DIM, page_tokens=PAGE_TOKENS, layers=LAYERS):
    return MHATokenToKVPool(
        size=PAGES * page_tokens,
        page_size=page_tokens,
        dtype=dtype,
        head_num=HEADS,
        head_dim=HEAD_DIM,
        v_head_dim=v_head_dim,
        layer_num=layers,
        device="cpu",
        enable_memory_saver=False,
    )


def mla_pool(layers=LAYERS):
    return MLATokenToKVPool(
        size=PAGES * PAGE_TOKENS,
        page_size=PAGE_TOKENS,
        dtype=torch.bfloat16,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        layer_num=layers,
        device="cpu",
        enable_memory_saver=False,
    )


class Requests:
    """In place of SGLang's pool of requests, for models without states."""


class Request:
    """In place of SGLang's: what its radix cache and linker look at."""

    def __init__(self):
        self.rid = f"request {next(requests)}"
        self.kv = None
        self.swa_branching_seqlen = None
        self.last_node = None
        self.session = None
        self.slots = None  # where its prefix is loaded to


class Group:
    """In place of a process group: one rank of so many, which are threads here."""

    def __init__(self, rank, size, barrier=None, masks=None):
        self.rank, self.size, self.barrier, self.masks = rank, size, barrier, masks

    @classmethod
    def of_threads(cls, size):
        barrier, masks = threading.Barrier(size, timeout=60), [None] * size
        return [cls(rank, size, barrier, masks) for rank in range(size)]

    def all_reduce(self, tensor):
        """The smallest of all ranks, as SGLang asks for here."""
        self.masks[self.rank] = tensor.clone()
        self.barrier.wait()
        tensor.copy_(torch.stack(self.masks).amin(0))
        self.barrier.wait()


def for_groups(name, call):
    """Has a function of torch.distributed take such groups, too."""
    original = getattr(torch.distributed, name)

    def either(*arguments, group=None, **more):
        if isinstance(group, Group):
            return call(group, *arguments)
        return original(*arguments, group=group, **more)

    setattr(torch.distributed, name, either)


for_groups("get_rank", lambda group: group.rank)
for_groups("get_world_size", lambda group: group.size)
for_groups("all_reduce", lambda group, tensor: group.all_reduce(tensor))


class Engine:
    """The parts of one rank of SGLang: a pool, its allocator, its radix cache and the linker."""

    def __init__(self, extra, pool=None, model="some/model", group=None):
        self.pool = pool or mha_pool()
        page_tokens = self.pool.page_size
        self.allocator = PagedTokenToKVPoolAllocator(
            PAGES * page_tokens,
            page_tokens,
            dtype=self.pool.dtype,
            device="cpu",
            kvcache=self.pool,
            need_sort=False,
        )
        self.params = CacheInitParams(
            disable=False,
            req_to_token_pool=Requests(),
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_tokens,
            attn_tp_cache_group=group,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="python",
        )
        self.cache = UnifiedRadixCache(self.params)
        arguments = types.SimpleNamespace(model_path=model, dtype="bfloat16")
        config = {
            "linker": "KvtierLinker",
            "linker_module_path": "kvtier.sglang",
            "linker_extra_config": {"retry_max_ms": 50, "identity": "tests", **extra},
        }
        self.linker = create_unified_cache_linker(
            arguments,
            self.params,
            backend="dynamic",
            config=config,
            components=set(self.cache.components),
            forward_stream="the forward's stream",
        )
        self.cache.init_cache_linker(self.linker)
        self.pool.register_layer_transfer_counter(self.linker.layer_done_counter)

    def compute(self, prompt, seed):
        """Computes a prompt's KV and inserts it into the radix cache, which has it stored. Returns
        the KV, layer by layer."""
        slots = self.allocator.alloc(len(prompt))
        generator = torch.Generator().manual_seed(seed)
        for buffer in self.buffers():
            shape = (len(prompt), *buffer.shape[1:])
            buffer[slots] = torch.randn(shape, generator=generator).to(buffer.dtype)
        self.insert(prompt, slots)
        return self.kv_of(slots)

    def insert(self, prompt, slots):
        self.cache.insert(InsertParams(key=radix_key(prompt), value=slots))

    def forget(self):
        """Evicts all of the radix cache, and overwrites the pool."""
        self.cache.evict(EvictParams(num_tokens=PAGES * self.pool.page_size))
        for buffer in self.buffers():
            buffer.zero_()

    def match(self, prompt, request=None):
        """A request with this prompt, and how many tokens of it the linker offers to load."""
        request = request or Request()
        key = radix_key(prompt)
        result = self.cache.match_prefix(MatchPrefixParams(key=key, req=request))
        request.last_node = result.last_device_node
        request.result = result
        return request, result.host_hit_length

    def admit(self, request):
        """Queues the load of the offered tokens; returns their number."""
        result = request.result
        count, _ = self.cache.init_load_back(
            InitLoadBackParams(result.best_match_node, result.host_hit_length, req=request)
        )
        request.slots = self.cache.linker.private_load_indices.get(request.rid)
        return count

    def start_loading(self):
        """Starts the queued loads, for the forward that comes next."""
        index = self.cache.ready_to_load_host_cache()
        self.linker.layer_done_counter.set_consumer(index)
        return index

    def forward(self, slots):
        """Reads the KV as a model does: layer by layer, each as soon as it is there."""
        layers = []
        for layer in range(self.pool.layer_num):
            layers += [buffer[slots].clone() for buffer in self.pool.get_kv_buffer(layer)]
        return layers

    def kv_of(self, slots):
        """As `forward`, without waiting."""
        layers = zip(self.pool.k_buffer, self.pool.v_buffer)
        return [buffer[slots].clone() for layer in layers for buffer in layer]

    def buffers(self):
        if isinstance(self.pool, MLATokenToKVPool):
            return self.pool.kv_buffer
        return [*self.pool.k_buffer, *self.pool.v_buffer]

    def failed(self, request):
        """Whether SGLang aborts the request after its forward."""
        return bool(self.cache.finish_external_linker_loads([request]))

    def close(self):
        self.linker.close()


def radix_key(prompt):
    return RadixKey(array.array("q", prompt))


def window_pool():
    """The pool of a model in which every second layer has a sliding window."""
    return SWAKVPool(
        size=PAGES * PAGE_TOKENS,
        size_swa=PAGES * PAGE_TOKENS,
        page_size=PAGE_TOKENS,
        dtype=torch.bfloat16,
        head_num=HEADS,
        head_dim=HEAD_DIM,
        swa_attention_layer_ids=[1, 3],
        full_attention_layer_ids=[0, 2, 4],
        device="cpu",
    )


def linker_parameters(pool, req_to_token_pool=None):
    """The fields of SGLang's CacheInitParams that a linker needs."""
    return types.SimpleNamespace(
        page_size=PAGE_TOKENS,
        token_to_kv_pool_allocator=types.SimpleNamespace(get_kvcache=lambda: pool),
        req_to_token_pool=req_to_token_pool,
        mtp_draft_device_pools=(),
        sidecar_draft_device_pools=(),
        attn_tp_cache_group=None,
        tp_cache_group=None,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
    )


def linker_alone(pool, components, socket, req_to_token_pool=None):
    """A linker without a radix cache."""
    return KvtierLinker(
        types.SimpleNamespace(model_path="some/model"),
        linker_parameters(pool, req_to_token_pool),
        components=components,
        extra_config={"socket": socket, "retry_max_ms": 50},
    )


def state_pools():
    """The pools of a model with latent attention in its layers 1 and 3, and states in 0 and 2: its
    KV cache, and the pool of requests, which has the states."""
    kv_cache = HybridLinearKVPool.__new__(HybridLinearKVPool)
    kv_cache.full_kv_pool = mla_pool(layers=2)
    kv_cache.full_attention_layer_id_mapping = {1: 0, 3: 1}
    kv_cache.start_layer = 0
    states = types.SimpleNamespace(
        temporal=torch.zeros(2, STATES, 4, 6), conv=[torch.zeros(2, STATES, 5)]
    )
    none = types.SimpleNamespace(enabled=False)
    req_to_token_pool = types.SimpleNamespace(
        mamba_ckpt_pool=None,
        short_conv_pool=none,
        ngram_pool=none,
        mamba_pool=types.SimpleNamespace(num_mamba_layers=2, mamba_cache=states),
        mamba_map={0: 0, 2: 1},
        counters=[],
    )
    req_to_token_pool.register_layer_transfer_counter = req_to_token_pool.counters.append
    return kv_cache, req_to_token_pool
