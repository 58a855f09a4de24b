// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/kernels/prefill_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

constexpr int kNowhere = 1 << 30;       // a block id that faults when it is used
constexpr int kOutputGap = 8;           // elements between two rows of output
constexpr int kQueryGap = 64;           // and of queries
constexpr uint16_t kPoison16 = 0xFFFF;  // NaN in bf16 and fp16
constexpr double kEpsilon = 2e-4;

struct Errors {
  double square_sum = 0;
  double maximum = 0;
  void Add(double error) {
    square_sum += error * error;
    // A NaN must stick.
    if (!(std::fabs(error) <= maximum)) maximum = std::fabs(error);
  }
};

}  // namespace

PrefillProblem::PrefillProblem(const PrefillSetup& setup, uint32_t seed)
    : setup_(setup), seed_(seed) {
  starts_.push_back(setup.first_query_start);
  for (const PrefillSequence& s : setup.sequences) {
    starts_.push_back(starts_.back() + s.query_tokens);
    lengths_.push_back(s.kv_length);
    pages_ = std::max(pages_, (s.kv_length + setup.page - 1) / setup.page);
  }
  query_tokens_ = starts_.back();
  MakeTable();
  MakeScales();
  MakeCache();
  std::mt19937 random(seed_ + 1);
  std::normal_distribution<float> normal;
  query_.resize(int64_t{query_tokens_} * (setup.q_heads * setup.head_dim + kQueryGap) + 1);
  for (size_t i = 0; i < query_.size(); ++i) {
    StoreElement(query_.data(), setup.query_dtype, static_cast<int64_t>(i), normal(random));
  }
  for (int32_t h = 0; setup.sinks && h < setup.q_heads; ++h) sinks_.push_back(normal(random));
  Upload();
}

int64_t PrefillProblem::SliceElements() const {
  return int64_t{setup_.page} * setup_.kv_heads * setup_.head_dim;
}

int64_t PrefillProblem::OutputStride() const {
  return int64_t{setup_.q_heads} * setup_.head_dim + kOutputGap;
}

void PrefillProblem::MakeTable() {
  const auto sequences = static_cast<int32_t>(setup_.sequences.size());
  blocks_ = sequences * pages_ + 2;
  std::vector<int32_t> ids(blocks_);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed_));
  table_.assign(int64_t{sequences} * pages_, kNowhere);
  for (int32_t s = 0; s < sequences; ++s) {
    const int32_t used = (lengths_[s] + setup_.page - 1) / setup_.page;
    for (int32_t i = 0; i < used; ++i) {
      table_[s * pages_ + i] = ids[s * pages_ + (setup_.repeated_blocks ? 0 : i)];
    }
  }
}

void PrefillProblem::MakeScales() {
  if (setup_.scales == PrefillScales::kNone) return;
  std::mt19937 random(seed_ + 2);
  std::uniform_real_distribution<float> uniform(0.5F, 1.5F);
  const int64_t rows = int64_t{blocks_} * setup_.page;
  scales_.assign(2 * rows * setup_.kv_heads, std::numeric_limits<float>::quiet_NaN());
  if (setup_.scales == PrefillScales::kPerTensor || setup_.scales == PrefillScales::kPerHead) {
    for (float& scale : scales_) scale = uniform(random);
    return;
  }
  for (size_t s = 0; s < lengths_.size(); ++s) {
    for (int32_t t = 0; t < lengths_[s]; ++t) {
      const int64_t row =
          int64_t{table_[s * pages_ + t / setup_.page]} * setup_.page + t % setup_.page;
      for (int32_t h = 0; h < setup_.kv_heads; ++h) {
        scales_[row * setup_.kv_heads + h] = uniform(random);
        scales_[(rows + row) * setup_.kv_heads + h] = uniform(random);
      }
    }
  }
}

RowLayout PrefillProblem::Rows() const {
  return RowLayout::Of(setup_.rows, setup_.page, setup_.kv_heads, setup_.head_dim);
}

int64_t PrefillProblem::ElementAt(int32_t block, int value, int32_t token, int32_t head) const {
  return block * BlockElements() + 2 * SliceElements() + Rows().At(value, token, head);
}

void PrefillProblem::MakeCache() {
  std::mt19937 random(seed_ + 3);
  std::normal_distribution<float> normal;
  cache_.assign(blocks_ * BlockElements() * ElementBytes(setup_.kv_dtype), 0xFF);
  for (size_t s = 0; s < lengths_.size(); ++s) {
    for (int32_t t = 0; t < lengths_[s]; ++t) {
      const int32_t block = table_[s * pages_ + t / setup_.page];
      for (int32_t h = 0; h < 2 * setup_.kv_heads; ++h) {
        const int64_t at = ElementAt(block, h % 2, t % setup_.page, h / 2);
        const float growth = (setup_.last_key_size - 1) * static_cast<float>(t + 1) /
                             static_cast<float>(lengths_[s]);
        const float size = h % 2 == 0 ? 1 + growth : 1;
        for (int32_t d = 0; d < setup_.head_dim; ++d) {
          StoreElement(cache_.data(), setup_.kv_dtype, at + d, size * normal(random));
        }
      }
    }
  }
}

void PrefillProblem::Upload() {
  const size_t element = ElementBytes(setup_.kv_dtype);
  const int64_t stride =
      setup_.device_block_stride != 0 ? setup_.device_block_stride : BlockElements();
  device_cache_ = std::make_unique<DeviceArray<uint8_t>>(blocks_ * stride * element);
  const int64_t block_bytes = BlockElements() * static_cast<int64_t>(element);
  for (int32_t block = 0; block < blocks_; ++block) {
    EXPECT_EQ(cudaMemcpy(device_cache_->get() + block * stride * static_cast<int64_t>(element),
                         cache_.data() + block * block_bytes, block_bytes, cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  device_starts_ = std::make_unique<DeviceArray<int32_t>>(starts_);
  device_lengths_ = std::make_unique<DeviceArray<int32_t>>(lengths_);
  device_table_ = std::make_unique<DeviceArray<int32_t>>(table_);
  device_query_ = std::make_unique<DeviceArray<uint16_t>>(query_);
  device_scales_ = std::make_unique<DeviceArray<float>>(scales_);
  device_sinks_ = std::make_unique<DeviceArray<float>>(sinks_);
  device_output_ = std::make_unique<DeviceArray<uint16_t>>(query_tokens_ * OutputStride());
  device_lse_ = std::make_unique<DeviceArray<float>>(int64_t{query_tokens_} * setup_.q_heads);

  const ReferenceAttention host = Reference();
  params_.query = device_query_->get();
  params_.output = device_output_->get();
  params_.lse = device_lse_->get();
  params_.query_dtype = setup_.query_dtype;
  params_.q_heads = setup_.q_heads;
  params_.query_token_stride = host.query_token_stride;
  params_.query_head_stride = host.query_head_stride;
  params_.output_token_stride = OutputStride();
  params_.output_head_stride = setup_.head_dim;
  params_.kv = host.kv;
  params_.kv.key = device_cache_->get() + 2 * SliceElements() * element;
  params_.kv.value = device_cache_->get() + (2 * SliceElements() + Rows().value_offset) * element;
  params_.kv.block_stride = stride;
  if (setup_.scales != PrefillScales::kNone) {
    params_.kv.value_scales.values = device_scales_->get() + scales_.size() / 2;
  }
  if (host.kv.key_scales.values != nullptr) {
    params_.kv.key_scales.values = device_scales_->get();
  }
  params_.sequences = host.sequences;
  params_.sequences.block_table = device_table_->get();
  params_.sequences.kv_lengths = device_lengths_->get();
  params_.query_starts = device_starts_->get();
  params_.query_tokens = query_tokens_;
  params_.softmax_scale = host.softmax_scale;
  params_.soft_cap = setup_.soft_cap;
  params_.window_tokens = setup_.window_tokens;
  params_.causal = setup_.causal ? 1 : 0;
  params_.sinks = setup_.sinks ? device_sinks_->get() : nullptr;
  params_.splits = setup_.splits;
  workspace_bytes_ = kvt_prefill_workspace_bytes(&params_);
  EXPECT_GT(workspace_bytes_, 0U);
  workspace_ = std::make_unique<DeviceArray<uint8_t>>(workspace_bytes_);
  workspace_->Fill(0);
}

ReferenceAttention PrefillProblem::Reference() const {
  ReferenceAttention r;
  r.query = query_.data();
  r.query_dtype = setup_.query_dtype;
  r.q_heads = setup_.q_heads;
  r.query_token_stride = int64_t{setup_.q_heads} * setup_.head_dim + kQueryGap;
  r.query_head_stride = setup_.head_dim;
  r.query_starts = starts_.data();
  r.kv.dtype = setup_.kv_dtype;
  auto* cache = const_cast<uint8_t*>(cache_.data());
  r.kv.key = cache + 2 * SliceElements() * ElementBytes(setup_.kv_dtype);
  r.kv.value = cache + (2 * SliceElements() + Rows().value_offset) * ElementBytes(setup_.kv_dtype);
  r.kv.kv_heads = setup_.kv_heads;
  r.kv.head_dim = setup_.head_dim;
  r.kv.page_tokens = setup_.page;
  r.kv.block_stride = BlockElements();
  r.kv.token_stride = Rows().token_stride;
  r.kv.head_stride = Rows().head_stride;
  if (setup_.scales != PrefillScales::kNone) {
    const bool along_tokens =
        setup_.scales == PrefillScales::kPerToken || setup_.scales == PrefillScales::kOnlyOfValues;
    const int64_t token = along_tokens ? setup_.kv_heads : 0;
    const int64_t head = setup_.scales == PrefillScales::kPerTensor ? 0 : 1;
    r.kv.key_scales = {scales_.data(), setup_.page * token, token, head};
    r.kv.value_scales = {scales_.data() + scales_.size() / 2, setup_.page * token, token, head};
    if (setup_.scales == PrefillScales::kOnlyOfValues) r.kv.key_scales = {};
  }
  r.sequences.block_table = table_.data();
  r.sequences.kv_lengths = lengths_.data();
  r.sequences.table_stride = pages_;
  r.sequences.sequences = static_cast<int32_t>(lengths_.size());
  r.sequences.max_kv_length = pages_ * setup_.page;
  r.softmax_scale = 1.0F / std::sqrt(static_cast<float>(setup_.head_dim));
  r.soft_cap = setup_.soft_cap;
  r.window_tokens = setup_.window_tokens;
  r.sinks = setup_.sinks ? sinks_.data() : nullptr;
  return r;
}

void PrefillProblem::Queue(cudaStream_t stream) {
  EXPECT_EQ(kvt_prefill(&params_, workspace_->get(), workspace_bytes_, stream), KVT_KERNEL_OK);
}

void PrefillProblem::PoisonOutput() {
  device_output_->Fill(0xFF);
  device_lse_->Fill(0xFF);
}

PrefillResult PrefillProblem::Read() const { return {device_output_->Get(), device_lse_->Get()}; }

PrefillResult PrefillProblem::Run() {
  PoisonOutput();
  Queue(nullptr);
  return Read();
}

void PrefillProblem::SetSequences(const std::vector<PrefillSequence>& sequences) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    starts_[s + 1] = starts_[s] + sequences[s].query_tokens;
    lengths_[s] = sequences[s].kv_length;
  }
  device_starts_->Set(starts_);
  device_lengths_->Set(lengths_);
}

void PrefillProblem::ExpectRight(const PrefillResult& result) const {
  const ReferenceAttention reference = Reference();
  const ReferenceOutput exact = AttentionReference(reference);
  const ReferenceOutput plain = AttentionReference(reference, ReferenceArithmetic::kPlain16Bit);
  const int64_t row_elements = int64_t{setup_.q_heads} * setup_.head_dim;
  Errors kernel_errors, plain_errors;
  int64_t wild_writes = 0, wrong_lses = 0;
  for (int64_t i = 0; i < query_tokens_ * OutputStride(); ++i) {
    const int64_t row = i / OutputStride(), column = i % OutputStride();
    if (row < starts_.front() || row >= starts_.back() || column >= row_elements) {
      wild_writes += result.output[i] != kPoison16;
      continue;
    }
    const double truth = exact.output[row * row_elements + column];
    kernel_errors.Add(LoadElement(result.output.data(), setup_.query_dtype, i) - truth);
    plain_errors.Add(plain.output[row * row_elements + column] - truth);
  }
  for (int64_t i = 0; i < int64_t{starts_.back()} * setup_.q_heads; ++i) {
    if (i < int64_t{starts_.front()} * setup_.q_heads) {
      wild_writes += !std::isnan(result.lse[i]);
      continue;
    }
    const double truth = exact.lse[i];
    const bool right =
        std::isinf(truth) ? result.lse[i] == truth : std::fabs(result.lse[i] - truth) < 2e-3;
    wrong_lses += !right;
  }
  EXPECT_EQ(wild_writes, 0);
  EXPECT_EQ(wrong_lses, 0);
  const double count =
      std::max<double>(1, (starts_.back() - starts_.front()) * static_cast<double>(row_elements));
  EXPECT_LE(kernel_errors.maximum, 2 * plain_errors.maximum + 5 * kEpsilon);
  EXPECT_LE(std::sqrt(kernel_errors.square_sum / count),
            2 * std::sqrt(plain_errors.square_sum / count) + kEpsilon);
}

}  // namespace kvtier::kernels
