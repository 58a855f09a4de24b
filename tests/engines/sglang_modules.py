# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage classes, pools and radix cache, as in its wheel, without the rest of SGLang.

Its packages import everything that a server needs, kernels for GPUs included. The modules under
test come from the unpacked wheel that KVTIER_SGLANG_DIRECTORY names; every other module of SGLang
is a stand-in whose functions return zero, and whose classes are empty.
"""

import hashlib
import importlib
import importlib.machinery
import os
import pathlib
import sys
import types

ROOT = pathlib.Path(os.environ["KVTIER_SGLANG_DIRECTORY"])
PREFIX = "sglang.srt.mem_cache"
UNIFIED = f"{PREFIX}.unified_cache"
REAL = {
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.environ",
    "sglang.srt.session.streaming_session",
    "sglang.srt.utils.invariants",
    "sglang.srt.utils.rank_consensus_checker",
    "sglang.srt.utils.torch_memory_saver_adapter",
    f"{PREFIX}.allocator",
    f"{PREFIX}.allocator.base",
    f"{PREFIX}.allocator.paged",
    f"{PREFIX}.allocator.token",
    f"{PREFIX}.base_prefix_cache",
    f"{PREFIX}.base_swa_memory_pool",
    f"{PREFIX}.cache_init_params",
    f"{PREFIX}.events",
    f"{PREFIX}.evict_policy",
    f"{PREFIX}.hicache_storage",
    f"{PREFIX}.host_memory",
    f"{PREFIX}.hybrid_cache.hybrid_pool_assembler",
    f"{PREFIX}.hybrid_cache.linker_pool_assembler",
    f"{PREFIX}.memory_pool",
    f"{PREFIX}.multimodal_cache",
    f"{PREFIX}.pool_host.base",
    f"{PREFIX}.pool_host.common",
    f"{PREFIX}.pool_host.mha",
    f"{PREFIX}.radix_cache",
    f"{PREFIX}.storage.backend_factory",
    f"{PREFIX}.storage.mmap",
    f"{PREFIX}.storage.mmap.mmap_allocator",
    f"{PREFIX}.swa_memory_pool",
    f"{PREFIX}.unified_radix_cache",
    f"{PREFIX}.utils",
    f"{UNIFIED}.cache_action",
    f"{UNIFIED}.component_type",
    f"{UNIFIED}.components",
    f"{UNIFIED}.components.base",
    f"{UNIFIED}.components.full",
    f"{UNIFIED}.components.mamba",
    f"{UNIFIED}.components.swa",
    f"{UNIFIED}.linker_config",
    f"{UNIFIED}.linker_factory",
    f"{UNIFIED}.session_ref_tracker",
    f"{UNIFIED}.tree_core_registry",
    f"{UNIFIED}.unified_cache_linker",
    f"{UNIFIED}.unified_tree_core",
    f"{UNIFIED}.unified_tree_core_interface",
}
# Packages without what their __init__ imports.
BARE = {
    "sglang",
    "sglang.srt",
    PREFIX,
    UNIFIED,
    f"{PREFIX}.hybrid_cache",
    f"{PREFIX}.pool_host",
    f"{PREFIX}.storage",
}
# Not SGLang's, and not installed where there is no GPU.
MISSING = {"triton"}


class Nothing(int):
    """Zero, which has any attribute and can be called; so is all that comes of that."""

    def __call__(self, *arguments, **more):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Empty:
    def __init__(self, *arguments, **more):
        pass


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Empty,), {}) if name[0].isupper() else Nothing()
        setattr(self, name, made)
        return made


class Finder:
    """Finds modules for import; a loader for those that are not real, too."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"sglang", *MISSING} or name in REAL:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = (types.ModuleType if spec.name in BARE else StandIn)(spec.name)
        module.__path__ = [str(ROOT.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())


def chain_hashes(key, before, page_size):
    """In place of SGLang's, which a compiler makes: SHA-256 over what came before and a page."""
    hashes, digest = [], before or b""
    tokens = key.raw_token_ids()[: len(key)]
    for first in range(0, len(tokens), page_size):
        digest = hashlib.sha256(digest + tokens[first : first + page_size].tobytes()).digest()
        hashes.append(digest.hex())
    return hashes


class Event:
    """In place of a GPU's: says when it was recorded and waited for."""

    log: list = []

    def record(self, stream=None):
        self.log.append(("recorded", stream))

    def synchronize(self):
        self.log.append(("waited", None))


def module(name):
    return importlib.import_module(name)


# Before anything of SGLang takes them from there.
module(f"{PREFIX}.cpp_utils.native_hash").get_native_hash = chain_hashes
module("sglang.srt.utils").get_device_module = lambda: types.SimpleNamespace(Event=Event)
module("sglang.srt.utils").ceil_align = lambda value, step: -(-value // step) * step
for name in sorted(REAL):
    module(name)
# Other engines that are tested in this process ask whether it is there.
MISSING.clear()
for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
    del sys.modules[name]
