# SPDX-License-Identifier: Apache-2.0
"""kvtier under the transformers library, from version 5 on: see docs/engines/TRANSFORMERS.md."""

from .cache import KvtierCache, Outcome

__all__ = ["KvtierCache", "Outcome"]
