// SPDX-License-Identifier: Apache-2.0
// How far two engines' bytes of one block are apart: what a canary measures.
//
// Kernels add in another order when a batch has another shape, so that honest KV of one block
// differs in its last bits. The relative error of a layer is the root of the sum of the squared
// differences over that of the squares. Rounding gives the error of the format times a little more
// for each layer, and more where a token comes to other experts; KV of other weights, of another
// layer, or of another position has nothing in common with the block and an error near 1.4. The
// bounds lie between the two, where they were measured (docs/IDENTITY.md).
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiers/types/cache_requests.h"

namespace kvtier {

// The largest error that is taken for noise. REQUIRES: not kNone.
[[nodiscard]] double NoiseBound(NumberFormat format);

struct KvDifference {
  bool bits_equal = false;
  double error = 0;    // of the worst layer; infinite if only one of the two is a number
  uint32_t layer = 0;  // the worst
};

// The block is cut into `numbers.layers` equal layers. REQUIRES: both have as many bytes, and
// `numbers.format` is not kNone.
[[nodiscard]] KvDifference CompareKv(std::span<const std::byte> stored,
                                     std::span<const std::byte> computed, KvNumbers numbers);

}  // namespace kvtier
