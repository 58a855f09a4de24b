// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tools/bench/bench.h"

namespace kvtier {

double Median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const size_t middle = samples.size() / 2;
  std::ranges::sort(samples);
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

}  // namespace kvtier
