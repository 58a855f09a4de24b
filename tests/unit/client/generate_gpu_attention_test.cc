// SPDX-License-Identifier: Apache-2.0
// What of the GPU's attention can be tried without one: that the model's text stands 16-bit
// arithmetic.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "client/examples/generator.h"
#include "client/examples/gpu_attention.h"
#include "client/examples/kv_store.h"
#include "kernels/reference/attention_reference.h"
#include "kernels/reference/number_format.h"
#include "tests/unit/client/generate_fixture.h"

namespace kvtier::generate {
namespace {

// Does what the GPU does, with the reference in place of its kernels: heads of kGpuHeadDim halves,
// the upper ones zeros, in blocks that are not in order.
class GpuDouble final : public GpuAttention {
 public:
  explicit GpuDouble(const ModelShape& shape)
      : shape_(shape),
        slice_(kBlockTokens * shape.kv_heads * kGpuHeadDim),
        pool_(kBlocks * shape.layers * 2 * slice_, 0x7FFF) {}

  [[nodiscard]] Status Store(const LayerRows& rows, std::span<const int32_t> table,
                             const float* keys, const float* values) override {
    for (size_t row = 0; row < rows.count; ++row) {
      const size_t position = rows.first_position + row;
      for (size_t head = 0; head < shape_.kv_heads; ++head) {
        const size_t from = row * shape_.kv_width() + head * kHeadDim;
        const size_t to = Slice(table[position / kBlockTokens], rows.layer) +
                          (position % kBlockTokens * shape_.kv_heads + head) * kGpuHeadDim;
        for (size_t d = 0; d < kGpuHeadDim; ++d) {
          pool_[to + d] = kernels::Fp16FromFloat(d < kHeadDim ? keys[from + d] : 0.0F);
          pool_[to + slice_ + d] = kernels::Fp16FromFloat(d < kHeadDim ? values[from + d] : 0.0F);
        }
      }
    }
    return {};
  }

  [[nodiscard]] Status Attend(const LayerRows& rows, std::span<const int32_t> table,
                              const float* queries, float* mixed) override {
    if (failing) return MakeError(ErrorCode::kIoError, "kernel_failed");
    const size_t vectors = rows.count * shape_.query_heads;
    std::vector<uint16_t> halves(vectors * kGpuHeadDim);
    for (size_t i = 0; i < vectors * kHeadDim; ++i) {
      halves[i / kHeadDim * kGpuHeadDim + i % kHeadDim] = kernels::Fp16FromFloat(queries[i]);
    }
    const auto length = static_cast<int32_t>(rows.first_position + rows.count);
    const int32_t starts[] = {0, static_cast<int32_t>(rows.count)};
    const uint16_t* const key = pool_.data() + Slice(0, rows.layer);
    const kernels::ReferenceAttention problem{
        .query = halves.data(),
        .query_dtype = KVT_FP16,
        .q_heads = static_cast<int32_t>(shape_.query_heads),
        .query_token_stride = static_cast<int64_t>(shape_.query_heads * kGpuHeadDim),
        .query_head_stride = kGpuHeadDim,
        .query_starts = starts,
        .kv = {.key = const_cast<uint16_t*>(key),
               .value = const_cast<uint16_t*>(key) + slice_,
               .dtype = KVT_FP16,
               .kv_heads = static_cast<int32_t>(shape_.kv_heads),
               .head_dim = kGpuHeadDim,
               .page_tokens = kBlockTokens,
               .block_stride = static_cast<int64_t>(Slice(1, 0)),
               .token_stride = static_cast<int64_t>(shape_.kv_heads * kGpuHeadDim),
               .head_stride = kGpuHeadDim},
        .sequences = {.block_table = table.data(),
                      .kv_lengths = &length,
                      .table_stride = 0,
                      .sequences = 1,
                      .max_kv_length = length},
        .softmax_scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim))};
    const kernels::ReferenceOutput result =
        kernels::AttentionReference(problem, kernels::ReferenceArithmetic::kPlain16Bit);
    for (size_t i = 0; i < vectors * kHeadDim; ++i) {
      mixed[i] = static_cast<float>(result.output[i / kHeadDim * kGpuHeadDim + i % kHeadDim]);
    }
    return {};
  }

  [[nodiscard]] Status Copy(uint64_t, uint64_t, uint64_t) override { return {}; }

  static constexpr int32_t kBlocks = 32;
  bool failing = false;

 private:
  [[nodiscard]] size_t Slice(size_t block, size_t layer) const {
    return (block * shape_.layers + layer) * 2 * slice_;
  }

  const ModelShape shape_;
  const size_t slice_;
  std::vector<uint16_t> pool_;
};

class GpuDoubleStore final : public KvStore {
 public:
  explicit GpuDoubleStore(GpuAttention* gpu) : access_(gpu, Reversed()) {}
  [[nodiscard]] CachedTokens cached_tokens() const override { return {}; }
  [[nodiscard]] Result<KvAccess*> Access() override { return &access_; }
  [[nodiscard]] Status Append(Token) override { return {}; }
  [[nodiscard]] Status MarkComputed(uint64_t) override { return access_.status(); }
  [[nodiscard]] Status Finish() override { return {}; }

 private:
  static std::vector<int32_t> Reversed() {
    std::vector<int32_t> table(GpuDouble::kBlocks);
    std::iota(table.rbegin(), table.rend(), 0);
    return table;
  }
  GpuKv access_;
};

class GpuText : public testing::Test {
 protected:
  static constexpr size_t kCount = 40;
  GpuText() : model_(*LoadWeights(KVT_WEIGHTS_PATH), 2) {}

  Generation Generate(std::string_view prompt, GpuAttention* gpu) {
    Generator::OpenStore open;
    if (gpu != nullptr) {
      open = [gpu](std::span<const Token>) { return std::make_unique<GpuDoubleStore>(gpu); };
    }
    return Generator(model_, DenseLayout(model_.shape()), open)
        .Run(TokensOf(prompt), kCount, [](Token) {});
  }

  Model model_;
};

TEST_F(GpuText, IsTheSameInSixteenBits) {
  for (const std::string_view prompt :
       {"In the beginning God created", "\"My dear Jane,\" said Elizabeth,",
        "It is a truth universally acknowledged, that a single man"}) {
    GpuDouble gpu(model_.shape());
    const Generation generation = Generate(prompt, &gpu);
    EXPECT_FALSE(generation.cache_error) << generation.cache_error->ToString();
    EXPECT_EQ(generation.text, Generate(prompt, nullptr).text);
  }
}

TEST_F(GpuText, IsComputedOnTheCpuIfTheGpuFails) {
  GpuDouble gpu(model_.shape());
  gpu.failing = true;
  const Generation generation = Generate("In the beginning", &gpu);
  ASSERT_TRUE(generation.cache_error);
  EXPECT_EQ(generation.cache_error->reason, "kernel_failed");
  EXPECT_EQ(generation.text, Generate("In the beginning", nullptr).text);
}

}  // namespace
}  // namespace kvtier::generate
