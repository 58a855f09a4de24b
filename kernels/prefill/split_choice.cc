// SPDX-License-Identifier: Apache-2.0
#include "kernels/prefill/split_choice.h"

#include <algorithm>

namespace kvtier::kernels {
namespace {

// In units of the time that a tile of queries takes for a tile of keys, about 1.8 us on an H200.
constexpr double kItemCost = 1.0;           // filling the pipeline, storing the result
constexpr double kMergeCost = 1.0;          // one more launch
constexpr double kMergeBytesPerUnit = 2e6;  // partial results written and read again
// With so many tiles a processor, unequal lengths fill the gaps.
constexpr int kTilesPerProcessor = 2;

double Cost(const SplitQuestion& q, int64_t splits) {
  const auto ceil_divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto waves = static_cast<double>(ceil_divide(q.query_tiles * splits, q.processors));
  // The longest part counts, but so do all bytes together.
  const double keys = 0.5 * (static_cast<double>(ceil_divide(q.key_tiles, splits)) +
                             static_cast<double>(q.key_tiles) / static_cast<double>(splits));
  const double merge =
      splits == 1 ? 0.0
                  : kMergeCost + static_cast<double>(splits * q.output_bytes) / kMergeBytesPerUnit;
  return waves * (keys + kItemCost) + merge;
}

}  // namespace

int32_t ChooseSplits(const SplitQuestion& q) {
  if (q.query_tiles >= int64_t{kTilesPerProcessor} * q.processors) return 1;
  const int64_t most = std::min<int64_t>(q.max_splits, q.key_tiles);
  int64_t best = 1;
  for (int64_t splits = 2; splits <= most; ++splits) {
    if (Cost(q, splits) < Cost(q, best)) best = splits;
  }
  return static_cast<int32_t>(best);
}

}  // namespace kvtier::kernels
