// SPDX-License-Identifier: Apache-2.0
// Descriptions of queries and latent cache for the copy engine of Hopper's multiprocessors.
#pragma once

#include <cuda.h>

#include "kvtier/mla.h"

namespace kvtier::kernels {

// Coordinates (element, head, sequence); one copy brings 64 elements of 64 heads, swizzled, zeros
// for heads that do not exist. False: strides are beyond what the engine can address.
[[nodiscard]] bool EncodeQueryMap(const kvt_mla_decode_params& params, CUtensorMap* map);

// Coordinates (column, token within the page, block). One copy brings 64 columns of `box_tokens`
// tokens, swizzled unless the latent cache is fp8. False: likewise.
[[nodiscard]] bool EncodeLatentMap(const kvt_mla_decode_params& params, int box_tokens,
                                   CUtensorMap* map);

}  // namespace kvtier::kernels
