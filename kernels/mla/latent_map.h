// Descriptions of queries and latent cache for the copy engine of Hopper's multiprocessors.
#pragma once

#include <cuda.h>

#include "kvtier/mla.h"

namespace kvtier::kernels {

// Coordinates (element, head, sequence); one copy brings 64 elements of 64 heads, swizzled, zeros
// for heads that do not exist. False: strides are beyond what the engine can address.
[[nodiscard]] bool EncodeQueryMap(const kvt_mla_decode_params& params, CUtensorMap* map);

// Coordinates (0, 0, 0, group of 8 tokens within the page, block). One copy brings `columns`
// columns of `box_tokens` tokens from `first_column` on, eight rows after eight rows, as atoms of 8
// rows by 64 columns, swizzled unless the latent cache is fp8. False: likewise.
[[nodiscard]] bool EncodeLatentMap(const kvt_mla_decode_params& params, int first_column,
                                   int columns, int box_tokens, CUtensorMap* map);

}  // namespace kvtier::kernels
