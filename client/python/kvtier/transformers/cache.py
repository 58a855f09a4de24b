# SPDX-License-Identifier: Apache-2.0
"""A DynamicCache whose beginning comes from the daemon, and which gives it the computed rest."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

from .._library import LibraryNotFoundError
from ..connection import DEFAULT_SOCKET
from ..errors import KvtierError
from ..hashing import PromptIdentity, hash_blocks
from ..model import ModelRecord
from ..types import Retention
from . import transfer
from .identity import (
    configuration_of,
    forget_positions,
    logger,
    model_record,
    moves_positions,
    weights_version,
)
from .layers import (
    Group,
    StatePart,
    UnsupportedModelError,
    WindowLayer,
    restore_attention,
    restore_state,
)
from .passes import fault_of_pass
from .transfer import BlockMemory, Session
from .trial import compute, groups_by_trial

# A store goes through host memory of at most so many bytes.
_STORE_BYTES = 256 << 20
# Members of configurations that name such tokens.
_MEDIA_TOKENS = ("image_token_id", "video_token_id", "audio_token_id", "image_token_index")
# Inputs of a model that are text, or that are looked at where the tokens are.
_TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
# Releases before 5.17 do not say that tokens will be taken back.
_SAYS_THAT_IT_DRAFTS = hasattr(DynamicCache, "activate_past_recording")
_MIXED = object()  # of several token types
_FAILURES = (KvtierError, LibraryNotFoundError, OSError)


class Outcome(enum.Enum):
    """The outcome for the prompt. RESTORED: some of it was cached; MISS: the daemon has none of it;
    UNAVAILABLE: no daemon, or it failed; UNSUPPORTED: this model or prompt is not cached."""

    RESTORED = "restored"
    MISS = "miss"
    UNAVAILABLE = "unavailable"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class _Settings:
    """The options of `KvtierCache.for_model`."""

    socket: str
    prompt: PromptIdentity
    block_tokens: int
    state_tokens: int
    checkpoint_tokens: int
    timeout_ms: int
    retention: Retention
    token_type: Any


@dataclass(frozen=True)
class _KnownModel:
    """Is found out once for a model's weights as they are. has_changed: since it was first seen."""

    version: Any
    groups: tuple[Group, ...]
    record: ModelRecord
    has_changed: bool


_known_models: weakref.WeakKeyDictionary[Any, _KnownModel] = weakref.WeakKeyDictionary()
# For models that are not cached, the version and why: as text, since an exception holds its model.
_refused_models: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()


class KvtierCache(DynamicCache):
    """Made by `for_model` for one sequence, and given to `generate` as past_key_values.

    For use by one thread. Nothing of the daemon raises: without it, the cache begins empty and
    nothing is stored. Leaving its `with` block stores the prompt, unless `store` was called.
    """

    def __init__(self, config: Any, tokens: Sequence[int] = ()) -> None:
        """An empty cache that stores nothing; `for_model` makes others."""
        super().__init__(config=config)
        self._tokens = list(tokens)  # that the layers hold, and before the first store the prompt
        self._prompt_tokens = len(self._tokens)
        self._settings: _Settings | None = None
        self._model: _KnownModel | None = None
        self._computed_by: Callable[[], Any] = lambda: None  # the model, as long as it lives
        self._moved_by: list[weakref.ref[Any]] = []  # its modules that move positions for images
        self._begun_at = -2  # the position at which the last pass through the model began
        self._is_looked_at = True  # that pass
        self._stored = False
        self._opaque: frozenset[int] = frozenset()
        self._parts: list[StatePart] = []
        self._checkpoints: dict[int, dict[StatePart, torch.Tensor]] = {}  # by position
        self._first_layer = -1
        self._last_layer: int | None = None  # the layer that was updated last
        self.outcome = Outcome.UNSUPPORTED
        self.restored_tokens = 0

    @classmethod
    def for_model(
        cls,
        model: Any,
        inputs: Any,
        *,
        socket: str | None = None,
        cache_salt: str | None = None,
        identity: str = "",
        block_tokens: int = 16,
        state_tokens: int = 256,
        checkpoint_tokens: int = 4096,
        timeout_ms: int = 30_000,
        retention: Retention = Retention.EXTENDED,
    ) -> KvtierCache:
        """A cache for one prompt, with as much of it as the daemon has; one token at least is left
        to compute.

        inputs: token ids, [1, tokens], or what a tokenizer returns. cache_salt: only prompts with
        the same salt share. identity: tells models apart beyond their weights and configuration.
        state_tokens, checkpoint_tokens: for models with recurrent states, multiples of which a
        prefix has, and how far apart states within a prompt are kept; such a prompt is computed up
        to its last multiple here. timeout_ms: for each copy of the daemon.

        Raises ValueError for several sequences, and for padded ones.
        """
        tokens, media = _tokens_of(inputs)
        token_type = _token_type_of(inputs)
        cache = cls(model.config, tokens)
        cache._opaque = _opaque_tokens(model)
        text_tokens = _first_of(cache._opaque, tokens)
        if media or token_type is _MIXED or getattr(model.config, "is_encoder_decoder", False):
            return cache
        if token_type is not None:
            identity = f"{identity} token_type_ids {token_type}"
        cache._settings = _Settings(
            socket or DEFAULT_SOCKET,
            PromptIdentity(cache_salt=cache_salt),
            block_tokens,
            state_tokens,
            checkpoint_tokens,
            timeout_ms,
            retention,
            token_type,
        )
        cache._moved_by = forget_positions(model)
        try:
            cache._learn(_know(model, cache._settings, identity, tokens))
            cache._computed_by = weakref.ref(model)
        except UnsupportedModelError as error:
            logger.warning("kvtier: %s is not cached: %s", type(model).__name__, error)
            return cache
        cache._restore(tokens[:text_tokens])
        cache._compute_checkpoints(model, min(text_tokens, len(tokens) - 1))
        return cache

    def __enter__(self) -> KvtierCache:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None and not self._stored:
            self.store()

    def store(self, output: Any = None) -> int:
        """Stores the computed part of the prompt or, given the output of `generate`, of the whole
        sequence. Returns how many blocks the daemon took or had; 0 without a daemon, and if the
        model's weights, adapters or configuration are others than when this cache was made.

        Raises ValueError if the output does not begin with the prompt or, after a store, with all tokens
        that were computed by then and not cropped since.
        """
        self._stored = True
        self._begun_at = -2  # the next pass is another call's
        self._look_at_model()
        if self._model is None or self._settings is None:
            return 0
        tokens = self._tokens if output is None else self._continued(output)
        computed = min(self.get_seq_length(), _first_of(self._opaque, tokens))
        self._checkpoint()
        try:
            with Session(
                self._settings.socket, self._model.record, self._settings.timeout_ms
            ) as session:
                return self._store_groups(session, tokens[:computed])
        except _FAILURES as error:
            logger.warning("kvtier: nothing was stored: %s", error)
            return 0

    # ---------------------------------------------------------------- of transformers' Cache

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if key_states.shape[0] != 1 and self._model is not None:
            raise ValueError(
                f"a KvtierCache is for one sequence, not {key_states.shape[0]}: generate without "
                "num_beams and num_return_sequences, or with a DynamicCache"
            )
        tokens = key_states.shape[-2]
        self._visit(layer_idx, tokens)
        if tokens > 1 and not self._is_looked_at:
            # The first layer keeps states, and has not told how many tokens there are.
            self._is_looked_at = True
            self._look_at_model()
            self._look_at_pass(self._begun_at, tokens)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        self._visit(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, *args, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        # Not a beginning: models write the other state of the layer in place before.
        self._last_layer = layer_idx
        return super().update_recurrent_state(recurrent_states, layer_idx, *args, **kwargs)

    def get_conv_state(self, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        # By releases after 5.19, which do not ask whether there is a state before they take it.
        self._visit(layer_idx)
        return super().get_conv_state(layer_idx, *args, **kwargs)

    def has_previous_state(self, layer_idx: int | None = None, *args: Any, **kwargs: Any) -> Any:
        if layer_idx is not None:
            self._visit(layer_idx)
        return super().has_previous_state(layer_idx, *args, **kwargs)

    def activate_past_recording(self) -> None:
        """Called for assisted decoding, in which transformers takes the first drafts for tokens of the
        prompt if the cache is not empty. Raises ValueError, with an empty cache, too."""
        if self._model is not None:
            raise ValueError(
                "a KvtierCache is not for assisted decoding: generate without assistant_model and "
                "prompt_lookup_num_tokens, or with a DynamicCache"
            )
        super().activate_past_recording()

    def crop(self, *args: Any, **kwargs: Any) -> None:
        if self.restored_tokens and not _SAYS_THAT_IT_DRAFTS:
            self._model = None  # nothing is stored: these may be drafts, as above
        before = self.get_seq_length()
        super().crop(*args, **kwargs)
        if self.get_seq_length() < before:
            del self._tokens[self.get_seq_length() :]

    def reset(self) -> None:
        super().reset()
        self._tokens.clear()
        self._checkpoints.clear()
        self._last_layer = None

    # ---------------------------------------------------------------- restoring

    def _learn(self, model: _KnownModel) -> None:
        """From now on, what goes through the layers can be stored."""
        self._model = model
        self._parts = [part for group in model.groups for part in group.parts]
        layers = [number for group in model.groups for number in group.layers]
        self._first_layer = min(layers + [part.layer for part in self._parts])
        for number, layer in enumerate(self.layers):
            if type(layer) is DynamicSlidingWindowLayer:
                self.layers[number] = WindowLayer(layer.sliding_window)

    def _restore(self, tokens: list[int]) -> None:
        """Fills the layers with the daemon's blocks of a prompt."""
        settings, known = self._settings, self._model
        assert settings is not None and known is not None
        hashes = self._hashes(tokens)
        try:
            with Session(settings.socket, known.record, settings.timeout_ms) as session:
                presence = transfer.look_up(session, known.groups, hashes)
                restored, memories = transfer.load(
                    session, known.groups, hashes, presence, len(self._tokens) - 1
                )
        except _FAILURES as error:
            logger.warning("kvtier: the prompt is computed: %s", error)
            self.outcome = Outcome.UNAVAILABLE
            return
        for memory in memories:
            self._fill_layers(memory, restored)
        self.restored_tokens = restored
        self.outcome = Outcome.RESTORED if restored else Outcome.MISS

    def _fill_layers(self, memory: BlockMemory, tokens: int) -> None:
        group = memory.group
        for i, part in enumerate(group.parts):
            restore_state(self.layers[part.layer], part, memory.state(i)[0].to(part.device))
        for i, (number, device) in enumerate(zip(group.layers, group.devices)):
            keys, values = (one.to(device) for one in memory.attention(i))
            keys, values = (one.transpose(0, 1).unsqueeze(0) for one in (keys, values))
            restore_attention(self.layers[number], keys, values, tokens)

    # ---------------------------------------------------------------- states

    def _visit(self, layer: int, tokens: int = 0) -> None:
        """Keeps the states when a pass through the model begins, which finds all layers at the same
        position still. tokens: of the pass; 0: not known."""
        if layer == self._first_layer and self._last_layer != layer:
            position = self.get_seq_length()
            is_step = position == self._begun_at + 1 and tokens <= 1
            # Neither is looked at between tokens that are generated one by one.
            if not is_step:
                self._look_at_model()
            self._is_looked_at = not is_step
            if not is_step or position < len(self._tokens):
                self._look_at_pass(position, tokens)
            if self._moved_by:
                self._look_at_positions(position)
            self._begun_at = position
            self._checkpoint()
        self._last_layer = layer

    @torch.compiler.disable
    def _look_at_model(self) -> None:
        """Stores nothing of a model that has become another one since its record was made, for a while
        at least, as within `disable_adapter` or with hooks that a call of `generate` brings."""
        model = self._computed_by()
        if self._model is None or model is None:
            return
        self._opaque |= _opaque_tokens(model)
        reason = "the model is another one by now"
        try:
            if (weights_version(model), configuration_of(model)) == self._model.version[:2]:
                return
        except UnsupportedModelError as error:
            reason = str(error)
        logger.warning("kvtier: nothing is stored: %s", reason)
        self._model = None

    @torch.compiler.disable
    def _look_at_pass(self, position: int, count: int) -> None:
        """Stores nothing once a pass computes anything but the tokens by whose hashes it would be stored, as
        they are: other ones of a prompt that `generate` has changed, embeddings, or with a mask."""
        if self._model is None or self._settings is None:
            return
        fault = fault_of_pass(
            self._computed_by(), position, count, self._tokens, self._opaque, self._settings.token_type
        )
        if fault:
            logger.warning("kvtier: nothing is stored: %s", fault)
            self._model = None

    @torch.compiler.disable
    def _look_at_positions(self, position: int) -> None:
        """Stores nothing once a pass is moved by another prompt's images. Each pass asks, since the
        model may see them between any two, and the first, since they move embeddings there, too;
        `store` does not ask, since earlier passes are not moved."""
        if self._model is None or not moves_positions(self._moved_by):
            return
        if not self._is_behind_images(position):
            logger.warning("kvtier: nothing is stored: another prompt's images move positions")
            self._model = None

    def _is_behind_images(self, position: int) -> bool:
        """Whether images of this prompt are what positions are moved for: they move tokens behind
        them, of which none is stored."""
        assert self._settings is not None
        first, step = _first_of(self._opaque, self._tokens), self._settings.block_tokens
        return first < len(self._tokens) and not 0 < position < first // step * step

    def _compute_checkpoints(self, model: Any, last_token: int) -> None:
        """Computes a prompt of a model with states up to the last position that can be restored,
        in steps that end where states are kept."""
        settings = self._settings
        assert settings is not None
        if not self._parts:
            return
        every = settings.state_tokens
        apart = -(-settings.checkpoint_tokens // every) * every
        begin, last = self.restored_tokens, last_token // every * every
        while begin < last:
            end = min(last, (begin // apart + 1) * apart)
            compute(model, self._tokens[begin:end], self)
            self._checkpoint()
            begin = end

    def _checkpoint(self) -> None:
        """Keeps the states if the sequence is at a position where they can be restored; of those
        behind the prompt only the last."""
        if not self._parts or self._settings is None:
            return
        position = self.get_seq_length()
        if position % self._settings.state_tokens or position == 0:
            return
        for old in [one for one in self._checkpoints if self._prompt_tokens <= one < position]:
            del self._checkpoints[old]
        self._checkpoints[position] = {part: part.of(self.layers).clone() for part in self._parts}

    # ---------------------------------------------------------------- storing

    def _store_groups(self, session: Session, tokens: list[int]) -> int:
        assert self._model is not None and self._settings is not None
        groups, hashes = self._model.groups, self._hashes(tokens)
        stored = 0
        # The daemon is asked each time, since it may have lost blocks that were stored or loaded.
        for number, presence in enumerate(transfer.look_up(session, groups, hashes)):
            group = groups[number]
            depths = [one for one in self._blocks_here(group, len(presence)) if not presence[one]]
            rows = max(1, _STORE_BYTES // sum(group.piece_bytes()))
            for begin in range(0, len(depths), rows):
                part = depths[begin : begin + rows]
                memory = BlockMemory(group, len(part))
                self._fill_memory(memory, part)
                stored += transfer.store(
                    session, number, memory, part, hashes[number], self._settings.retention
                )
        for group in groups:
            if group.window:
                step = group.kv.block_tokens
                needed = transfer.needed_blocks(group.kv, len(tokens) // step * step)
                for layer in group.layers:
                    self.layers[layer].drop_past(needed.start * step)
        return stored

    def _blocks_here(self, group: Group, count: int) -> list[int]:
        """The blocks of a group, of the first so many, that this cache has."""
        step = group.kv.block_tokens
        if group.parts:
            depths = [end // step - 1 for end in sorted(self._checkpoints)]
            return [one for one in depths if one < count]
        return list(range(self._first_position(group) // step, count))

    def _first_position(self, group: Group) -> int:
        """From where on a group's keys and values are here, rounded up to a block."""
        layer = self.layers[group.layers[0]]
        if not isinstance(layer, WindowLayer):
            return 0
        past = layer.past()
        position = self.get_seq_length() if past is None else past[0]
        return -(-position // group.kv.block_tokens) * group.kv.block_tokens

    def _fill_memory(self, memory: BlockMemory, depths: list[int]) -> None:
        group, step = memory.group, memory.group.kv.block_tokens
        for i, part in enumerate(group.parts):
            rows = memory.state(i)
            for row, depth in enumerate(depths):
                rows[row].copy_(self._checkpoints[(depth + 1) * step][part])
        for i, number in enumerate(group.layers):
            layer: Any = self.layers[number]
            past = layer.past() if isinstance(layer, WindowLayer) else None
            first, keys, values = past or (0, layer.keys, layer.values)
            for target, source in zip(memory.attention(i), (keys, values)):
                for row, depth, count in _runs(depths):
                    begin = depth * step - first
                    tokens = source[0, :, begin : begin + count * step].transpose(0, 1)
                    target[row * step : (row + count) * step].copy_(tokens)

    def _hashes(self, tokens: list[int]) -> list[list[bytes]]:
        """For each group, the hashes of the full blocks."""
        assert self._model is not None and self._settings is not None
        by_step: dict[int, list[bytes]] = {}
        for group in self._model.groups:
            step = group.kv.block_tokens
            if step not in by_step:
                full = tokens[: len(tokens) // step * step]
                by_step[step] = hash_blocks(full, step, self._settings.prompt) if full else []
        return [by_step[group.kv.block_tokens] for group in self._model.groups]

    def _continued(self, output: Any) -> list[int]:
        """The tokens of what `generate` returned."""
        sequences = getattr(output, "sequences", output)
        tokens, _ = _tokens_of(sequences)
        if tokens[: len(self._tokens)] != self._tokens[: len(tokens)]:
            raise ValueError("the output does not begin with the tokens of this cache")
        self._tokens = max(self._tokens, tokens[: self.get_seq_length()], key=len)
        return tokens


def _tokens_of(inputs: Any) -> tuple[list[int], bool]:
    """The tokens of one sequence, and whether more than they decides what a model computes."""
    media = False
    if isinstance(inputs, Mapping):
        media = bool(set(inputs) - _TEXT_INPUTS)
        mask = inputs.get("attention_mask")
        if mask is not None and not bool(torch.as_tensor(mask).all()):
            raise ValueError("a KvtierCache is for prompts without padding")
        inputs = inputs["input_ids"]
    ids = torch.as_tensor(inputs)
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise ValueError(f"a KvtierCache is for one sequence, not for ids of {tuple(ids.shape)}")
    return ids.tolist(), media


def _token_type_of(inputs: Any) -> Any:
    """The one type of all tokens; None: they have none; _MIXED: they have several, so that a token's
    keys and values depend on more than the tokens before it."""
    if not isinstance(inputs, Mapping) or inputs.get("token_type_ids") is None:
        return None
    kinds = set(torch.as_tensor(inputs["token_type_ids"]).reshape(-1).tolist())
    return kinds.pop() if len(kinds) == 1 else _MIXED


def _opaque_tokens(model: Any) -> frozenset[int]:
    """Tokens from which on a token's keys and values depend on more than the tokens before it: what
    stands for an image or sound, and padding, which `generate` leaves out of the positions."""
    config, generation = model.config, getattr(model, "generation_config", None)
    media = {getattr(config, name, None) for name in _MEDIA_TOKENS}
    padding = {getattr(one, "pad_token_id", None) for one in (config, generation)}
    ends = getattr(generation, "eos_token_id", None)
    # Where padding is the token that ends a text, it is not taken for padding.
    padding -= set(ends) if isinstance(ends, (list, tuple)) else {ends}
    return frozenset(token for token in media | padding if token is not None)


def _first_of(kinds: frozenset[int], tokens: list[int]) -> int:
    """How many tokens there are before the first of these kinds."""
    return next((i for i, token in enumerate(tokens) if token in kinds), len(tokens))


def _runs(depths: list[int]) -> Iterator[tuple[int, int, int]]:
    """Blocks that follow each other, as (position in the list, first block, how many)."""
    begin = 0
    for end in range(1, len(depths) + 1):
        if end == len(depths) or depths[end] != depths[end - 1] + 1:
            yield begin, depths[begin], end - begin
            begin = end


def _know(model: Any, settings: _Settings, identity: str, tokens: list[int]) -> _KnownModel:
    """All facts about a model, found out once. Raises UnsupportedModelError."""
    sizes = (settings.block_tokens, settings.state_tokens)
    try:
        version = (weights_version(model), configuration_of(model), *sizes, identity)
        refused_version, reason = _refused_models.get(model, (None, ""))
        if refused_version == version:
            raise UnsupportedModelError(reason)
        known = _known_models.get(model)
        if known is None or known.version != version:
            has_changed = known is not None and known.version[0][:2] != version[0][:2]
            has_changed = has_changed or (known is not None and known.has_changed)
            try:
                known = _try_model(model, settings, identity, tokens, version, has_changed)
            except UnsupportedModelError as error:
                _refused_models[model] = (version, str(error))
                raise
            _known_models[model] = known
        return known
    except UnsupportedModelError:
        raise
    except Exception as error:
        # Models may have code of their own; this one may still generate by itself. It is tried
        # again, since this may also be for want of memory.
        raise UnsupportedModelError(f"trying it failed: {error!r}") from error


def _try_model(
    model: Any,
    settings: _Settings,
    identity: str,
    tokens: list[int],
    version: Any,
    has_changed: bool,
) -> _KnownModel:
    sizes = (settings.block_tokens, settings.state_tokens)
    groups = groups_by_trial(model, tokens, _opaque_tokens(model), *sizes)
    record = model_record(model, groups, identity, has_changed)
    return _KnownModel(version, groups, record, has_changed)
