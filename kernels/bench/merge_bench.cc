// SPDX-License-Identifier: Apache-2.0
// The merge of partial results.

#include "kernels/bench/bench_harness.h"

namespace kvtier::kernels::bench {

void BenchMerge(BenchRun* run) {
  if (!run->Wants("merge_lse")) return;
  constexpr int kParts = 4, kRowTokens = 8192, kQueryHeads = 32, kHeadDim = 128;
  constexpr int64_t kRows = int64_t(kRowTokens) * kQueryHeads, kResult = kRows * kHeadDim;
  const DeviceMemory partials = RandomOnDevice(KVT_FP32, kParts * kResult, 1),
                     lse = RandomOnDevice(KVT_FP32, kParts * kRows, 2), output(kResult * 2),
                     merged(kRows * 4);
  const kvt_merge_lse_params p = {partials.get(),
                                  lse.get<float>(),
                                  output.get(),
                                  merged.get<float>(),
                                  KVT_FP32,
                                  KVT_BF16,
                                  kParts,
                                  kRowTokens,
                                  kQueryHeads,
                                  kHeadDim,
                                  kResult,
                                  kRows,
                                  kQueryHeads * kHeadDim,
                                  kHeadDim};
  const double us = MedianMicroseconds(
      1, [&](int, cudaStream_t s) { CheckStatus(kvt_merge_lse(&p, s), "merge"); });
  const BenchResult shape{.kernel = "merge_lse",
                          .variant = "4 parts fp32",
                          .batch = kRowTokens,
                          .q_heads = kQueryHeads,
                          .head_dim = kHeadDim};
  run->Add(shape, us, double(kResult) * (kParts * 4 + 2) + double(kRows) * (kParts + 1) * 4, 0,
           Bound::kCopy);
}

}  // namespace kvtier::kernels::bench
