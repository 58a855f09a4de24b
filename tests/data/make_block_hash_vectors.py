#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes block_hash_more.json: block hashes computed without any of the project's code.

Uses PyPI's cbor2 and hashlib only:  pip install cbor2 && ./make_block_hash_vectors.py
The numbers are fixed by the seed below, so that a second run writes the same file.

Each case gives tokens and, per block, the extra keys as JSON: a string is a CBOR text, a number an
integer, {"bytes": hex} a byte string, a list an array; null means no extra keys. Where a case has
an "identity", the keys were derived from it by the rules of extra_keys_of below.
"""

import hashlib
import json
import pathlib
import random

import cbor2

DEFAULT_SEED = "vllm-none-hash"


def digest(value):
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def to_json(value):
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def extra_keys_of(identity, first, end):
    """The LoRA's name, each medium that overlaps [first, end) with its offset, the salt at 0."""
    keys = [identity["lora_name"]] if identity.get("lora_name") else []
    for content_hash, start, length in identity.get("media", []):
        if start < end and start + length > first:
            keys.append((content_hash, start - first))
    if first == 0 and identity.get("cache_salt"):
        keys.append(identity["cache_salt"])
    return keys or None


def case(name, tokens, block_tokens, keys_of=lambda first, end: None, seed=DEFAULT_SEED,
         identity=None):
    """Hashes every block of `tokens`, the last one also if it is partial."""
    root = digest(seed)
    parent, keys, hashes = root, [], []
    for first in range(0, max(len(tokens), 1), block_tokens):
        block = tokens[first:first + block_tokens]
        extra = keys_of(first, first + len(block))
        parent = digest([parent, block, extra])
        keys.append(to_json(extra))
        hashes.append(parent.hex())
    result = {"name": name, "seed": seed, "block_tokens": block_tokens, "tokens": tokens,
              "extra_keys": keys, "root": root.hex(), "block_hashes": hashes}
    if identity is not None:
        result["identity"] = identity
    return result


def identity_case(name, tokens, block_tokens, **identity):
    return case(name, tokens, block_tokens, identity=identity,
                keys_of=lambda first, end: extra_keys_of(identity, first, end))


def plain_cases(rng):
    def ids(count):
        return [rng.randrange(152064) for _ in range(count)]

    for block_tokens in (1, 16, 32, 64, 256, 1024):
        yield case(f"blocks of {block_tokens}", ids(2 * block_tokens), block_tokens)
        yield case(f"blocks of {block_tokens} and a tail",
                   ids(block_tokens + max(block_tokens // 3, 1)), block_tokens)
    yield case("an empty block", [], 16)
    yield case("one token", [7], 16)
    yield case("a tail of one less than a block", ids(15), 16)
    for bits in (8, 16, 32):
        edge = 1 << bits
        yield case(f"token ids around 2^{bits}",
                   [edge - 2, edge - 1] + ([edge, edge + 1] if bits < 32 else []), 16)
    yield case("token ids around 24", [22, 23, 24, 25], 16)
    yield case("widest ids, large block", [2**32 - 1] * 512, 512)


def seed_cases():
    texts = ("", "0", "42", "a" * 23, "a" * 24, "a" * 255, "a" * 256)
    for seed in (*texts, "Gr\u00f6\u00dfe \u6f22 \U0001f600"):
        yield case(f"seed of {len(seed.encode())} bytes", list(range(20)), 16, seed=seed)


def typed_key_cases():
    tokens = list(range(16))

    def one(name, *keys):
        return case(name, tokens, 16, keys_of=lambda first, end: list(keys))

    yield one("empty text", "")
    yield one("text of 300 bytes", "x" * 300)
    yield one("text of 70,000 bytes", "y" * 70000)
    yield one("text beyond the basic plane", "salt \U0001f9c2 and \u0000 zero")
    yield one("integers at every width", 0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32,
              2**63 - 1)
    yield one("negative integers at every width", -1, -24, -25, -256, -257, -65536, -65537, -2**32,
              -2**32 - 1, -2**63)
    yield one("a LoRA by number", 3)
    yield one("prompt embeddings' digest", hashlib.sha256(b"embeddings").digest())
    yield one("empty bytes", b"")
    yield one("an empty list", [])
    yield one("lists within lists", ["a", [1, [b"\x00\xff", []]], -5])
    yield one("thirty keys", *range(30))


def identity_cases(rng):
    tokens = [rng.randrange(152064) for _ in range(100)]
    image, sound = hashlib.sha256(b"image").hexdigest(), hashlib.sha256(b"sound").hexdigest()
    yield identity_case("LoRA", tokens, 16, lora_name="sql-adapter")
    yield identity_case("salt", tokens, 16, cache_salt="tenant-42")
    yield identity_case("odd salt", tokens, 16, cache_salt="\u00e4\n\"\\\U0001f600\u0000")
    yield identity_case("image within one block", tokens, 16, media=[[image, 20, 5]])
    yield identity_case("image over four blocks", tokens, 16, media=[[image, 10, 45]])
    yield identity_case("image at a block's edges", tokens, 16, media=[[image, 16, 16]])
    yield identity_case("two media in one block, one going on", tokens, 32,
                        media=[[image, 3, 7], [sound, 12, 50]])
    yield identity_case("everything at once", tokens, 16, lora_name="de", cache_salt="s",
                        media=[[image, 0, 30], [sound, 31, 2]])


def main():
    rng = random.Random(20240607)
    cases = [*plain_cases(rng), *seed_cases(), *typed_key_cases(), *identity_cases(rng)]
    lines = ",\n".join("  " + json.dumps(c, separators=(",", ":")) for c in cases)
    text = '{\n "made_by": "make_block_hash_vectors.py",\n "cases": [\n' + lines + "\n ]\n}\n"
    pathlib.Path(__file__).with_name("block_hash_more.json").write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
