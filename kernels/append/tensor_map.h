// Descriptions of paged tensors for the copy engine of Hopper's multiprocessors.
#pragma once

#include <cuda.h>

#include "kvtier/kernels.h"

namespace kvtier::kernels {

// A map over one of the cache's tensors whose coordinates are (element within the page's first
// token, i.e. KV head * head_stride; 0; 0; group of 8 tokens within the page; block). One copy
// brings `box_tokens` tokens of one head, eight rows after eight rows: 16-bit elements as swizzled
// atoms of 8 rows by 64 elements, all atoms of eight rows before the next eight; fp8 as plain rows.
// False: strides or extents are beyond what the engine can address, or the driver is too old.
[[nodiscard]] bool EncodePageMap(const kvt_paged_kv& kv, const void* tensor, int box_tokens,
                                 CUtensorMap* map);

}  // namespace kvtier::kernels
