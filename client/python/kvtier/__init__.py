# SPDX-License-Identifier: Apache-2.0
"""Client of kvtierd: the KV cache of LLM inference, shared between processes, kept in three tiers.

To begin with:

    with kvtier.connect() as connection:
        record = kvtier.ModelRecord.from_pretrained("meta-llama/Llama-3.1-8B")
        model = connection.register_model(record)
        pool = connection.attach(model)
        sequence = pool.open_sequence(prompt_tokens)

A lost daemon is a miss, not an exception: see docs/PYTHON.md for that, threads and units. Nothing
is loaded or opened before the first call.
"""

import pathlib as _pathlib

from ._library import LibraryNotFoundError
from ._library import version as library_version
from ._native import Hashes, Tokens
from .attention import AttendSequence, Workspace
from .blocks import AcquireResult, Blocks, Hits
from .connection import (
    DEFAULT_ADMIN_SOCKET,
    DEFAULT_SOCKET,
    Connection,
    Device,
    Stats,
    admin,
    connect,
)
from .cuda import CudaArray
from .errors import (
    AlreadyExistsError,
    CancelledError,
    CorruptError,
    InternalError,
    InvalidArgumentError,
    IoError,
    KvtierError,
    LimitExceededError,
    NotFoundError,
    NotOwnerError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StaleHandleError,
    Status,
    TimedOutError,
    UnavailableError,
    UnsupportedError,
    WrongStateError,
)
from .groups import GroupRequest, acquire_groups
from .hashing import RECIPES, MultimodalItem, PromptIdentity, hash_blocks
from .hit_plan import ComputeCost
from .kept_memory import KeptBlocks, KeptMemory, KeptTable
from .memory import PoolInfo, PoolMemory
from .model import KvGroup, KvView, Layout, Model, ModelRecord
from .pool import Pool
from .regions import Piece, Region, RegionMemory, StoreBlock, TransferEnd
from .sequence import Sequence, SequenceInfo
from .types import (
    ALL_LAYERS,
    AsyncError,
    AsyncErrors,
    Block,
    CommitEntry,
    DeviceKind,
    DType,
    Hint,
    Hit,
    HitPlan,
    HitRule,
    KvLayout,
    Load,
    LoadProgress,
    Miss,
    Presence,
    Retention,
    Tier,
    chain_entries,
)

__version__ = _pathlib.Path(__file__).with_name("VERSION").read_text(encoding="ascii").strip()

__all__ = [
    "ALL_LAYERS",
    "DEFAULT_ADMIN_SOCKET",
    "DEFAULT_SOCKET",
    "AcquireResult",
    "AlreadyExistsError",
    "AsyncError",
    "AsyncErrors",
    "AttendSequence",
    "Block",
    "Blocks",
    "CancelledError",
    "CommitEntry",
    "ComputeCost",
    "Connection",
    "CorruptError",
    "CudaArray",
    "DType",
    "Device",
    "DeviceKind",
    "GroupRequest",
    "Hashes",
    "Hint",
    "Hit",
    "HitPlan",
    "HitRule",
    "Hits",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "KeptBlocks",
    "KeptMemory",
    "KeptTable",
    "KvGroup",
    "KvLayout",
    "KvView",
    "KvtierError",
    "Layout",
    "LibraryNotFoundError",
    "LimitExceededError",
    "Load",
    "LoadProgress",
    "Miss",
    "Model",
    "ModelRecord",
    "MultimodalItem",
    "NotFoundError",
    "NotOwnerError",
    "PermissionDeniedError",
    "Piece",
    "Pool",
    "PoolInfo",
    "PoolMemory",
    "Presence",
    "PromptIdentity",
    "RECIPES",
    "Region",
    "RegionMemory",
    "ResourceExhaustedError",
    "Retention",
    "Sequence",
    "SequenceInfo",
    "StaleHandleError",
    "Stats",
    "Status",
    "StoreBlock",
    "Tier",
    "TimedOutError",
    "Tokens",
    "TransferEnd",
    "UnavailableError",
    "UnsupportedError",
    "Workspace",
    "WrongStateError",
    "__version__",
    "acquire_groups",
    "admin",
    "chain_entries",
    "connect",
    "hash_blocks",
    "library_version",
]
