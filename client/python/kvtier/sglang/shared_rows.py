# SPDX-License-Identifier: Apache-2.0
"""Rows of memory that this module allocates, and that the daemon copies to and from in SGLang's
place: where the pages of SGLang's own pools are not in one piece of memory that can be shared."""

from __future__ import annotations

import mmap
import os
import torch

from .._gpu_memory import GpuMemory, region_arguments
from ..connection import Connection
from ..model import ModelRecord
from ..regions import Region


class SharedRows:
    """On a GPU, or in host memory behind a descriptor, which `close` gives back.

    rows: uint8 [count, row_bytes]. On a GPU the memory must live as long as the process once a
    region was opened on it: a daemon that hangs may still copy to it.
    """

    def __init__(self, count: int, row_bytes: int, device: torch.device) -> None:
        """Raises OSError for memory that cannot be shared."""
        byte_count = count * row_bytes
        self._gpu: GpuMemory | None = None
        self._fd = -1
        if device.type == "cuda":
            memory = torch.empty(byte_count, dtype=torch.uint8, device=device)
            self._gpu = GpuMemory(memory)
        else:
            self._fd = os.memfd_create("kvtier-sglang", os.MFD_CLOEXEC)
            try:
                os.ftruncate(self._fd, byte_count)
                memory = torch.frombuffer(mmap.mmap(self._fd, byte_count), dtype=torch.uint8)
            except BaseException:
                self.close()
                raise
        self.rows = memory.view(count, row_bytes)

    def open_region(self, connection: Connection, record: ModelRecord) -> Region:
        """A region whose blocks are the rows. Raises as Connection.open_region."""
        count, row_bytes = self.rows.shape
        pieces = [(0, row_bytes, row_bytes)]
        if self._gpu is not None:
            arguments = region_arguments(connection, self._gpu.arguments(pieces))
        else:
            arguments = {"fd": self._fd, "bytes": self.rows.nbytes, "pieces": pieces}
        return connection.open_region(record, blocks=count, **arguments)

    def close(self) -> None:
        """No more regions will be opened. Open regions stay, and so do the rows."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
