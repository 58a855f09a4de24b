#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes engine_hashes.json: block hashes made by the engines' own code.

    pip download --no-deps --dest WHEELS vllm==0.30.0 vllm==0.33.0 sglang==0.5.23   (one by one)
    pip install cbor2 pybind11
    ./make_engine_hash_vectors.py WHEELS

Needs Python 3.11 or later, a C++ compiler and OpenSSL's headers. The engines are not installed: the
functions that hash are taken out of the wheels and run as they are, vLLM's with stand-ins for a
request and a LoRA, SGLang's C++ built as an extension. Nothing of the project is used. The cases
are fixed by the seed below, so that a second run writes the same file.

A case: `recipe`, the name under which kvtier offers what this engine does; tokens, block_tokens;
identity, what beside the tokens was hashed (absent: nothing); lookahead_tokens; hashes, of the
blocks that the engine hashes. Digests of prompt embeddings are hexadecimal.
"""

import ast
import hashlib
import importlib.util
import itertools
import json
import logging
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile
import types
import zipfile

VLLM_FUNCTIONS = (
    "resolve_none_hash_seed",
    "init_none_hash",
    "_gen_mm_extra_hash_keys",
    "_gen_lora_extra_hash_keys",
    "_gen_prompt_embeds_extra_hash_keys",
    "generate_block_hash_extra_keys",
    "generate_lookahead_block_hash_extra_keys",
    "hash_block_tokens",
    "get_request_block_hasher",
)
EMBEDS_BYTES = 8  # of one token's stand-in


class Wheel:
    def __init__(self, directory, pattern):
        (path,) = directory.glob(pattern)
        self._archive = zipfile.ZipFile(path)

    def text(self, name):
        return self._archive.read(name).decode()

    def functions(self, name, wanted):
        """The source of those of the wanted functions that a module has."""
        text = self.text(name)
        nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        return "\n\n".join(ast.get_source_segment(text, n) for n in nodes if n.name in wanted)


class Request:
    """What vLLM's hashing reads of a request."""

    def __init__(self, tokens, identity):
        self.all_token_ids = tokens
        self.num_tokens = len(tokens)
        self.block_hashes = []
        self.cache_salt = identity.get("cache_salt")
        self.mm_features = [
            types.SimpleNamespace(
                identifier=content_hash,
                mm_position=types.SimpleNamespace(offset=offset, length=length),
            )
            for content_hash, offset, length in identity.get("items", [])
        ]
        self.lora_request = None
        if "lora" in identity:
            self.lora_request = types.SimpleNamespace(
                lora_name=identity["lora"], lora_path=identity.get("lora_path", "")
            )
        self.prompt_embeds = None
        if identity.get("with_embeds"):
            self.prompt_embeds = embeds_of(len(tokens))
        self._prompt_embeds_per_block_hashes = {}


def embeds_of(tokens):
    """Stands for a tensor: a list of bytes per token."""
    return [token.to_bytes(EMBEDS_BYTES, "little") for token in range(tokens)]


class Vllm:
    def __init__(self, wheel, recipe):
        self.recipe = recipe
        hashing = types.ModuleType("hashing")
        exec(wheel.text("vllm/utils/hashing.py"), hashing.__dict__)
        self._hash = hashing.get_hash_fn_by_name("sha256_cbor")
        names = {
            "BlockHash": bytes,
            "DEFAULT_NONE_HASH_SEED": "vllm-none-hash",
            "_NON_CRYPTO_HASH_FUNCTIONS": frozenset({hashing.xxhash, hashing.xxhash_cbor}),
            "hashlib": hashlib,
            "logger": logging.getLogger("vllm"),
            "os": os,
            "tensor_data": b"".join,
        }
        source = wheel.functions("vllm/v1/core/kv_cache_utils.py", VLLM_FUNCTIONS)
        more = wheel.functions("vllm/multimodal/utils.py", ("get_mm_features_in_window",))
        exec("from __future__ import annotations\n" + more + "\n\n" + source, names)
        assert f'"{names["DEFAULT_NONE_HASH_SEED"]}"' in wheel.text(
            "vllm/v1/core/kv_cache_utils.py"
        )
        self._names = names

    def hashes(self, tokens, block_tokens, identity, lookahead_tokens):
        os.environ.pop("PYTHONHASHSEED", None)
        if "seed" in identity:
            os.environ["PYTHONHASHSEED"] = identity["seed"]
        self._names["init_none_hash"](self._hash)
        more = (lookahead_tokens,) if lookahead_tokens else ()
        hasher = self._names["get_request_block_hasher"](block_tokens, self._hash, *more)
        return [one.hex() for one in hasher(Request(tokens, identity))]


class Sglang:
    recipe = "sglang/1"

    def __init__(self, wheel, directory):
        source = directory / "hash_binding.cpp"
        source.write_text(wheel.text("sglang/srt/mem_cache/cpp_utils/hash_binding.cpp"))
        library = directory / "hicache_hash_cpp.so"
        import pybind11

        includes = [pybind11.get_include(), sysconfig.get_paths()["include"]]
        subprocess.run(
            ["c++", "-O2", "-std=c++17", "-shared", "-fPIC", "-Wno-deprecated-declarations"]
            + ["-DTORCH_EXTENSION_NAME=hicache_hash_cpp", str(source), "-o", str(library)]
            + [f"-I{include}" for include in includes]
            + ["-lcrypto"],
            check=True,
        )
        spec = importlib.util.spec_from_file_location("hicache_hash_cpp", library)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        names = {"hashlib": hashlib, "_load_native_hash_module": lambda: module}
        native = wheel.functions(
            "sglang/srt/mem_cache/cpp_utils/native_hash.py",
            ("_native_hash_input", "get_native_hash"),
        )
        utils = wheel.functions(
            "sglang/srt/mem_cache/utils.py",
            ("get_hash_str", "storage_namespace_seed", "get_storage_hash_str"),
        )
        imports = "from __future__ import annotations\nfrom array import array\n"
        exec(imports + native + "\n\n" + utils, names)
        self._get_storage_hash_str = names["get_storage_hash_str"]

    def hashes(self, tokens, block_tokens, identity, lookahead_tokens):
        class Key(list):
            extra_key = identity.get("extra_key")
            cache_salt = identity.get("cache_salt")

        return self._get_storage_hash_str(Key(tokens), page_size=block_tokens)


def case(engine, name, tokens, block_tokens=16, lookahead_tokens=0, **identity):
    made = {"recipe": engine.recipe, "name": name, "block_tokens": block_tokens, "tokens": tokens}
    if lookahead_tokens:
        made["lookahead_tokens"] = lookahead_tokens
    made["hashes"] = engine.hashes(tokens, block_tokens, identity, lookahead_tokens)
    if identity.pop("with_embeds", False):
        identity["prompt_embeds"] = [
            hashlib.sha256(
                b"".join(embeds_of(len(tokens))[first : first + block_tokens + lookahead_tokens])
            ).hexdigest()
            for first in range(0, block_tokens * len(made["hashes"]), block_tokens)
        ]
    if identity:
        made["identity"] = identity
    return made


def plain_cases(engine, rng):
    sizes = ((1, 3), (4, 9), (16, 16), (16, 40), (32, 70), (64, 129), (128, 130))
    for block_tokens, count in sizes:
        yield case(engine, f"{count} tokens in {block_tokens}", ids(rng, count), block_tokens)
    for limit in (24, 1 << 8, 1 << 16, 1 << 32):
        edges = [0, 1, limit - 2, limit - 1, min(limit, (1 << 32) - 1), limit // 2]
        yield case(engine, f"tokens about {limit}", edges * 3, 6)


def vllm_items(rng, count, tokens):
    """Items one after another, of any length and gaps."""
    items, offset = [], rng.randrange(tokens // 3)
    for _ in range(count):
        length = rng.randrange(1, 1 + tokens // 3)
        items.append([rng.randbytes(rng.choice((4, 32))).hex(), offset, length])
        offset += length + rng.randrange(3)
    return items


def vllm_cases(engine, rng):
    loras = ({}, {"lora": "sql"}, {"lora": "söl/ü", "lora_path": "/adapters/söl"})
    salts = ({}, {"cache_salt": "tenant 7"}, {"cache_salt": "sql"}, {"cache_salt": ""})
    for lora, salt in itertools.product(loras, salts):
        for count in (16, 48, 50):
            identity = {**lora, **salt}
            yield case(engine, f"{identity} {count}", ids(rng, count), **identity)
    for number in range(20):
        items = vllm_items(rng, 1 + number % 4, 80)
        identity = {"items": items, **rng.choice(loras), **rng.choice(salts)}
        yield case(engine, f"items {number}", ids(rng, 80), **identity)
    for number in range(6):
        identity = {"with_embeds": True, **rng.choice(loras), **rng.choice(salts)}
        if number % 2:
            identity["items"] = vllm_items(rng, 2, 50)
        yield case(engine, f"embeddings {number}", ids(rng, 50), **identity)
    for seed in ("0", "42", "another seed"):
        yield case(engine, f"seed {seed}", ids(rng, 33), seed=seed)


def lookahead_cases(engine, rng):
    for lookahead, count in itertools.product((1, 2, 5), (15, 16, 17, 33, 40)):
        yield case(engine, f"{lookahead} ahead", ids(rng, count), lookahead_tokens=lookahead)
    for number in range(15):
        identity = {"items": vllm_items(rng, 1 + number % 3, 80), "cache_salt": "s"}
        if number % 3 == 0:
            identity["lora"] = "sql"
        if number % 5 == 0:
            identity["with_embeds"] = True
        ahead = 1 + number % 4
        name = f"items {number}, {ahead} ahead"
        yield case(engine, name, ids(rng, 80), lookahead_tokens=ahead, **identity)


def sglang_cases(engine, rng):
    parts = (None, "", "adapter-1", "söl", "x" * 300)
    for extra_key, salt in itertools.product(parts, parts):
        identity = {} if extra_key is None else {"extra_key": extra_key}
        if salt is not None:
            identity["cache_salt"] = salt
        for count in (16, 37):
            yield case(engine, f"namespace {count}", ids(rng, count), **identity)


def ids(rng, count):
    return [rng.randrange(152064) for _ in range(count)]


def main():
    wheels = pathlib.Path(sys.argv[1])
    rng = random.Random(33)
    old = Vllm(Wheel(wheels, "vllm-0.30.0-*.whl"), "vllm-sha256-cbor/1")
    new = Vllm(Wheel(wheels, "vllm-0.33.0-*.whl"), "vllm-sha256-cbor/2")
    cases = []
    for engine in (old, new):
        cases += [*plain_cases(engine, rng), *vllm_cases(engine, rng)]
    cases += lookahead_cases(new, rng)
    with tempfile.TemporaryDirectory() as directory:
        engine = Sglang(Wheel(wheels, "sglang-0.5.23-*.whl"), pathlib.Path(directory))
        cases += [*plain_cases(engine, rng), *sglang_cases(engine, rng)]
    target = pathlib.Path(__file__).with_name("engine_hashes.json")
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    made_by = '"made_by":"make_engine_hash_vectors.py of vllm 0.30.0, 0.33.0 and sglang 0.5.23"'
    target.write_text("{" + made_by + ',\n"cases":[\n' + lines + "\n]}\n")
    print(f"{len(cases)} cases, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
