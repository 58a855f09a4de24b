// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/kernels/mla_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

constexpr int32_t kForbiddenBlock = 1 << 30;
constexpr int32_t kSpareBlocks = 3;
constexpr int kDim = KVT_MLA_QUERY_DIM;
constexpr int kValueDim = KVT_MLA_LATENT_DIM;
constexpr uint16_t kPoison = 0xFFFF;
constexpr float kUsualScale = 0.0625F;
// The error that a row may have beyond twice a plain implementation's, relative to the row.
constexpr double kEpsilon = 1e-3;
constexpr double kLseTolerance = 2e-3;

}  // namespace

MlaProblem::MlaProblem(const MlaSetup& setup) : setup_(setup) {
  MakeTable();
  MakeContents();
  Upload();
  workspace_bytes_ = kvt_mla_decode_workspace_bytes(&params_);
  EXPECT_GT(workspace_bytes_, 0U);
  workspace_ = std::make_unique<DeviceArray<uint8_t>>(workspace_bytes_);
  workspace_->Fill(0);
}

int32_t MlaProblem::MaxLength() const {
  const int32_t longest = *std::max_element(setup_.lengths.begin(), setup_.lengths.end());
  return std::max({longest, setup_.max_length, 1});
}

int64_t MlaProblem::LayerElements() const { return int64_t{setup_.page} * kDim; }

void MlaProblem::MakeTable() {
  const auto sequences = static_cast<int32_t>(setup_.lengths.size());
  pages_ = (MaxLength() + setup_.page - 1) / setup_.page;
  blocks_ = sequences * pages_ + kSpareBlocks;
  table_.assign(static_cast<size_t>(sequences) * pages_, kForbiddenBlock);
  std::vector<int32_t> order(blocks_);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  for (int32_t s = 0; s < sequences; ++s) {
    const int32_t length = setup_.max_length > 0 ? setup_.max_length : setup_.lengths[s];
    for (int32_t p = 0; p * setup_.page < length; ++p) {
      table_[s * pages_ + p] = order[s * pages_ + p];
    }
  }
}

void MlaProblem::MakeContents() {
  std::mt19937_64 generator(2);
  std::normal_distribution<float> normal;
  const int64_t elements = blocks_ * BlockElements();
  cache_.resize(elements * ElementBytes(LatentType()));
  for (int64_t i = 0; i < elements; ++i) {
    StoreElement(cache_.data(), LatentType(), i, std::numeric_limits<float>::quiet_NaN());
  }
  MakeScales(generator);
  const float stored = setup_.scales == LatentScales::kNone ? 1.0F : 1.0F / kUsualScale;
  for (size_t s = 0; s < setup_.lengths.size(); ++s) {
    const int32_t length = setup_.max_length > 0 ? setup_.max_length : setup_.lengths[s];
    for (int32_t t = 0; t < length; ++t) {
      const int64_t at = table_[s * pages_ + t / setup_.page] * BlockElements() + LayerElements() +
                         int64_t{t % setup_.page} * kDim;
      for (int d = 0; d < kDim; ++d) {
        StoreElement(cache_.data(), LatentType(), at + d, stored * normal(generator));
      }
    }
  }
  query_.resize(setup_.lengths.size() * setup_.q_heads * kDim);
  for (size_t i = 0; i < query_.size(); ++i) {
    // Sharper than N(0, 1): some tokens must stand out, as they do in practice.
    StoreElement(query_.data(), setup_.dtype, static_cast<int64_t>(i), 2.0F * normal(generator));
  }
}

// Around kUsualScale; those of blocks that no sequence uses are NaN.
void MlaProblem::MakeScales(std::mt19937_64& generator) {
  if (setup_.scales == LatentScales::kPerTensor) scales_ = {kUsualScale};
  if (setup_.scales != LatentScales::kPerToken) return;
  scales_.assign(int64_t{blocks_} * setup_.page, std::numeric_limits<float>::quiet_NaN());
  std::uniform_real_distribution<float> around(0.5F * kUsualScale, 1.5F * kUsualScale);
  for (const int32_t block : table_) {
    if (block == kForbiddenBlock) continue;
    float* const first = &scales_[int64_t{block} * setup_.page];
    std::generate(first, first + setup_.page, [&] { return around(generator); });
  }
}

kvt_scales MlaProblem::ScalesAt(const float* values) const {
  if (setup_.scales == LatentScales::kNone) return {};
  if (setup_.scales == LatentScales::kPerTensor) return {values, 0, 0, 0};
  return {values, setup_.page, 1, 0};
}

void MlaProblem::Upload() {
  const auto sequences = static_cast<int64_t>(setup_.lengths.size());
  const int64_t block_stride =
      setup_.device_block_stride > 0 ? setup_.device_block_stride : BlockElements();
  device_table_ = std::make_unique<DeviceArray<int32_t>>(table_);
  device_lengths_ = std::make_unique<DeviceArray<int32_t>>(setup_.lengths);
  device_query_ = std::make_unique<DeviceArray<uint16_t>>(query_);
  device_output_ =
      std::make_unique<DeviceArray<uint16_t>>(sequences * (setup_.q_heads + 1) * kValueDim);
  device_lse_ = std::make_unique<DeviceArray<float>>(sequences * setup_.q_heads);
  const auto element = static_cast<int64_t>(ElementBytes(LatentType()));
  const int64_t block_bytes = BlockElements() * element;
  device_cache_ = std::make_unique<DeviceArray<uint8_t>>(blocks_ * block_stride * element);
  EXPECT_EQ(cudaMemcpy2D(device_cache_->get(), block_stride * element, cache_.data(), block_bytes,
                         block_bytes, blocks_, cudaMemcpyHostToDevice),
            cudaSuccess);
  device_scales_ = std::make_unique<DeviceArray<float>>(scales_);
  params_.query = device_query_->get();
  params_.output = device_output_->get();
  params_.lse = device_lse_->get();
  params_.dtype = setup_.dtype;
  params_.q_heads = setup_.q_heads;
  params_.query_head_stride = kDim;
  params_.query_sequence_stride = int64_t{setup_.q_heads} * kDim;
  params_.output_head_stride = kValueDim;
  params_.output_sequence_stride = int64_t{setup_.q_heads + 1} * kValueDim;
  params_.latent = device_cache_->get() + LayerElements() * element;
  params_.latent_dtype = LatentType();
  params_.latent_scales = ScalesAt(device_scales_->get());
  params_.block_stride = block_stride;
  params_.token_stride = kDim;
  params_.page_tokens = setup_.page;
  params_.sequences = {.block_table = device_table_->get(),
                       .kv_lengths = device_lengths_->get(),
                       .table_stride = pages_,
                       .sequences = static_cast<int32_t>(sequences),
                       .max_kv_length = MaxLength()};
  params_.softmax_scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  params_.split_tokens = setup_.split_tokens;
}

ReferenceAttention MlaProblem::Reference() const {
  ReferenceAttention attention;
  attention.query = query_.data();
  attention.query_dtype = setup_.dtype;
  attention.q_heads = setup_.q_heads;
  attention.query_token_stride = int64_t{setup_.q_heads} * kDim;
  attention.query_head_stride = kDim;
  attention.kv.key = const_cast<uint8_t*>(cache_.data()) +
                     LayerElements() * static_cast<int64_t>(ElementBytes(LatentType()));
  attention.kv.value = attention.kv.key;
  attention.kv.dtype = LatentType();
  attention.kv.key_scales = attention.kv.value_scales = ScalesAt(scales_.data());
  attention.kv.kv_heads = 1;
  attention.kv.head_dim = kDim;
  attention.kv.page_tokens = setup_.page;
  attention.kv.block_stride = BlockElements();
  attention.kv.token_stride = kDim;
  attention.kv.head_stride = kDim;
  attention.value_dim = kValueDim;
  attention.sequences = {.block_table = table_.data(),
                         .kv_lengths = setup_.lengths.data(),
                         .table_stride = pages_,
                         .sequences = static_cast<int32_t>(setup_.lengths.size()),
                         .max_kv_length = MaxLength()};
  attention.softmax_scale = params_.softmax_scale;
  return attention;
}

void MlaProblem::Queue(cudaStream_t stream) {
  EXPECT_EQ(kvt_mla_decode(&params_, workspace_->get(), workspace_bytes_, stream), KVT_KERNEL_OK);
}

void MlaProblem::PoisonOutput() {
  device_output_->Fill(0xFF);
  device_lse_->Fill(0xFF);
}

MlaResult MlaProblem::Read() const { return {device_output_->Get(), device_lse_->Get()}; }

MlaResult MlaProblem::Run() {
  PoisonOutput();
  Queue(nullptr);
  return Read();
}

void MlaProblem::SetLengths(const std::vector<int32_t>& lengths) {
  setup_.lengths = lengths;
  device_lengths_->Set(lengths);
}

void MlaProblem::ExpectRight(const MlaResult& result) const {
  const ReferenceOutput exact = AttentionReference(Reference());
  const ReferenceOutput plain = AttentionReference(Reference(), ReferenceArithmetic::kPlain16Bit);
  const auto heads = static_cast<size_t>(setup_.q_heads);
  for (size_t i = 0; i < exact.lse.size(); ++i) {
    const size_t row = i / heads * (heads + 1) + i % heads;
    double error = 0, plain_error = 0, norm = 0;
    for (size_t d = 0; d < kValueDim; ++d) {
      const double expected = exact.output[i * kValueDim + d];
      const double value = LoadElement(result.output.data(), setup_.dtype,
                                       static_cast<int64_t>(row * kValueDim + d));
      error += (value - expected) * (value - expected);
      plain_error += std::pow(plain.output[i * kValueDim + d] - expected, 2);
      norm += expected * expected;
    }
    const double allowed = 2 * std::sqrt(plain_error) + kEpsilon * std::sqrt(norm);
    // Not EXPECT_LE: NaN must fail.
    ASSERT_TRUE(std::sqrt(error) <= allowed)
        << "sequence " << i / heads << " of length " << setup_.lengths[i / heads] << ", head "
        << i % heads << ": off by " << std::sqrt(error) << ", allowed " << allowed;
    if (std::isinf(exact.lse[i])) {
      ASSERT_EQ(result.lse[i], exact.lse[i]) << "sequence " << i / heads;
    } else {
      ASSERT_NEAR(result.lse[i], exact.lse[i], kLseTolerance) << "sequence " << i / heads;
    }
  }
  for (size_t s = 0; s < setup_.lengths.size(); ++s) {
    const auto begin = result.output.begin() + (s * (heads + 1) + heads) * kValueDim;
    ASSERT_TRUE(std::all_of(begin, begin + kValueDim, [](uint16_t v) { return v == kPoison; }))
        << "behind sequence " << s;
  }
}

}  // namespace kvtier::kernels
