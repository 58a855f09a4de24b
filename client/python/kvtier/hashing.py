# SPDX-License-Identifier: Apache-2.0
"""The content identity of blocks, computed as engines do: a recipe says how, by name and version.

    vllm-sha256-cbor/1   vLLM up to 0.30, prefix_caching_hash_algo sha256_cbor: keys as they are
    vllm-sha256-cbor/2   vLLM from 0.31: each key with its kind, so that a salt cannot be taken for a
                         LoRA's name
    sglang/1             SGLang's storage hashes
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _library, _native
from ._library import abi
from ._native import Tokens
from .errors import check

DEFAULT_RECIPE = "vllm-sha256-cbor/2"
#: The recipes of hash_blocks, and of sequences whose model is registered with one of them.
RECIPES = ("vllm-sha256-cbor/1", DEFAULT_RECIPE, "sglang/1")


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
    """The values that a block's hash covers beside its tokens and its parent.

    seed: of the first parent; None is "vllm-none-hash" (vLLM: PYTHONHASHSEED, if it is set). lora:
    adapter name, part of every block's hash. lora_path: hashed with the name from
    vllm-sha256-cbor/2 on. cache_salt: part of the first block's hash. items: in the order of their
    offsets. prompt_embeds: for prompts given as embeddings, the SHA-256 of each block's, 32 bytes;
    not for sequences, which grow. extra_key: of SGLang's requests.

    An empty text is given, and for SGLang not the same as None. A recipe refuses values that it
    does not hash, but vllm-sha256-cbor/1 is known to ignore lora_path.
    """

    seed: str | None = None
    lora: str | None = None
    cache_salt: str | None = None
    items: Sequence[MultimodalItem] = ()
    lora_path: str | None = None
    prompt_embeds: Sequence[bytes] = ()
    extra_key: str | None = None


def hash_blocks(
    tokens: Tokens,
    block_tokens: int = 16,
    identity: PromptIdentity | None = None,
    *,
    recipe: str = DEFAULT_RECIPE,
    lookahead_tokens: int = 0,
) -> list[bytes]:
    """One hash per full block and, if tokens remain, one for the partial block of the rest.

    recipe: one of RECIPES. lookahead_tokens: vLLM's num_hash_lookahead_tokens; a block is then
    hashed with so many tokens behind it, and only blocks that have them are. identity.prompt_embeds
    are as many as there are hashes.

    Hashes have 32 bytes. Needs no daemon. Raises InvalidArgumentError, also for values that the
    recipe does not hash.
    """
    array = _native.token_array(tokens)
    library = _library.load()
    options = abi.kvt_hash_options()
    library.kvt_hash_options_init(ctypes.byref(options))
    options.block_tokens = _native.unsigned(block_tokens, 32, "block_tokens")
    options.lookahead_tokens = _native.unsigned(lookahead_tokens, 31, "lookahead_tokens")
    options.recipe = _native.text(recipe, "recipe")
    converted = identity_to_abi(identity)
    options.identity = ctypes.addressof(converted)
    # Enough for every size of block; the library refuses those that it does not take.
    capacity = array.size // max(block_tokens, 1) + 1
    hashes = ctypes.create_string_buffer(capacity * _native.HASH_BYTES)
    count = ctypes.c_size_t()
    check(
        library.kvt_hash_blocks(
            ctypes.byref(options),
            _native.address(array),
            array.size,
            hashes,
            capacity,
            ctypes.byref(count),
        )
    )
    return _native.split_hashes(hashes.raw[: count.value * _native.HASH_BYTES])


def identity_to_abi(identity: PromptIdentity | None) -> Any:
    """The identity as a kvt_prompt_identity, which keeps the objects that it points to. Raises
    InvalidArgumentError."""
    identity = identity or PromptIdentity()
    result = abi.kvt_prompt_identity()
    _library.load().kvt_prompt_identity_init(ctypes.byref(result))
    for name in ("seed", "lora", "lora_path", "cache_salt", "extra_key"):
        setattr(result, name, _native.text(getattr(identity, name), name))
    items = (abi.kvt_multimodal_item * len(identity.items))()
    for target, item in zip(items, identity.items):
        target.content_hash = _native.text(item.content_hash, "content_hash")
        target.offset_tokens = _native.unsigned(item.offset_tokens, 63, "offset_tokens")
        target.length_tokens = _native.unsigned(item.length_tokens, 63, "length_tokens")
    result.items, result.item_count = ctypes.addressof(items), len(items)
    embeds = _native.hash_bytes(identity.prompt_embeds)
    result.prompt_embeds = _native.pointer(embeds)
    result.prompt_embed_count = len(embeds) // _native.HASH_BYTES
    result.kept = (items, embeds)
    return result
