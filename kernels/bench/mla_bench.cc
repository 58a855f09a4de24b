// SPDX-License-Identifier: Apache-2.0
// MLA decode: one query token for each sequence over a latent cache, blocks in random order.

#include <cmath>

#include "kernels/bench/bench_harness.h"

namespace kvtier::kernels::bench {
namespace {

struct MlaCase {
  int batch;
  int context;
  int q_heads;
  int page = 64;
  bool fp8 = false;  // the latent cache, with one scale
};

size_t KvBytes(const MlaCase& c) {
  return size_t(c.fp8 ? 1 : 2) * c.batch * c.context * KVT_MLA_QUERY_DIM;
}

double Flops(const MlaCase& c) {
  return 2.0 * c.batch * c.context * c.q_heads * (KVT_MLA_QUERY_DIM + KVT_MLA_LATENT_DIM);
}

class MlaWork {
 public:
  explicit MlaWork(const MlaCase& c)
      : case_(c), rotations_(RotationCount(KvBytes(c))), pages_((c.context + c.page - 1) / c.page) {
    const size_t blocks = static_cast<size_t>(rotations_) * c.batch * pages_;
    const size_t elements = blocks * c.page * KVT_MLA_QUERY_DIM;
    latent_ = RandomOnDevice(c.fp8 ? KVT_FP8_E4M3 : KVT_BF16, elements, 1);
    scale_ = ToDevice(std::vector<float>{0.5F});
    const size_t rows = static_cast<size_t>(c.batch) * c.q_heads;
    query_ = RandomOnDevice(KVT_BF16, rows * KVT_MLA_QUERY_DIM, 2);
    output_ = DeviceMemory(rows * KVT_MLA_LATENT_DIM * 2);
    lse_ = DeviceMemory(rows * sizeof(float));
    table_ = ToDevice(Shuffled(blocks, 3));
    lengths_ = ToDevice(std::vector<int32_t>(c.batch, c.context));
    const kvt_mla_decode_params params = Params(0);
    workspace_ = DeviceMemory(kvt_mla_decode_workspace_bytes(&params));
    workspace_.Zero();
  }

  [[nodiscard]] int rotations() const { return rotations_; }

  void Launch(int rotation, cudaStream_t stream) const {
    const kvt_mla_decode_params params = Params(rotation);
    CheckStatus(kvt_mla_decode(&params, workspace_.get(), workspace_.bytes(), stream), "MLA");
  }

 private:
  [[nodiscard]] kvt_mla_decode_params Params(int rotation) const {
    const MlaCase& c = case_;
    kvt_mla_decode_params params = {};
    params.query = query_.get();
    params.output = output_.get();
    params.lse = lse_.get<float>();
    params.dtype = KVT_BF16;
    params.q_heads = c.q_heads;
    params.query_head_stride = KVT_MLA_QUERY_DIM;
    params.query_sequence_stride = int64_t{c.q_heads} * KVT_MLA_QUERY_DIM;
    params.output_head_stride = KVT_MLA_LATENT_DIM;
    params.output_sequence_stride = int64_t{c.q_heads} * KVT_MLA_LATENT_DIM;
    params.latent = latent_.get();
    params.token_stride = KVT_MLA_QUERY_DIM;
    params.block_stride = int64_t{c.page} * KVT_MLA_QUERY_DIM;
    params.page_tokens = c.page;
    params.latent_dtype = c.fp8 ? KVT_FP8_E4M3 : KVT_BF16;
    if (c.fp8) params.latent_scales = {scale_.get<float>(), 0, 0, 0};
    params.sequences = {
        .block_table = table_.get<int32_t>() + static_cast<size_t>(rotation) * c.batch * pages_,
        .kv_lengths = lengths_.get<int32_t>(),
        .table_stride = pages_,
        .sequences = c.batch,
        .max_kv_length = c.context};
    params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(KVT_MLA_QUERY_DIM));
    params.tables_settled = 1;  // as from a step's second layer on
    return params;
  }

  MlaCase case_;
  int rotations_;
  int64_t pages_;
  DeviceMemory latent_, scale_, query_, output_, lse_, table_, lengths_, workspace_;
};

void RunCase(const MlaCase& c, BenchRun* run) {
  if (!run->Wants((c.fp8 ? "mla-fp8-h" : "mla-h") + std::to_string(c.q_heads) + "-b" +
                  std::to_string(c.batch) + "-ctx" + std::to_string(c.context))) {
    return;
  }
  const BenchResult shape{.kernel = "mla_decode",
                          .kv_dtype = c.fp8 ? "fp8" : "bf16",
                          .batch = c.batch,
                          .q_len = 1,
                          .context = c.context,
                          .q_heads = c.q_heads,
                          .kv_heads = 1,
                          .head_dim = KVT_MLA_QUERY_DIM,
                          .page = c.page};
  // Many heads are bound by the matrix units, few by the bytes of the cache.
  run->Add(shape, MedianMicroseconds(MlaWork(c)), static_cast<double>(KvBytes(c)), Flops(c),
           Bound::kReadOrMatrix);
}

}  // namespace

void BenchMla(BenchRun* run) {
  for (const bool fp8 : {false, true}) {
    for (const int q_heads : {16, 64, 128}) {
      for (const auto& [batch, context] : std::vector<std::pair<int, int>>{
               {1, 1024}, {1, 4096}, {1, 32768}, {8, 4096}, {32, 4096}, {128, 4096}, {64, 16384}}) {
        RunCase({.batch = batch, .context = context, .q_heads = q_heads, .fp8 = fp8}, run);
      }
    }
    RunCase({.batch = 32, .context = 4096, .q_heads = 128, .page = 16, .fp8 = fp8}, run);
  }
}

}  // namespace kvtier::kernels::bench
