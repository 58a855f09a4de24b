# SPDX-License-Identifier: Apache-2.0
"""kvtier in vLLM, without changes to vLLM: see docs/engines/VLLM.md.

`kvtier.vllm.tier.KvtierTier` is a secondary tier of vLLM's own offloading to host memory. Nothing
of vLLM is imported before that module is.
"""
