# SPDX-License-Identifier: Apache-2.0
"""Decoders of KV events as engines and routers have them: vLLM's own file, and what SGLang,
llm-d-kv-cache and Dynamo declare, written down here."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types
from typing import Any, Optional, Union
from unittest import mock

import msgspec


def vllm_events() -> types.ModuleType:
    """vLLM's module, without the rest of vLLM, which takes long to import."""
    found = importlib.util.find_spec("vllm")
    assert found is not None and found.origin is not None
    path = pathlib.Path(found.origin).parent / "distributed" / "kv_events.py"
    stand_ins: dict[str, Any] = {}
    for name in (
        "vllm",
        "vllm.config",
        "vllm.config.kv_events",
        "vllm.logger",
        "vllm.utils",
        "vllm.utils.network_utils",
        "vllm.v1",
        "vllm.v1.core",
        "vllm.v1.core.kv_cache_utils",
    ):
        stand_ins[name] = mock.MagicMock()
    stand_ins["vllm.v1.core.kv_cache_utils"].ExternalBlockHash = Union[bytes, int]
    specification = importlib.util.spec_from_file_location("vllm_kv_events", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with mock.patch.dict(sys.modules, {**stand_ins, "vllm_kv_events": module}):
        specification.loader.exec_module(module)
    return module


class SglangEvent(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(SglangEvent):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str] = None
    cache_salt: Optional[str] = None
    session_id: Optional[str] = None
    lora_name: Optional[str] = None


class BlockRemoved(SglangEvent):
    block_hashes: list[int]
    medium: Optional[str] = None


class AllBlocksCleared(SglangEvent):
    pass


class SglangBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    attn_dp_rank: Optional[int] = None


def decode_llmd(payload: bytes) -> list[dict[str, Any]]:
    """As llm-d-kv-cache does: every event a tagged array, read by position; more elements than are
    known are left alone. Bytes become the number that their last eight are."""
    time_s, events, *_ = msgspec.msgpack.decode(payload)
    assert isinstance(time_s, float)
    decoded = []
    for tag, *fields in events:
        if tag == "AllBlocksCleared":
            decoded.append({"tag": tag})
            continue
        hashes = [_number(block_hash) for block_hash in fields[0]]
        if tag == "BlockRemoved":
            decoded.append({"tag": tag, "hashes": hashes, "medium": fields[1]})
            continue
        assert tag == "BlockStored", tag
        decoded.append(
            {
                "tag": tag,
                "hashes": hashes,
                "parent": None if fields[1] is None else _number(fields[1]),
                "tokens": fields[2],
                "block_size": fields[3],
                "medium": fields[5],
            }
        )
    return decoded


def _number(block_hash: bytes | int) -> int:
    if isinstance(block_hash, bytes):
        return int.from_bytes(block_hash[-8:], "big")
    assert 0 <= block_hash < 2**64
    return block_hash


_DYNAMO_MEDIA = {
    "GPU": "device",
    "CPU": "host",
    "CPU_PINNED": "host",
    "DISK": "disk",
    "STORAGE": "disk",
}


def decode_dynamo(payload: bytes) -> list[dict[str, Any]]:
    """As Dynamo's router does: a map with "type" or a tagged array; hashes are numbers of 64 bits
    of either sign, and the tier follows from the medium."""
    _, events, rank = msgspec.msgpack.decode(payload)
    assert rank is None or isinstance(rank, int)
    names = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
    decoded = []
    for event in events:
        if isinstance(event, list):
            tag, *fields = event
            if tag == "BlockStored":
                event = {"type": tag, **dict(zip(names, fields))}
            elif tag == "BlockRemoved":
                event = {"type": tag, "block_hashes": fields[0], "medium": fields[1]}
            else:
                event = {"type": tag}
        if event["type"] != "AllBlocksCleared":
            assert all(isinstance(number, int) for number in event["block_hashes"])
            event["tier"] = _DYNAMO_MEDIA[event["medium"]]
        if event["type"] == "BlockStored":
            assert isinstance(event["block_size"], int) and isinstance(event["token_ids"], list)
        decoded.append(event)
    return decoded
