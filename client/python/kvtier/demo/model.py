# SPDX-License-Identifier: Apache-2.0
"""The demonstration's language model: a Llama-style decoder over bytes, in numpy."""

from __future__ import annotations

import hashlib
import pathlib
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import kvtier

BLOCK_TOKENS = 16
_WEIGHTS = pathlib.Path(__file__).with_name("kjv_austen.kvtmodel")
_MAGIC = b"kvtmodel"
_HEADER = struct.Struct("<8s9I2f")

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Layer:
    attention_norm: Array
    query: Array
    key: Array
    value: Array
    attention_output: Array
    feed_forward_norm: Array
    gate: Array
    up: Array
    down: Array


class Model:
    """Its keys and values live in the pool, in FP16, and nowhere else. Immutable.

    record: of its KV, which no other weights share. max_positions: of a prompt and its answer.
    """

    def __init__(self) -> None:
        """Raises ValueError if the file of weights is damaged."""
        data = _WEIGHTS.read_bytes()
        contents, digest = data[:-32], data[-32:]
        if contents[: len(_MAGIC)] != _MAGIC or hashlib.sha256(contents).digest() != digest:
            raise ValueError(f"{_WEIGHTS} is damaged")
        _, _, *sizes, theta, self._epsilon = _HEADER.unpack_from(contents)
        layers, width, self._heads, self._kv_heads, self._head_dim, *sizes = sizes
        hidden, vocabulary, self.max_positions = sizes
        # bf16 is the upper half of a float32.
        bits = np.frombuffer(contents, np.uint16, offset=_HEADER.size).astype(np.uint32) << 16
        values, taken = bits.view(np.float32), 0

        def matrix(*shape: int) -> Array:
            nonlocal taken
            taken += (count := int(np.prod(shape)))
            return values[taken - count : taken].reshape(shape).T

        query, kv = self._heads * self._head_dim, self._kv_heads * self._head_dim
        self._embedding = matrix(vocabulary, width).T
        self._layers = [
            _Layer(
                attention_norm=matrix(width),
                query=matrix(query, width),
                key=matrix(kv, width),
                value=matrix(kv, width),
                attention_output=matrix(width, query),
                feed_forward_norm=matrix(width),
                gate=matrix(hidden, width),
                up=matrix(hidden, width),
                down=matrix(width, hidden),
            )
            for _ in range(layers)
        ]
        self._final_norm = matrix(width)
        self._angles = theta ** -(np.arange(0, self._head_dim, 2) / self._head_dim)
        self.record = kvtier.ModelRecord(
            "kvtier-demo",
            layers=layers,
            kv_heads=self._kv_heads,
            k_head_dim=self._head_dim,
            v_head_dim=self._head_dim,
            dtype=kvtier.DType.FLOAT16,
            block_tokens=BLOCK_TOKENS,
            revision=digest.hex(),
        )

    def forward(
        self, pool: kvtier.Pool, sequence: kvtier.Sequence, first: int, tokens: list[int]
    ) -> Array:
        """Writes the KV of `tokens`, whose positions begin at `first`, into the sequence's blocks,
        attends to all tokens up to theirs, and returns the logits of the last one."""
        end = first + len(tokens)
        slots = sequence.slot_mapping(first, len(tokens))
        block, offset = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
        table = sequence.block_table()[: -(-end // BLOCK_TOKENS)]
        turns = np.outer(np.arange(first, end), self._angles)
        x = self._embedding[tokens]
        for number, layer in enumerate(self._layers):
            cache = pool.layer(number)
            normed = self._norm(x, layer.attention_norm)
            cache.k[block, offset] = _rotate(self._split(normed @ layer.key), turns)
            cache.v[block, offset] = self._split(normed @ layer.value)
            query = _rotate(self._split(normed @ layer.query), turns)
            keys, values = (self._gather(part, table, end) for part in (cache.k, cache.v))
            x = x + self._attend(query, keys, values, first) @ layer.attention_output
            normed = self._norm(x, layer.feed_forward_norm)
            gate = normed @ layer.gate
            x = x + (gate / (1 + np.exp(-gate)) * (normed @ layer.up)) @ layer.down
        logits: Array = self._norm(x[-1], self._final_norm) @ self._embedding.T
        return logits

    def _norm(self, x: Array, scale: Array) -> Array:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        normed: Array = x / np.sqrt(mean + np.float32(self._epsilon)) * scale
        return normed

    def _split(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self._head_dim)

    def _gather(self, part: npt.NDArray[Any], table: npt.NDArray[np.int32], end: int) -> Array:
        """The first `end` tokens of the blocks in `table`: [head][token][dim]."""
        tokens = part[table].reshape(-1, self._kv_heads, self._head_dim)[:end]
        return np.ascontiguousarray(tokens.transpose(1, 0, 2), np.float32)

    def _attend(self, query: Array, keys: Array, values: Array, first: int) -> Array:
        """Causal attention; each KV head serves as many neighbouring query heads as there are."""
        count, end = len(query), keys.shape[1]
        grouped = query.reshape(count, self._kv_heads, -1, self._head_dim).transpose(1, 2, 0, 3)
        scores = grouped @ keys[:, None].swapaxes(2, 3) * np.float32(self._head_dim**-0.5)
        scores[..., np.arange(end) > np.arange(first, end)[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed: Array = weights @ values[:, None] / weights.sum(axis=-1, keepdims=True)
        return mixed.transpose(2, 0, 1, 3).reshape(count, -1)


def _rotate(heads: Array, turns: npt.NDArray[np.float64]) -> Array:
    """Rotary embedding: element i of a head turns together with element i + head_dim / 2."""
    cos, sin = (part(turns).astype(np.float32)[:, None] for part in (np.cos, np.sin))
    low, high = np.split(heads, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
