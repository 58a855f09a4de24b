# SPDX-License-Identifier: Apache-2.0
"""kvtierd below LMCache's multiprocess server, as an L2 adapter of type "plugin"."""

from .adapter import KvtierL2Adapter

__all__ = ["KvtierL2Adapter"]
