# SPDX-License-Identifier: Apache-2.0
"""The content identity of blocks, computed as engines do: a recipe says how, by name and version.

    vllm-sha256-cbor/1   vLLM up to 0.30, prefix_caching_hash_algo sha256_cbor: keys as they are
    vllm-sha256-cbor/2   vLLM from 0.31: each key with what it is, so that a salt cannot be taken
                         for a LoRA's name
    sglang/1             SGLang's storage hashes
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from . import _library, _native
from ._library import abi
from ._native import Tokens
from .errors import check, invalid

VLLM_1 = "vllm-sha256-cbor/1"
VLLM_2 = "vllm-sha256-cbor/2"
SGLANG_1 = "sglang/1"
#: What hash_blocks knows. The first is what sequences and Pool.acquire(tokens=...) hash by.
RECIPES = (VLLM_1, VLLM_2, SGLANG_1)

_DEFAULT_SEED = "vllm-none-hash"
# Fields of PromptIdentity that each recipe hashes; all others must be absent, but for lora_path,
# which the first recipe is known to pass over.
_FIELDS = {
    VLLM_1: {"seed", "lora", "lora_path", "cache_salt", "items", "prompt_embeds"},
    VLLM_2: {"seed", "lora", "lora_path", "cache_salt", "items", "prompt_embeds"},
    SGLANG_1: {"extra_key", "cache_salt"},
}


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

    seed: of the first parent; None is "vllm-none-hash" (vLLM: PYTHONHASHSEED, if it is set). lora:
    adapter name, part of every block's hash. lora_path: hashed with the name from
    vllm-sha256-cbor/2 on. cache_salt: part of the first block's hash. items: in the order of their
    offsets. prompt_embeds: for prompts given as embeddings, the SHA-256 of each block's, 32 bytes.
    extra_key: of SGLang's requests.

    Sequences and Pool.acquire take seed, lora, cache_salt and items only.
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
    recipe: str = VLLM_1,
    lookahead_tokens: int = 0,
) -> list[bytes]:
    """Hashes of all full blocks and, if tokens remain, of the partial block at the end.

    recipe: one of RECIPES. lookahead_tokens: vLLM's num_hash_lookahead_tokens, for its drafters:
    each hash covers so many tokens after its block, too, and only blocks that have them are hashed.

    Returns ceil(len(tokens) / block_tokens) hashes of 32 bytes, fewer with lookahead_tokens. Needs
    no daemon. Raises InvalidArgumentError, also for what the recipe does not hash.
    """
    array = _native.token_array(tokens)
    _native.unsigned(block_tokens, 32, "block_tokens")
    _native.unsigned(lookahead_tokens, 31, "lookahead_tokens")
    if block_tokens == 0:
        raise invalid("bad_block_tokens", "0")
    identity = identity or PromptIdentity()
    _check_recipe(recipe, identity, lookahead_tokens)
    if recipe == SGLANG_1:
        return _sglang_hashes(array, block_tokens, identity)
    # Where both recipes hash the same, and the library can, it is many times faster.
    keyless = not (identity.lora or identity.cache_salt or identity.items)
    if not lookahead_tokens and not identity.prompt_embeds and (recipe == VLLM_1 or keyless):
        return _library_hashes(array, block_tokens, identity)
    return _vllm_hashes(array, block_tokens, identity, recipe, lookahead_tokens)


def fill_identity(options: Any, identity: PromptIdentity | None) -> None:
    """Fills in the fields that kvt_hash_options and kvt_sequence_options share.

    Raises InvalidArgumentError, also for what the library does not hash.
    """
    if identity is None:
        return
    for name in ("prompt_embeds", "extra_key"):
        if not _is_absent(getattr(identity, name)):
            raise invalid(f"bad_{name}", f"{name} is not hashed here; hash_blocks does it")
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


def _check_recipe(recipe: str, identity: PromptIdentity, lookahead_tokens: int) -> None:
    if recipe not in _FIELDS:
        raise invalid("bad_recipe", f"{recipe}, not {', '.join(RECIPES)}")
    for name in identity.__dataclass_fields__:
        if name not in _FIELDS[recipe] and not _is_absent(getattr(identity, name)):
            raise invalid(f"bad_{name}", f"{name} is not hashed by {recipe}")
    if recipe == SGLANG_1 and lookahead_tokens:
        raise invalid("bad_lookahead_tokens", f"{recipe} does not look ahead")


def _is_absent(value: str | Sequence[Any] | None) -> bool:
    """An empty text is given, an empty list is not."""
    return value is None or not isinstance(value, str) and len(value) == 0


def _library_hashes(array: Any, block_tokens: int, identity: PromptIdentity) -> list[bytes]:
    library = _library.load()
    options = abi.kvt_hash_options()
    library.kvt_hash_options_init(ctypes.byref(options))
    options.block_tokens = block_tokens
    fill_identity(options, identity)
    count = (array.size + block_tokens - 1) // block_tokens
    hashes = ctypes.create_string_buffer(count * _native.HASH_BYTES)
    check(
        library.kvt_hash_blocks(
            ctypes.byref(options), _native.address(array), array.size, hashes, count
        )
    )
    return _native.split_hashes(hashes.raw)


# ---------------------------------------------------------------- SGLang


def _sglang_hashes(array: Any, block_tokens: int, identity: PromptIdentity) -> list[bytes]:
    """SHA-256 of the parent's hash and the tokens, four bytes each."""
    hashes: list[bytes] = []
    parent = _sglang_namespace(identity)
    for first in range(0, array.size, block_tokens):
        tokens = array[first : first + block_tokens].astype("<u4").tobytes()
        parent = hashlib.sha256(parent + tokens).digest()
        hashes.append(parent)
    return hashes


def _sglang_namespace(identity: PromptIdentity) -> bytes:
    """What stands for the first block's parent: nothing without extra_key and salt. An empty text
    is not the same as none."""
    if identity.extra_key is None and identity.cache_salt is None:
        return b""
    digest = hashlib.sha256(b"sglang-cache-namespace-v1")
    for part in (identity.extra_key, identity.cache_salt):
        if part is None:
            digest.update(b"\0")
        else:
            data = part.encode("utf-8")
            digest.update(b"\1" + len(data).to_bytes(8, "little") + data)
    return digest.digest()


# ---------------------------------------------------------------- vLLM

# The head of an array of three.
_THREE_ITEMS = b"\x83"

_Cbor = Union[None, int, str, bytes, "Sequence[_Cbor]"]


def _vllm_hashes(
    tokens: npt.NDArray[np.uint32],
    block_tokens: int,
    identity: PromptIdentity,
    recipe: str,
    ahead: int,
) -> list[bytes]:
    """SHA-256 of (parent's hash, tokens, keys or None) in CBOR."""
    hashes: list[bytes] = []
    encoded, ends = _cbor_tokens(tokens)
    seed = _DEFAULT_SEED if identity.seed is None else identity.seed
    parent = hashlib.sha256(_cbor(seed)).digest()
    for first in range(0, len(tokens), block_tokens):
        end = min(first + block_tokens, len(tokens))
        if ahead and first + block_tokens + ahead > len(tokens):
            break
        keys: _Cbor = _vllm_keys(identity, recipe, first, end + ahead, len(hashes)) or None
        if ahead:
            keys = (keys, *tokens[end : end + ahead].tolist())
        block = _cbor_head(4, end - first) + encoded[ends[first] : ends[end]]
        parent = hashlib.sha256(_THREE_ITEMS + _cbor(parent) + block + _cbor(keys)).digest()
        hashes.append(parent)
    if identity.prompt_embeds and len(identity.prompt_embeds) != len(hashes):
        raise invalid("bad_prompt_embeds", f"{len(identity.prompt_embeds)} for {len(hashes)}")
    return hashes


def _vllm_keys(
    identity: PromptIdentity, recipe: str, first: int, end: int, block: int
) -> list[_Cbor]:
    """The keys of the block that holds tokens [first, end), lookahead included."""
    tagged = recipe != VLLM_1
    keys: list[_Cbor] = []
    if identity.lora:
        path = identity.lora_path or ""
        keys.append(("lora", identity.lora, path) if tagged else identity.lora)
    for item in identity.items:
        if item.offset_tokens < end and item.offset_tokens + item.length_tokens > first:
            key = (item.content_hash, item.offset_tokens - first)
            keys.append(("mm", *key) if tagged else key)
    if first == 0 and identity.cache_salt:
        keys.append(("cache_salt", identity.cache_salt) if tagged else identity.cache_salt)
    if block < len(identity.prompt_embeds):
        digest = _native.one_hash(identity.prompt_embeds[block])
        keys.append(("prompt_embeds", digest) if tagged else digest)
    return keys


def _cbor_tokens(tokens: npt.NDArray[np.uint32]) -> tuple[bytes, list[int]]:
    """All tokens one behind the other in CBOR, and where each begins, with the end of the last.
    By columns, since a prompt has thousands."""
    more_bytes = np.select([tokens < 24, tokens < 1 << 8, tokens < 1 << 16], [0, 1, 2], 4)
    ends = np.concatenate([[0], np.cumsum(more_bytes + 1)])
    encoded = np.zeros(ends[-1], np.uint8)
    for code, size in ((0, 0), (24, 1), (25, 2), (26, 4)):
        chosen = more_bytes == size
        places, values = ends[:-1][chosen], tokens[chosen]
        encoded[places] = code if size else values
        for i in range(size):
            encoded[places + 1 + i] = values >> 8 * (size - 1 - i) & 0xFF
    return encoded.tobytes(), ends.tolist()


def _cbor(value: _Cbor) -> bytes:
    """Canonical CBOR (RFC 8949, 4.2.1)."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)
    if isinstance(value, str):
        data = value.encode("utf-8")
        return _cbor_head(3, len(data)) + data
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    return _cbor_head(4, len(value)) + b"".join(map(_cbor, value))


def _cbor_head(major: int, number: int) -> bytes:
    """A major type with its number in as few bytes as can be."""
    if number < 24:
        return bytes([major << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | code]) + number.to_bytes(size, "big")
    raise invalid("bad_number", f"{number} has more than 64 bits")
