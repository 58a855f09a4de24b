# SPDX-License-Identifier: Apache-2.0
"""Which tensors an adapter (LoRA) has, which the block hashes of vLLM do not tell: they have an adapter's
name and path, and other tensors may come to be there."""

from __future__ import annotations

from typing import Any

from .._model_config import directory_of
from .._weight_files import File, list_files, weights_digest
from ..errors import KvtierError
from .known_request import KnownRequest
from .link import logger


class AdapterDigests:
    """Used by the scheduler's thread. whole: reads files whole. A file is read when its adapter's first
    request comes, as vLLM does unless it has loaded the adapter before."""

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole
        # By vLLM's number of the adapter: the path that it was last loaded from, its files when it was
        # first used from there, and their digest.
        self._paths: dict[int, str] = {}
        self._known: dict[int, tuple[tuple[File, ...], bytes]] = {}
        self._left: set[tuple[int, str]] = set()  # numbers, and paths before the last ones
        self._told: set[int] = set()

    def salt_of(self, adapter: Any) -> bytes | None:
        """Bytes that tell the blocks of an adapter's requests apart from those of others; empty without
        an adapter; None: it is not known which tensors the engine has. adapter: a LoRARequest."""
        if adapter is None:
            return b""
        number, path = adapter.lora_int_id, adapter.lora_path
        before = self._paths.get(number)
        # Requests do not say that it was loaded in place through vLLM's server, but by another path.
        is_new = before != path and (number, path) not in self._left
        if is_new or getattr(adapter, "load_inplace", False):
            if before not in (None, path):
                self._left.add((number, before))
            self._paths[number] = path
            self._known.pop(number, None)
        elif before != path:
            self._tell(adapter, "another path was loaded since")
            return None
        try:
            directory, _ = directory_of(path, "")
            files = list_files(str(directory))
            known = self._known.get(number)
            if known is None:
                digest = weights_digest(str(directory), self._whole)
                if digest is None:
                    self._tell(adapter, "its files are not in a directory")
                    return None
                known = self._known[number] = files, bytes.fromhex(digest)
        except (KvtierError, OSError, ValueError) as error:
            self._tell(adapter, str(error))
            return None
        if known[0] != files:
            # vLLM still has the tensors of before, unless it was told to load others in place.
            self._tell(adapter, "its files have changed since it was first used")
            return None
        return known[1]

    def have_changed(
        self, known: KnownRequest, salts: dict[tuple[int, str], bytes | None]
    ) -> bool:
        """Whether the adapter of a request may have got other tensors since it came; then the request is
        mixed. salts: those that were looked at in this step."""
        adapter = getattr(known.request, "lora_request", None)
        if adapter is None:
            return False
        key = adapter.lora_int_id, adapter.lora_path
        if key not in salts:
            salts[key] = self.salt_of(adapter)
        known.is_mixed = known.is_mixed or salts[key] != known.salt
        return salts[key] != known.salt

    def _tell(self, adapter: Any, why: str) -> None:
        if adapter.lora_int_id not in self._told:
            self._told.add(adapter.lora_int_id)
            logger.warning("kvtier: adapter %s is not cached: %s", adapter.lora_name, why)
