# SPDX-License-Identifier: Apache-2.0
"""The content identity of blocks, computed as vLLM's sha256_cbor does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _library, _native
from ._library import abi
from ._native import Tokens
from .errors import check, invalid


@dataclass(frozen=True)
class MultimodalItem:
    """An image or sound that takes the place of tokens.

    content_hash: hexadecimal or any other stable text. offset_tokens: where its first placeholder
    token is in the sequence. length_tokens: how many there are.
    """

    content_hash: str
    offset_tokens: int
    length_tokens: int


@dataclass(frozen=True)
class PromptIdentity:
    """What a block's hash covers beside its tokens and its parent.

    seed: of the first parent; None is "vllm-none-hash". lora: adapter name, part of every block's
    hash. cache_salt: part of the first block's hash. items: in the order of their offsets.
    """

    seed: str | None = None
    lora: str | None = None
    cache_salt: str | None = None
    items: Sequence[MultimodalItem] = ()


def fill_identity(options: Any, identity: PromptIdentity | None) -> None:
    """Fills in the fields that kvt_hash_options and kvt_sequence_options share.

    Raises InvalidArgumentError.
    """
    if identity is None:
        return
    options.seed = _native.text(identity.seed, "seed")
    options.lora = _native.text(identity.lora, "lora")
    options.cache_salt = _native.text(identity.cache_salt, "cache_salt")
    items = (abi.kvt_multimodal_item * len(identity.items))()
    for target, item in zip(items, identity.items):
        target.content_hash = _native.text(item.content_hash, "content_hash")
        target.offset_tokens = _native.unsigned(item.offset_tokens, 63, "offset_tokens")
        target.length_tokens = _native.unsigned(item.length_tokens, 63, "length_tokens")
    options.items, options.item_count = ctypes.addressof(items), len(items)
    options.kept = items


def hash_blocks(
    tokens: Tokens, block_tokens: int = 16, identity: PromptIdentity | None = None
) -> list[bytes]:
    """Hashes of all full blocks and, if tokens remain, of the partial block at the end.

    Returns ceil(len(tokens) / block_tokens) hashes of 32 bytes. Needs no daemon. Raises
    InvalidArgumentError.
    """
    array = _native.token_array(tokens)
    library = _library.load()
    options = abi.kvt_hash_options()
    library.kvt_hash_options_init(ctypes.byref(options))
    if block_tokens == 0:
        raise invalid("bad_block_tokens", "0")
    options.block_tokens = _native.unsigned(block_tokens, 32, "block_tokens")
    fill_identity(options, identity)
    count = (array.size + block_tokens - 1) // block_tokens
    hashes = ctypes.create_string_buffer(count * _native.HASH_BYTES)
    check(
        library.kvt_hash_blocks(
            ctypes.byref(options), _native.address(array), array.size, hashes, count
        )
    )
    return _native.split_hashes(hashes.raw)
