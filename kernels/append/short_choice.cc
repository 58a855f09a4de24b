#include "kernels/append/short_choice.h"

#include <algorithm>

namespace kvtier::kernels {
namespace {

// As measured on an H200. What the long kernel computes is left out: where it counts, suffixes are
// so long that the short one would read their keys too often to be chosen.
constexpr double kLongUs = 13;
constexpr double kLongBytesPerUs = 4.1e6;
constexpr double kShortUs = 7;
constexpr double kShortRoundUs = 1;  // between an item's last tile and the next one's first
constexpr double kShortBytesPerUs = 4.5e6;
constexpr double kCtaBytesPerUs = 4.6e4;  // one multiprocessor, however few read beside it

double ShortUs(const ShortQuestion& q, int32_t ctas, int32_t places) {
  const auto rounds = static_cast<double>((q.items + places - 1) / places);
  const double all = static_cast<double>(q.items) * q.item_bytes / kShortBytesPerUs;
  return kShortUs + (rounds - 1) * kShortRoundUs +
         std::max(all, rounds * q.item_bytes / ctas / kCtaBytesPerUs);
}

}  // namespace

int32_t ChooseClusterCtas(const ShortQuestion& q) {
  int32_t best = 0;
  double least = kLongUs + q.all_bytes / kLongBytesPerUs;
  for (int i = 0; i < kClusterSizes; ++i) {
    if (q.places[i] <= 0) continue;
    const double us = ShortUs(q, 1 << i, q.places[i]);
    if (us < least) {
      least = us;
      best = 1 << i;
    }
  }
  return best;
}

}  // namespace kvtier::kernels
