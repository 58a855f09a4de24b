# SPDX-License-Identifier: Apache-2.0
"""A plugin of vLLM: engines compute with the same kernels on every processor that has AVX-512. The
kernels for AMX give other bits in other batches, cannot load weights anew, and continue prefixes that
others cannot, so that the tests' expectations would hold on some machines alone."""

import torch


def register():
    torch.cpu._is_amx_tile_supported = lambda: False
