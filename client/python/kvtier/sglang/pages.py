# SPDX-License-Identifier: Apache-2.0
"""One of SGLang's host pools and its pages in the daemon.

A pool whose memory is behind a descriptor ("allocator": "shm") is mapped by the daemon, which
copies pages in place; pages of any other go through some memory of this module. All calls are of
SGLang's storage threads and wait for the daemon, but none raises because of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .._library import abi
from .._link import HASHES_PER_CALL, Attachment, Link, LinkState, attach, wait_until_ended
from .._settling import wait_until_settled
from ..connection import Connection
from ..errors import UnavailableError
from ..model import MAX_BLOCK_TOKENS, KvGroup, ModelRecord
from ..regions import Region
from ..types import Retention
from .device_transfers import exists
from .prefixes import logger, page_hash
from .shared_rows import SharedRows

# Rows of memory of this module: SGLang hands over so many pages in most calls.
_STAGED_PAGES = 128


def page_pieces(host_pool: Any) -> list[tuple[int, int, int]] | None:
    """Where the parts of each page lie in a pool's file, as (offset, page stride, bytes); None if
    the pool has no one file, does not say where its pages are, or has more than a region takes."""
    fds = getattr(getattr(host_pool, "allocator", None), "fds", [])
    buffer: Any = getattr(host_pool, "kv_buffer", None)
    if getattr(host_pool, "fd", None) is None or len(fds) > 1 or not torch.is_tensor(buffer):
        return None
    size, last = host_pool.page_size, host_pool.size // host_pool.page_size - 1
    try:
        first, second, end = (
            host_pool.get_page_buffer_meta(torch.arange(page * size, (page + 1) * size))
            for page in (0, min(1, last), last)
        )
    except (NotImplementedError, ValueError, AttributeError):
        return None
    pieces = [
        (begin - buffer.data_ptr(), max(after - begin, length), length)
        for begin, after, length in zip(first[0], second[0], first[1])
    ]
    file_bytes = os.fstat(host_pool.fd).st_size
    for (offset, stride, length), begin in zip(pieces, end[0]):
        # Whatever is not as regular as it seemed goes through memory of this module.
        regular = buffer.data_ptr() + offset + last * stride == begin
        if not regular or offset < 0 or offset + last * stride + length > file_bytes:
            return None
    fits = last < abi.KVT_MAX_REGION_BLOCKS and len(pieces) <= abi.KVT_MAX_REGION_PIECES
    return pieces if fits and first[1] == second[1] == end[1] else None


class PagePool:
    """facts: what tells its pages apart from those of other engines and pools, as a record's
    extra. record_options: name and so on of the record. socket: the daemon's. weights: which the
    engine has."""

    def __init__(
        self,
        host_pool: Any,
        record_options: dict[str, Any],
        facts: dict[str, str],
        socket: str,
        retry_s: tuple[float, float],
        weights: str,
    ) -> None:
        self._pool = host_pool
        self._page_tokens = int(getattr(host_pool, "page_size", 1) or 1)
        self._socket = socket
        self._pieces = page_pieces(host_pool)
        self._staging = threading.Lock()  # one call at a time goes through the staged pages
        if self._pieces is None:
            page = host_pool.get_dummy_flat_data_page()
            self._page_bytes = page.numel() * page.element_size()
        else:
            self._page_bytes = sum(length for _, _, length in self._pieces)
        order = "pieces" if self._pieces is not None else "flat"
        tokens = min(self._page_tokens, MAX_BLOCK_TOKENS)
        group = KvGroup(layers=1, layer_bytes=self._page_bytes, block_tokens=tokens)
        extra = {**facts, "order": order}
        self._record = ModelRecord(extra=extra, groups=(group,), revision=weights, **record_options)
        self._link = Link(self._open, logger, *retry_s)

    @property
    def in_place(self) -> bool:
        """Whether the daemon copies out of and into the pool itself."""
        return self._pieces is not None

    @property
    def connected(self) -> bool:
        return self._link.state is LinkState.READY

    def turn(self, weights: str) -> None:
        """Pages are of these weights from now on. Transfers under way are of those before."""
        self._record = replace(self._record, revision=weights)
        self._link.reopen()

    def close(self) -> None:
        self._link.close()

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Which pages the daemon has."""
        hashes = [page_hash(key) for key in keys]
        return self._with_region(lambda one: exists(one.regions[0], hashes), len(keys))

    def load(self, keys: Sequence[str], host_indices: Any) -> list[bool]:
        """Brings pages to the pool, where `host_indices` begin a page with each page_size-th."""
        load = self._load_in_place if self.in_place else self._load_staged

        def load_part(attachment: Attachment, part: slice, pages: Any) -> list[bool]:
            return load(attachment, [page_hash(key) for key in keys[part]], pages)

        return self._in_parts(load_part, keys, host_indices)

    def store(
        self,
        keys: Sequence[str],
        host_indices: Any,
        parents: Sequence[bytes | None],
        depth: int,
    ) -> list[bool]:
        """Stores pages of the pool. parents: of each; depth: of the first in its sequence."""
        tokens = self._record.groups[0].block_tokens

        def begin(attachment: Attachment, part: slice, numbers: Any) -> list[bool]:
            transfer = attachment.regions[0].store_many(
                numbers,
                [page_hash(key) for key in keys[part]],
                parents[part],
                tokens,
                np.arange(depth + part.start, depth + part.stop),
                Retention.EXTENDED,
            )
            return self._finish(attachment, transfer, len(numbers))

        def staged(attachment: Attachment, part: slice, pages: Any) -> list[bool]:
            rows = attachment.memory
            with self._staging:
                for row, page in enumerate(pages):
                    rows[row].copy_(self._read_page(int(page)))
                return begin(attachment, part, np.arange(len(pages)))

        return self._in_parts(begin if self.in_place else staged, keys, host_indices)

    def _load_in_place(
        self, attachment: Attachment, hashes: list[bytes], pages: Any
    ) -> list[bool]:
        transfer = attachment.regions[0].load_many(pages, hashes)
        try:
            return self._finish(attachment, transfer, len(hashes))
        except UnavailableError:
            # SGLang gives the pages to others when this returns.
            wait_until_settled(attachment.regions[0])
            raise

    def _load_staged(self, attachment: Attachment, hashes: list[bytes], pages: Any) -> list[bool]:
        rows = attachment.memory
        with self._staging:
            transfer = attachment.regions[0].load_many(np.arange(len(hashes)), hashes)
            done = self._finish(attachment, transfer, len(hashes))
            for row, page in enumerate(pages):
                if done[row]:
                    self._write_page(int(page), rows[row])
        return done

    def _in_parts(
        self,
        call: Callable[[Attachment, slice, Any], list[bool]],
        keys: Sequence[str],
        host_indices: Any,
    ) -> list[bool]:
        """The results of `call` for as many pages at a time as the daemon, and the memory of this module,
        take: all by one attachment, since the next one may be that of other weights."""
        pages = self._pages(keys, host_indices)
        if pages is None:
            return [False] * len(keys)
        most = HASHES_PER_CALL if self.in_place else _STAGED_PAGES
        parts = [slice(first, min(first + most, len(keys))) for first in range(0, len(keys), most)]
        return self._with_region(
            lambda one: [done for part in parts for done in call(one, part, pages[part])],
            len(keys),
        )

    def _pages(self, keys: Sequence[str], host_indices: Any) -> Any:
        """The pool's pages so many; None if the indices are not those of whole pages."""
        size = self._page_tokens
        if host_indices is None or host_indices.numel() != len(keys) * size:
            logger.error("kvtier: %d pages have other indices", len(keys))
            return None
        first = host_indices.cpu().numpy().reshape(len(keys), size)[:, 0]
        if (first % size).any():
            logger.error("kvtier: a page does not begin where pages do")
            return None
        return first // size

    def _with_region(self, call: Callable[[Attachment], list[bool]], count: int) -> list[bool]:
        """The call's result, or that nothing was done if there is no daemon."""
        return self._link.use(call, [False] * count)

    def _finish(self, attachment: Attachment, transfer: int, count: int) -> list[bool]:
        """Waits until a transfer has ended. Which of its pages were copied."""
        end = wait_until_ended(attachment.regions[0], transfer)
        return [position not in end.failed for position in range(count)]

    def _open(self) -> Attachment:
        """On the link's thread. Raises KvtierError, OSError."""
        if self.in_place:
            return attach(self._socket, "sglang", lambda one: [self._open_in_place(one)])
        # A region in memory of this module, with a row for each page.
        rows = SharedRows(_STAGED_PAGES, self._page_bytes, torch.device("cpu"))
        try:
            attachment = attach(
                self._socket, "sglang", lambda one: [rows.open_region(one, self._record)]
            )
        finally:
            rows.close()
        attachment.memory = rows.rows
        return attachment

    def _open_in_place(self, connection: Connection) -> Region:
        return connection.open_region(
            self._record,
            fd=self._pool.fd,
            bytes=os.fstat(self._pool.fd).st_size,
            blocks=self._pool.size // self._page_tokens,
            pieces=self._pieces,
        )

    def _read_page(self, page: int) -> torch.Tensor:
        data = self._pool.get_data_page(page * self._page_tokens, flat=True)
        return data.contiguous().view(torch.uint8).reshape(-1)

    def _write_page(self, page: int, row: torch.Tensor) -> None:
        like = self._pool.get_dummy_flat_data_page()
        data = row.clone().view(like.dtype).view(like.shape)
        self._pool.set_from_flat_data_page(page * self._page_tokens, data)
