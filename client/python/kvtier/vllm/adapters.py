# SPDX-License-Identifier: Apache-2.0
"""Which tensors an adapter (LoRA) has, which the block hashes of vLLM do not tell: they have an adapter's
name and path, and other tensors may come to be there.

The worker sees each load, and tells tensors by the files that they were read from. The scheduler hears
of a load with the step's end: its plans name the tensors that it counts on, and the worker refuses
those that vLLM has others for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._model_config import directory_of
from .._weight_files import weights_digest
from ..errors import KvtierError
from .known_request import KnownRequest
from .link import logger
from .step_plan import Tensors

_UNKNOWN = Tensors(0, b"")


def files_digest(path: str, whole: bool) -> bytes:
    """Tells an adapter's files apart; empty if they are not here, or cannot be read."""
    try:
        directory, _ = directory_of(path, "")
        return bytes.fromhex(weights_digest(str(directory), whole) or "")
    except (KvtierError, OSError, ValueError):
        return b""


class LoadedAdapters:
    """Used by the worker's thread. manager: vLLM's of the worker's adapters, each load of which goes
    through this; None: there is none, or it is not known."""

    def __init__(self, manager: Any, whole: bool = False) -> None:
        self._manager = manager
        self._whole = whole
        self._tensors: dict[int, Tensors] = {}  # as last loaded, by vLLM's number of the adapter
        self._news: dict[int, Tensors] = {}
        self._questions: dict[int, int] = {}
        self._load = getattr(manager, "_load_adapter", None)
        if self._load is not None:
            manager._load_adapter = self._load_adapter

    def _load_adapter(self, adapter: Any) -> Any:
        assert self._load is not None
        is_hub_s = not os.path.isdir(adapter.lora_path)  # whose load may bring another commit's
        before = files_digest(adapter.lora_path, self._whole)
        loaded = self._load(adapter)
        digest, number = files_digest(adapter.lora_path, self._whole), adapter.lora_int_id
        if digest != before and not is_hub_s:
            digest = b""  # either's
        last = self._tensors.get(number, _UNKNOWN)
        if digest != last.digest or not digest:
            self._tensors[number] = self._news[number] = Tensors(last.change + 1, digest)
        return loaded

    def ask(self, questions: Mapping[int, int]) -> None:
        """By the numbers of questions, adapters of which the scheduler wants to know."""
        self._questions.update(questions)

    def take_news(self) -> tuple[dict[int, Tensors], dict[int, bool]]:
        """The adapters that have got other tensors, and by the numbers of questions, whether vLLM has
        tensors of the adapter. If not, it reads the files when a step first needs them."""
        answers = {one: self._is_loaded(number) for one, number in self._questions.items()}
        news, self._news, self._questions = self._news, {}, {}
        return news, answers

    def may_store(self, adapter: tuple[int, Tensors] | None) -> bool:
        """Whether these are the tensors by which blocks were computed. None: by no adapter."""
        return adapter is None or self._tensors.get(adapter[0]) == adapter[1]

    def may_load(self, adapter: tuple[int, Tensors] | None) -> bool:
        """Whether their blocks may be used with what vLLM has of the adapter now, or will read."""
        return self.may_store(adapter) or (adapter is not None and not self._is_loaded(adapter[0]))

    def _is_loaded(self, number: int) -> bool:
        return self._load is None or number in self._manager.list_adapters()


class AdapterDigests:
    """Used by the scheduler's thread. whole: reads files whole. own: by an adapter's name and path, the
    digest of the tensors whose KV vLLM's own cache may have; empty: of several or unknown ones."""

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole
        self._loaded: dict[int, Tensors] = {}  # by vLLM's number, as the workers said last
        self._asking: dict[int, KnownRequest] = {}
        self._questions: dict[int, int] = {}
        self._told: set[int] = set()
        self.own: dict[tuple[str, str], bytes] = {}
        self._users: set[tuple[int, tuple[str, str]]] = set()  # adapters' numbers, and what they go by

    def find(self, known: KnownRequest) -> None:
        """Finds out which tensors a request will be computed with, unless the workers must be asked
        first, who answer with a later step."""
        adapter = known.request.lora_request
        number, digest = adapter.lora_int_id, files_digest(adapter.lora_path, self._whole)
        last = self._loaded.get(number, _UNKNOWN)
        will_load = known.will_load or known.is_in_place
        if digest not in (b"", last.digest) and not will_load and known.will_load is None:
            if id(known) not in self._asking:
                self._asking[id(known)] = known
                self._questions[id(known)] = number
            return
        known.is_found = True
        if digest and digest == last.digest:
            known.tensors = last
        elif digest and will_load:
            known.tensors = Tensors(last.change + 1, digest)
        elif number not in self._told:
            self._told.add(number)
            why = "its files are not those that vLLM has loaded" if digest else "its files are not here"
            logger.warning("kvtier: adapter %s is not cached: %s", adapter.lora_name, why)

    def take_questions(self) -> dict[int, int]:
        """For the workers, with the next plan: adapters, by the numbers of questions."""
        questions, self._questions = self._questions, {}
        return questions

    def hear(self, loaded: Mapping[int, Tensors], answers: Mapping[int, bool]) -> None:
        """As LoadedAdapters.take_news."""
        self._loaded.update(loaded)
        for number, name in self._users:
            if number in loaded and self.own[name] != loaded[number].digest:
                self.own[name] = b""
        for question, is_loaded in answers.items():
            self._asking.pop(question).will_load = not is_loaded

    def have_changed(self, known: KnownRequest, looks_at_files: bool = False) -> bool:
        """Whether the adapter of a request has got other tensors since they were found, or may get them;
        then the request is mixed."""
        if known.tensors is None:
            return False
        adapter = known.request.lora_request
        now = self._loaded.get(adapter.lora_int_id, _UNKNOWN)
        if now.change < known.tensors.change or now == known.tensors:
            if not looks_at_files:
                return False
            if files_digest(adapter.lora_path, self._whole) == known.tensors.digest:
                return False
        known.is_mixed = True
        return True

    def own_is_other(self, known: KnownRequest) -> bool:
        """Whether vLLM's own cache, which goes by name and path, may have KV of other tensors than those
        that the request's blocks have from now on."""
        adapter = getattr(known.request, "lora_request", None)
        if adapter is None:
            return False
        name, digest = (adapter.lora_name, adapter.lora_path), known.salt or b""
        self._users.add((adapter.lora_int_id, name))
        is_other = self.own.setdefault(name, digest) != digest
        if is_other:
            self.own[name] = b""
        return is_other

    def own_is_empty(self) -> None:
        """Nothing is in vLLM's own cache."""
        self.own.clear()
        self._users.clear()
