// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/kernels/merge_lse_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

// The weight of each part of one row; all 0 if no part saw a key, all NaN if an LSE is.
std::vector<double> Weights(const kvt_merge_lse_params& p, int64_t row, double& lse) {
  std::vector<double> weights(p.parts);
  const auto part_lse = [&](int part) -> double {
    return p.partial_lse[part * p.lse_part_stride + row];
  };
  double maximum = -std::numeric_limits<double>::infinity();
  for (int part = 0; part < p.parts; ++part) {
    maximum = std::max(maximum, part_lse(part));
    if (!std::isnan(part_lse(part))) continue;
    lse = part_lse(part);
    return std::vector<double>(p.parts, lse);
  }
  lse = maximum;
  if (maximum == -std::numeric_limits<double>::infinity()) return weights;
  double sum = 0;
  for (int part = 0; part < p.parts; ++part) {
    weights[part] = part_lse(part) == maximum ? 1.0 : std::exp(part_lse(part) - maximum);
    sum += weights[part];
  }
  for (double& weight : weights) weight /= sum;
  if (std::isfinite(maximum)) lse = maximum + std::log(sum);
  return weights;
}

}  // namespace

void MergeLseReference(const kvt_merge_lse_params& params) {
  for (int64_t row = 0; row < int64_t{params.tokens} * params.heads; ++row) {
    double lse = 0;
    const std::vector<double> weights = Weights(params, row, lse);
    const int64_t out = row / params.heads * params.output_token_stride +
                        row % params.heads * params.output_head_stride;
    for (int64_t i = 0; i < params.head_dim; ++i) {
      double sum = 0;
      for (int part = 0; part < params.parts; ++part) {
        if (weights[part] == 0) continue;
        sum += weights[part] * LoadElement(params.partials, params.partial_dtype,
                                           part * params.part_stride + row * params.head_dim + i);
      }
      StoreElement(params.output, params.output_dtype, out + i, static_cast<float>(sum));
    }
    if (params.lse != nullptr) params.lse[row] = static_cast<float>(lse);
  }
}

}  // namespace kvtier::kernels
