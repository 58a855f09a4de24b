// SPDX-License-Identifier: Apache-2.0
// KV write: rope, quantisation and paged write of a step, scattered over the pool.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/bench/bench_harness.h"
#include "kernels/reference/number_format.h"

namespace kvtier::kernels::bench {
namespace {

constexpr int kHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kPage = 16;
constexpr int kMaxPosition = 131072;

struct WriteCase {
  int tokens;
  kvt_dtype kv_dtype = KVT_FP8_E4M3;
  kvt_rope_style rope = KVT_ROPE_NEOX;
  int query_heads = 0;
};

const char* TypeName(kvt_dtype dtype) { return dtype == KVT_FP8_E4M3 ? "fp8" : "bf16"; }

// Bytes that any implementation moves: inputs, angles, slots and positions read, outputs written.
size_t Bytes(const WriteCase& c) {
  const size_t row = size_t(2) * kHeads * kHeadDim;
  const size_t angles = c.rope == KVT_ROPE_NONE ? 0 : kHeadDim * sizeof(float) + sizeof(int32_t);
  return c.tokens * (row * (2 + ElementBytes(c.kv_dtype)) + angles + sizeof(int64_t) +
                     size_t(4) * c.query_heads * kHeadDim);
}

class WriteBuffers {
 public:
  explicit WriteBuffers(const WriteCase& c)
      : case_(c),
        rotations_(RotationCount(Bytes(c))),
        input_elements_(size_t(c.tokens) * (2 * kHeads + c.query_heads) * kHeadDim) {
    const size_t pages = size_t(rotations_) * ((c.tokens + kPage - 1) / kPage);
    inputs_ = DeviceMemory(2 * input_elements_ * rotations_);
    FillRandom(inputs_.get(), KVT_BF16, input_elements_ * rotations_, 1);
    query_output_ = DeviceMemory(
        std::max<size_t>(16, size_t(2) * c.tokens * c.query_heads * kHeadDim * rotations_));
    pool_ = DeviceMemory(pages * 2 * Slice() * ElementBytes(c.kv_dtype));
    cos_sin_ = DeviceMemory(size_t(kMaxPosition) * kHeadDim * sizeof(float));
    FillRandom(cos_sin_.get(), KVT_FP32, size_t(kMaxPosition) * kHeadDim, 2);
    std::vector<int64_t> blocks(pages);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(3));
    std::vector<int64_t> slots;
    std::vector<int32_t> positions;
    for (size_t i = 0; i < pages * kPage; ++i) {
      slots.push_back(blocks[i / kPage] * kPage + static_cast<int64_t>(i % kPage));
      positions.push_back(static_cast<int32_t>(i % kMaxPosition));
    }
    slots_ = ToDevice(slots);
    positions_ = ToDevice(positions);
    scales_ = ToDevice(std::vector<float>{0.02F, 0.02F});
  }

  [[nodiscard]] int rotations() const { return rotations_; }

  void Queue(int rotation, cudaStream_t stream) const {
    const WriteCase& c = case_;
    const size_t padded = size_t(c.tokens + kPage - 1) / kPage * kPage;
    kvt_kv_write_params p = {};
    p.dtype = KVT_BF16;
    p.tokens = c.tokens;
    p.query_heads = c.query_heads;
    auto* const inputs = inputs_.get<uint16_t>() + input_elements_ * rotation;
    p.key = inputs + c.query_heads * kHeadDim;
    p.value = inputs + (c.query_heads + kHeads) * kHeadDim;
    if (c.query_heads > 0) {
      p.query = inputs;
      p.query_output =
          query_output_.get<uint16_t>() + size_t(c.tokens) * c.query_heads * kHeadDim * rotation;
    }
    p.key_token_stride = p.value_token_stride = p.query_token_stride =
        (2 * kHeads + c.query_heads) * kHeadDim;
    p.query_output_token_stride = int64_t(c.query_heads) * kHeadDim;
    p.key_head_stride = p.value_head_stride = p.query_head_stride = kHeadDim;
    p.query_output_head_stride = kHeadDim;
    p.slot_mapping = slots_.get<int64_t>() + padded * rotation;
    p.rope = {c.rope, kHeadDim, positions_.get<int32_t>() + padded * rotation,
              cos_sin_.get<float>()};
    p.cache.key = pool_.get();
    p.cache.value = pool_.get<char>() + Slice() * ElementBytes(c.kv_dtype);
    p.cache.dtype = c.kv_dtype;
    p.cache.kv_heads = kHeads;
    p.cache.head_dim = kHeadDim;
    p.cache.page_tokens = kPage;
    p.cache.block_stride = 2 * Slice();
    p.cache.token_stride = kHeads * kHeadDim;
    p.cache.head_stride = kHeadDim;
    p.tables_settled = 1;  // as from a step's second layer on
    if (c.kv_dtype == KVT_FP8_E4M3) {
      p.cache.key_scales = {scales_.get<float>(), 0, 0, 0};
      p.cache.value_scales = {scales_.get<float>() + 1, 0, 0, 0};
    }
    CheckStatus(kvt_kv_write(&p, stream), "KV write");
  }

 private:
  static constexpr int64_t Slice() { return int64_t(kPage) * kHeads * kHeadDim; }

  WriteCase case_;
  int rotations_;
  size_t input_elements_;
  DeviceMemory inputs_, query_output_, pool_, cos_sin_, slots_, positions_, scales_;
};

void RunCase(const WriteCase& c, BenchRun* run) {
  if (!run->Wants("kv_write-" + std::to_string(c.tokens))) return;
  const WriteBuffers buffers(c);
  BenchResult result;
  result.us = MedianMicroseconds(buffers.rotations(), [&](int rotation, cudaStream_t stream) {
    buffers.Queue(rotation, stream);
  });
  result.kernel = "kv_write";
  result.variant = c.rope == KVT_ROPE_NONE ? "plain" : c.rope == KVT_ROPE_NEOX ? "neox" : "gptj";
  result.kv_dtype = TypeName(c.kv_dtype);
  result.batch = 1;
  result.q_len = c.tokens;
  result.q_heads = c.query_heads;
  result.kv_heads = kHeads;
  result.head_dim = kHeadDim;
  result.page = kPage;
  result.gbps = double(Bytes(c)) / result.us / 1e3;
  result.ceiling_ratio = result.gbps / run->ceilings().copy_gbps;
  run->Add(result);
}

}  // namespace

void BenchKvWrite(BenchRun* run) {
  for (const int tokens : {128, 4096}) {
    RunCase({tokens}, run);
    RunCase({tokens, KVT_FP8_E4M3, KVT_ROPE_NEOX, 32}, run);
    if (run->quick()) continue;
    RunCase({tokens, KVT_FP8_E4M3, KVT_ROPE_GPTJ}, run);
    RunCase({tokens, KVT_BF16, KVT_ROPE_NEOX}, run);
    RunCase({tokens, KVT_BF16, KVT_ROPE_NONE}, run);
  }
}

}  // namespace kvtier::kernels::bench
