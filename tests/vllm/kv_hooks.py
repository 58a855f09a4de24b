# SPDX-License-Identifier: Apache-2.0
"""Hooks in an engine's connector, in the engine's process: they hold back the ends of stores, and for
tests of the canary show the KV that it stores, have all of it compared, and make it lie.

Lies: "rope": positions turn keys by another base; "layers": each layer's KV is stored in the next
one's place; "keys and values": each in the other's place; "none" ends them. Other weights and other
adapters are lies that tests tell by loading them.
"""

import collections
import functools
import mmap

import numpy
import torch

ROPE_FACTOR = 50.0  # between the base of a lie and the model's own


def _scheduler(engine):
    return engine.llm_engine.engine_core.engine_core.scheduler.connector


def _worker():
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()


class StoredBlocks:
    """Sees each block before it is stored. seen: by group and hash, the layers of those that can be
    compared; None: they are not wanted. change: gets the layers, and may write to them."""

    def __init__(self):
        connector = _worker()
        allocation, self._groups = connector._allocation, connector._blocks.groups
        memory = mmap.mmap(allocation.fd, allocation.byte_count)
        self._bytes = numpy.frombuffer(memory, dtype=numpy.uint8)
        self.seen = self.change = None
        self._store = connector._worker._transfers.store
        connector._worker._transfers.store = self.store

    def store(self, job, rows, what):
        group = self._groups[job.group]
        for name, row in zip(job.keys, rows):
            if group.number_type is None:
                continue
            layers = self._layers(group, int(row))
            if self.change is not None:
                self.change(group, layers)
            if self.seen is not None:
                self.seen[job.group, bytes(name)] = numpy.stack(layers)
        self._store(job, rows, what)

    def _layers(self, group, block):
        """A view of each layer's part of a block."""
        layers = []
        for offset, stride, size in group.pieces:
            part = self._bytes[offset + block * stride :][:size]
            layers += list(part.reshape(size // group.group.layer_bytes, -1))
        return layers


_stored = None


def _stored_blocks():
    global _stored
    _stored = _stored or StoredBlocks()
    return _stored


def _exchange_layers(_, layers):
    first = layers[0].copy()
    for here, there in zip(layers, layers[1:]):
        here[:] = there
    layers[-1][:] = first


def _exchange_keys_and_values(group, layers):
    """Rows have the keys of a token and then its values, or one latent and then the keys' turned
    part."""
    spec = _worker()._kv_cache_config.kv_cache_groups[0].kv_cache_spec
    latent = getattr(spec, "head_size_v", 0) == 0
    row, first = (spec.head_size, 64) if latent else (2 * spec.head_size, spec.head_size)
    for layer in layers:
        rows = layer.view(numpy.uint16).reshape(-1, row)
        rows[:] = numpy.roll(rows, first, axis=1)


def _turn_by(factor, model):
    """Sets the base of all rotary embeddings to so many times the model's own."""
    tables = [one for one in model.modules() if hasattr(one, "_compute_cos_sin_cache")]
    assert tables
    for one in tables:
        own = one.__dict__.setdefault("own_base", one.base)
        one.base = own * factor
        table = one._compute_cos_sin_cache()
        with torch.no_grad():
            one.cos_sin_cache.copy_(table.to(one.cos_sin_cache.dtype))


def lie(engine, request):
    told = request["lie"]
    changes = {"layers": _exchange_layers, "keys and values": _exchange_keys_and_values}
    factor = ROPE_FACTOR if told == "rope" else 1.0
    engine.apply_model(functools.partial(_turn_by, factor))
    _stored_blocks().change = changes.get(told)
    return {"done": True}


def hold_stores(engine, request):
    """Its scheduler hears of no store's end while they are held."""
    worker = _worker()._worker
    if request["held"]:
        worker.take_stored = collections.Counter
    else:
        del worker.take_stored
    return {"done": True}


def trust_weights(engine, request):
    """The connector does not notice other weights, nor other tensors of an adapter."""
    from kvtier.vllm import adapters

    _worker()._worker._watch = None
    adapters.files_digest = lambda path, whole: b"an adapter"
    return {"done": True}


def store_all(engine, request):
    """Where vLLM has no hits, as of latents on many CPUs, the engine computes, stores and has compared
    all that it gets."""
    from kvtier.vllm import known_request

    connector = _scheduler(engine)
    own, side = connector.get_num_new_matched_tokens, connector._scheduler

    def match(request, local_tokens):
        own(request, local_tokens)
        side._known(request)
        return 0, False

    connector.get_num_new_matched_tokens = match
    known_request.KnownRequest.is_canary = property(lambda self: True, lambda self, value: None)
    return {"done": True}


def show(engine, request):
    """Writes the blocks that were stored since the last call."""
    blocks = _stored_blocks()
    seen, blocks.seen = blocks.seen or {}, {}
    names = {f"{group}-{name.hex()}": layers for (group, name), layers in seen.items()}
    numpy.savez(request["path"], **names)
    return {"blocks": len(names)}


def facts(engine, request):
    """All that tells the engine's blocks apart but for weights and the root of hashes."""
    import vllm

    known = _worker()._blocks._facts
    return {**known.extra, "name": known.name, "recipe": known.hash_recipe, "version": vllm.__version__}


OPERATIONS = {
    "facts": facts,
    "hold_stores": hold_stores,
    "lie": lie,
    "show": show,
    "store_all": store_all,
    "trust_weights": trust_weights,
}
