// SPDX-License-Identifier: Apache-2.0
// KV write: rope, quantisation and paged write of a step, scattered over the pool.

#include <algorithm>

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

// Bytes that any implementation moves: inputs, angles, slots and positions read, outputs written.
size_t Bytes(const WriteCase& c) {
  const size_t row = size_t(2) * kHeads * kHeadDim;
  const size_t angles = c.rope == KVT_ROPE_NONE ? 0 : kHeadDim * sizeof(float) + sizeof(int32_t);
  return c.tokens * (row * (2 + ElementBytes(c.kv_dtype)) + angles + sizeof(int64_t) +
                     size_t(4) * c.query_heads * kHeadDim);
}

class WriteWork {
 public:
  explicit WriteWork(const WriteCase& c)
      : case_(c),
        rotations_(RotationCount(Bytes(c))),
        input_elements_(size_t(c.tokens) * (2 * kHeads + c.query_heads) * kHeadDim) {
    const int64_t pages = int64_t{rotations_} * ((c.tokens + kPage - 1) / kPage);
    inputs_ = RandomOnDevice(KVT_BF16, input_elements_ * rotations_, 1);
    query_output_ = DeviceMemory(
        std::max<size_t>(16, size_t(2) * c.tokens * c.query_heads * kHeadDim * rotations_));
    cache_ = PagedCache({pages, kPage, kHeads, kHeadDim, c.kv_dtype});
    cos_sin_ = RandomOnDevice(KVT_FP32, size_t(kMaxPosition) * kHeadDim, 2);
    const std::vector<int32_t> blocks = Shuffled(pages, 3);
    std::vector<int64_t> slots;
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < pages * kPage; ++i) {
      slots.push_back(int64_t{blocks[i / kPage]} * kPage + i % kPage);
      positions.push_back(static_cast<int32_t>(i % kMaxPosition));
    }
    slots_ = ToDevice(slots);
    positions_ = ToDevice(positions);
    scales_ = ToDevice(std::vector<float>{0.02F, 0.02F});
  }

  [[nodiscard]] int rotations() const { return rotations_; }

  void Launch(int rotation, cudaStream_t stream) const {
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
    p.cache = cache_.Layer();
    p.tables_settled = 1;  // as from a step's second layer on
    if (c.kv_dtype == KVT_FP8_E4M3) {
      p.cache.key_scales = {scales_.get<float>(), 0, 0, 0};
      p.cache.value_scales = {scales_.get<float>() + 1, 0, 0, 0};
    }
    CheckStatus(kvt_kv_write(&p, stream), "KV write");
  }

 private:
  WriteCase case_;
  int rotations_;
  size_t input_elements_;
  PagedCache cache_;
  DeviceMemory inputs_, query_output_, cos_sin_, slots_, positions_, scales_;
};

void RunCase(const WriteCase& c, BenchRun* run) {
  if (!run->Wants("kv_write-" + std::to_string(c.tokens))) return;
  const BenchResult shape{.kernel = "kv_write",
                          .variant = c.rope == KVT_ROPE_NONE   ? "plain"
                                     : c.rope == KVT_ROPE_NEOX ? "neox"
                                                               : "gptj",
                          .kv_dtype = TypeName(c.kv_dtype),
                          .batch = 1,
                          .q_len = c.tokens,
                          .q_heads = c.query_heads,
                          .kv_heads = kHeads,
                          .head_dim = kHeadDim,
                          .page = kPage};
  run->Add(shape, MedianMicroseconds(WriteWork(c)), double(Bytes(c)), 0, Bound::kCopy);
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
