// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/kernels/block_ops_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

char* RowAddress(const kvt_block_layout& layout, int64_t block, int64_t layer, int64_t kv,
                 int64_t token, int64_t head) {
  char* base =
      layout.slice_bases != nullptr
          ? static_cast<char*>(layout.slice_bases[layer * 2 + kv])
          : static_cast<char*>(layout.base) + layer * layout.layer_stride + kv * layout.kv_stride;
  return base + block * layout.block_stride + token * layout.token_stride +
         head * layout.head_stride;
}

void CopyBlock(const kvt_copy_blocks_params& p, int64_t from, int64_t to) {
  for (int64_t slice = 0; slice < int64_t{p.layers} * 2; ++slice) {
    for (int64_t row = 0; row < int64_t{p.tokens} * p.heads; ++row) {
      const int64_t token = row / p.heads, head = row % p.heads;
      std::memcpy(RowAddress(p.destination, to, slice / 2, slice % 2, token, head),
                  RowAddress(p.source, from, slice / 2, slice % 2, token, head), p.head_bytes);
    }
  }
}

// The weight of each part of one row; all 0 if no part saw a key.
std::vector<double> Weights(const kvt_merge_lse_params& p, int64_t row, double& lse) {
  std::vector<double> weights(p.parts);
  const auto part_lse = [&](int part) -> double {
    return p.partial_lse[part * p.lse_part_stride + row];
  };
  double maximum = -std::numeric_limits<double>::infinity();
  for (int part = 0; part < p.parts; ++part) maximum = std::max(maximum, part_lse(part));
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

void CopyBlocksReference(const kvt_copy_blocks_params& params) {
  for (int64_t i = 0; i < params.blocks; ++i) {
    const int64_t from = params.source_blocks != nullptr ? params.source_blocks[i] : i;
    const int64_t to = params.destination_blocks != nullptr ? params.destination_blocks[i] : i;
    if (from >= 0 && to >= 0) CopyBlock(params, from, to);
  }
}

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
