# SPDX-License-Identifier: Apache-2.0
"""A plugin of vLLM: engines do the same on every machine. They compute with the same kernels on each
processor that has AVX-512: those for AMX give other bits in other batches, cannot load weights anew, and
continue prefixes that others cannot. Engines with TEST_PATIENT in their environment do not give up on a
daemon because the machine is busy."""

import os

import torch

PATIENCE_S = 300


def register():
    torch.cpu._is_amx_tile_supported = lambda: False
    if "TEST_PATIENT" in os.environ:
        be_patient()


def be_patient():
    from kvtier._options import Number
    from kvtier.vllm import kept_allocation, link, lookups, options, stores, transfers

    for module in (kept_allocation, link, lookups, transfers):
        module.FIRST_CONNECT_S = PATIENCE_S
    stores.Stores.are_late = lambda self, after_s=0.0: False
    options.CONNECTOR_OPTIONS["lookup_timeout_ms"] = Number(PATIENCE_S * 1000, 0, PATIENCE_S * 1000)
