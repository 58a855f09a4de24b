// SPDX-License-Identifier: Apache-2.0
// Descriptions of paged tensors for the copy engine of Hopper's multiprocessors.
#pragma once

#include <cuda.h>

#include <span>

#include "kvtier/kernels.h"

namespace kvtier::kernels {

// A tensor as the copy engine sees it: extents in elements, of which the first dimension is
// contiguous; strides in bytes of the other dimensions; and how much one copy brings.
struct TensorShape {
  CUtensorMapDataType type;
  CUtensorMapSwizzle swizzle;
  std::span<const cuuint64_t> extents;
  std::span<const cuuint64_t> strides;
  std::span<const cuuint32_t> box;
};

// Returns false if strides or extents are too large for the engine to address, or the driver is too
// old.
[[nodiscard]] bool EncodeTensorMap(const void* tensor, const TensorShape& shape, CUtensorMap* map);

// A map over one of the cache's tensors whose coordinates are (element within the page's first
// token, i.e. KV head * head_stride; 0; 0; group of 8 tokens within the page; block). One copy
// brings `box_tokens` tokens of one head, eight rows after eight rows: 16-bit elements as swizzled
// atoms of 8 rows by 64 elements, all atoms of eight rows before the next eight; fp8 as plain rows.
// False: as above.
[[nodiscard]] bool EncodePageMap(const kvt_paged_kv& kv, const void* tensor, int box_tokens,
                                 CUtensorMap* map);

}  // namespace kvtier::kernels
