# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage classes and host pools, as they are in its wheel, without the rest of SGLang.

Its packages import everything that a server needs, kernels for GPUs included. What is tested here
is taken from the unpacked wheel that KVTIER_SGLANG_DIRECTORY names; every other module of SGLang is
a stand-in whose functions return False and whose classes are empty.
"""

import importlib.machinery
import os
import pathlib
import sys
import types

ROOT = pathlib.Path(os.environ["KVTIER_SGLANG_DIRECTORY"])
PREFIX = "sglang.srt.mem_cache"
REAL = {
    "sglang.srt.environ",
    f"{PREFIX}.hicache_storage",
    f"{PREFIX}.host_memory",
    f"{PREFIX}.storage.backend_factory",
    f"{PREFIX}.storage.mmap",
    f"{PREFIX}.storage.mmap.mmap_allocator",
    f"{PREFIX}.pool_host.base",
    f"{PREFIX}.pool_host.common",
    f"{PREFIX}.pool_host.mha",
}
# Packages without what their __init__ imports.
BARE = {"sglang", "sglang.srt", PREFIX, f"{PREFIX}.storage", f"{PREFIX}.pool_host"}


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {}) if name[0].isupper() else lambda *arguments, **more: False
        setattr(self, name, made)
        return made


class Finder:
    """For import; a loader for what is not real, too."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "sglang" or name in REAL:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = (types.ModuleType if spec.name in BARE else StandIn)(spec.name)
        module.__path__ = [str(ROOT.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
