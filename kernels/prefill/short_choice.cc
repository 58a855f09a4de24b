// SPDX-License-Identifier: Apache-2.0
#include "kernels/prefill/short_choice.h"

#include <algorithm>

namespace kvtier::kernels {
namespace {

// As measured on an H200. What the long kernel computes is left out: where it counts, suffixes are
// so long that the short one would read their keys too often to be chosen.
struct Costs {
  double long_us;
  double long_bytes_per_us;
  double short_us;
  double short_round_us;  // between an item's last tile and the next one's first
  double short_bytes_per_us;
  double cta_bytes_per_us;  // one multiprocessor, however few read beside it
};
constexpr Costs k16Bit = {.long_us = 13,
                          .long_bytes_per_us = 4.1e6,
                          .short_us = 7,
                          .short_round_us = 1,
                          .short_bytes_per_us = 4.5e6,
                          .cta_bytes_per_us = 4.6e4};
constexpr Costs kFp8 = {.long_us = 14.5,
                        .long_bytes_per_us = 2.1e6,
                        .short_us = 7,
                        .short_round_us = 1,
                        .short_bytes_per_us = 4.5e6,
                        .cta_bytes_per_us = 2.05e4};
// The long kernel takes so much longer over a byte of heads of 64 than of 128.
constexpr double kLongNarrow = 1.5;
// What a launch gains if all of the next one's clusters can come up beside its own.
constexpr double kOverlapUs = 1.2;

double ShortUs(const ShortQuestion& q, const Costs& costs, int32_t ctas, int32_t places) {
  const auto rounds = static_cast<double>((q.items + places - 1) / places);
  const double all = static_cast<double>(q.items) * q.item_bytes / costs.short_bytes_per_us;
  const int64_t clusters = std::min<int64_t>(q.items, places);
  const double beside =
      std::min(1.0, static_cast<double>(places - clusters) / static_cast<double>(clusters));
  return costs.short_us + (1 - beside) * kOverlapUs + (rounds - 1) * costs.short_round_us +
         std::max(all, rounds * q.item_bytes / ctas / costs.cta_bytes_per_us);
}

}  // namespace

int32_t ChooseClusterCtas(const ShortQuestion& q) {
  const Costs& costs = q.fp8 ? kFp8 : k16Bit;
  int32_t best = 0;
  double least =
      costs.long_us + (q.narrow ? kLongNarrow : 1) * q.all_bytes / costs.long_bytes_per_us;
  for (int ctas = 1; ctas <= kMaxClusterCtas; ++ctas) {
    const int32_t places = q.places[ctas - 1];
    if (places <= 0) continue;
    const double us = ShortUs(q, costs, ctas, places);
    if (us < least) {
      least = us;
      best = ctas;
    }
  }
  return best;
}

}  // namespace kvtier::kernels
