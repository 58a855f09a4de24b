// SPDX-License-Identifier: Apache-2.0
#include "decode_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

constexpr int kLayers = 2;
constexpr int kUsedLayer = 1;
constexpr int32_t kForbiddenBlock = 1 << 30;
constexpr int kSpareBlocks = 3;
constexpr int kRowGap = 64;             // elements between two sequences' queries, and outputs
constexpr int kLseBehind = 8;           // that must stay as they were
constexpr uint16_t kPoison16 = 0xFFFF;  // NaN in bf16 and fp16
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// The error that a row may have beyond twice a plain implementation's, relative to the row.
constexpr double kEpsilon = 1e-3;
constexpr double kLseTolerance = 2e-3;

void Require(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

double Norm(const double* a, const double* b, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    const double difference = a[i] - (b != nullptr ? b[i] : 0);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) Require(cudaMalloc(&data_, bytes));
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }
void DeviceBuffer::Fill(int byte) { Require(cudaMemset(data_, byte, bytes_)); }
void DeviceBuffer::CopyFrom(const void* host, size_t bytes) {
  Require(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice));
}
void DeviceBuffer::CopyTo(void* host, size_t bytes) const {
  Require(cudaMemcpy(host, data_, bytes, cudaMemcpyDeviceToHost));
}

DecodeProblem::DecodeProblem(const DecodeSetup& setup) : setup_(setup) {
  MakeTable();
  MakeCache();
  MakeScales();
  Upload();
  FillParams();
  workspace_.emplace(kvt_decode_workspace_bytes(&params_));
  workspace_->Fill(0);
}

int DecodeProblem::MaxLength() const {
  const int longest = *std::max_element(setup_.lengths.begin(), setup_.lengths.end());
  return std::max({longest, setup_.max_length, 1});
}

// The elements of keys, or of values, of one layer of one block.
int64_t DecodeProblem::LayerElements() const {
  return int64_t{setup_.page} * setup_.kv_heads * setup_.head_dim;
}
RowLayout DecodeProblem::Rows() const {
  return RowLayout::Of(setup_.rows, setup_.page, setup_.kv_heads, setup_.head_dim);
}
int64_t DecodeProblem::HostBlockStride() const { return kLayers * 2 * LayerElements(); }
int64_t DecodeProblem::DeviceBlockStride() const {
  return setup_.device_block_stride > 0 ? setup_.device_block_stride : HostBlockStride();
}

int64_t DecodeProblem::RowStride() const {
  return int64_t{setup_.q_heads} * setup_.head_dim + kRowGap;
}

void DecodeProblem::MakeTable() {
  const int sequences = static_cast<int>(setup_.lengths.size());
  pages_ = (MaxLength() + setup_.page - 1) / setup_.page;
  table_.assign(static_cast<size_t>(sequences) * pages_, kForbiddenBlock);
  blocks_ = sequences * pages_ + kSpareBlocks;
  std::vector<int32_t> order(blocks_);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(setup_.seed));
  for (int s = 0; s < sequences; ++s) {
    const int length = setup_.max_length > 0 ? setup_.max_length : setup_.lengths[s];
    const int begin = setup_.window_tokens > 0 && setup_.max_length == 0
                          ? std::max(0, length - setup_.window_tokens)
                          : 0;
    for (int p = begin / setup_.page; p * setup_.page < length; ++p) {
      const int first = setup_.shared_by > 0 ? s - s % setup_.shared_by : 0;
      const int owner = p * setup_.page < setup_.shared_tokens ? first : s;
      table_[s * pages_ + p] = order[owner * pages_ + (setup_.repeated_blocks ? 0 : p)];
    }
  }
}

void DecodeProblem::FillToken(int block, int in_page) {
  std::normal_distribution<float> normal;
  for (int part = 0; part < 2; ++part) {
    for (int head = 0; head < setup_.kv_heads; ++head) {
      const int64_t at = block * HostBlockStride() + kUsedLayer * 2 * LayerElements() +
                         Rows().At(part, in_page, head);
      for (int d = 0; d < setup_.head_dim; ++d) {
        StoreElement(cache_.data(), setup_.kv_dtype, at + d, normal(generator_));
      }
    }
  }
}

void DecodeProblem::MakeCache() {
  generator_.seed(setup_.seed + 1);
  cache_.resize(blocks_ * HostBlockStride() * ElementBytes(setup_.kv_dtype));
  for (int64_t i = 0; i < blocks_ * HostBlockStride(); ++i) {
    StoreElement(cache_.data(), setup_.kv_dtype, i, kNan);
  }
  const int sequences = static_cast<int>(setup_.lengths.size());
  for (int s = 0; s < sequences; ++s) {
    const int end = setup_.max_length > 0 ? setup_.max_length : setup_.lengths[s];
    const int begin = setup_.window_tokens > 0 && setup_.max_length == 0
                          ? std::max(0, end - setup_.window_tokens)
                          : 0;
    for (int t = begin; t < end; ++t) {
      FillToken(table_[s * pages_ + t / setup_.page], t % setup_.page);
    }
  }
  std::normal_distribution<float> normal;
  const int64_t elements = sequences * RowStride();
  query_.resize(elements * 2);
  for (int64_t i = 0; i < elements; ++i) {
    const bool gap = i % RowStride() >= RowStride() - kRowGap;
    // Sharper than N(0, 1): some tokens must stand out, as they do in practice.
    StoreElement(query_.data(), setup_.query_dtype, i, gap ? kNan : 2.0F * normal(generator_));
  }
  if (setup_.sinks) {
    for (int h = 0; h < setup_.q_heads; ++h) sinks_.push_back(3.0F * normal(generator_));
  }
}

void DecodeProblem::MakeScales() {
  size_t count = 0;
  if (setup_.scales == ScaleKind::kPerTensor) count = 1;
  if (setup_.scales == ScaleKind::kPerHead) count = setup_.kv_heads;
  if (setup_.scales == ScaleKind::kPerToken) {
    count = static_cast<size_t>(blocks_) * setup_.page * setup_.kv_heads;
  }
  std::uniform_real_distribution<float> uniform(0.25F, 1.5F);
  // Keys' scales, then values'.
  for (size_t i = 0; i < 2 * count; ++i) scales_.push_back(uniform(generator_));
}

kvt_paged_kv DecodeProblem::Cache(uint8_t* base, int64_t block_stride, const float* scales) const {
  const int64_t element = static_cast<int64_t>(ElementBytes(setup_.kv_dtype));
  kvt_paged_kv kv = {};
  kv.key = base + kUsedLayer * 2 * LayerElements() * element;
  kv.value = base + (kUsedLayer * 2 * LayerElements() + Rows().value_offset) * element;
  kv.dtype = setup_.kv_dtype;
  kv.kv_heads = setup_.kv_heads;
  kv.head_dim = setup_.head_dim;
  kv.page_tokens = setup_.page;
  kv.block_stride = block_stride;
  kv.token_stride = Rows().token_stride;
  kv.head_stride = Rows().head_stride;
  if (setup_.scales != ScaleKind::kNone) {
    const bool by_token = setup_.scales == ScaleKind::kPerToken;
    kv.key_scales = {.values = scales,
                     .block_stride = by_token ? int64_t{setup_.page} * setup_.kv_heads : 0,
                     .token_stride = by_token ? setup_.kv_heads : 0,
                     .head_stride = setup_.scales == ScaleKind::kPerTensor ? 0 : 1};
    kv.value_scales = kv.key_scales;
    kv.value_scales.values = scales + scales_.size() / 2;
  }
  return kv;
}

void DecodeProblem::Upload() {
  const size_t rows = setup_.lengths.size() * setup_.q_heads;
  device_query_.emplace(query_.size());
  device_output_.emplace(query_.size());
  device_lse_.emplace((rows + kLseBehind) * sizeof(float));
  device_lengths_.emplace(setup_.lengths.size() * sizeof(int32_t));
  device_table_.emplace(table_.size() * sizeof(int32_t));
  device_sinks_.emplace(sinks_.size() * sizeof(float));
  device_scales_.emplace(scales_.size() * sizeof(float));
  device_query_->CopyFrom(query_.data(), query_.size());
  device_lengths_->CopyFrom(setup_.lengths.data(), device_lengths_->bytes());
  device_table_->CopyFrom(table_.data(), device_table_->bytes());
  device_sinks_->CopyFrom(sinks_.data(), device_sinks_->bytes());
  device_scales_->CopyFrom(scales_.data(), device_scales_->bytes());
  const size_t element = ElementBytes(setup_.kv_dtype);
  device_cache_.emplace(blocks_ * DeviceBlockStride() * element);
  Require(cudaMemcpy2D(device_cache_->get(), DeviceBlockStride() * element, cache_.data(),
                       HostBlockStride() * element, HostBlockStride() * element, blocks_,
                       cudaMemcpyHostToDevice));
}

void DecodeProblem::FillParams() {
  params_.query = device_query_->get();
  params_.output = device_output_->get();
  params_.lse = device_lse_->get<float>();
  params_.query_dtype = setup_.query_dtype;
  params_.q_heads = setup_.q_heads;
  params_.query_head_stride = params_.output_head_stride = setup_.head_dim;
  params_.query_sequence_stride = params_.output_sequence_stride = RowStride();
  params_.kv =
      Cache(device_cache_->get<uint8_t>(), DeviceBlockStride(), device_scales_->get<float>());
  params_.sequences = {.block_table = device_table_->get<int32_t>(),
                       .kv_lengths = device_lengths_->get<int32_t>(),
                       .table_stride = pages_,
                       .sequences = static_cast<int32_t>(setup_.lengths.size()),
                       .max_kv_length = MaxLength()};
  params_.softmax_scale = 1.0F / std::sqrt(static_cast<float>(setup_.head_dim));
  params_.soft_cap = setup_.soft_cap;
  params_.window_tokens = setup_.window_tokens;
  params_.sinks = setup_.sinks ? device_sinks_->get<float>() : nullptr;
  params_.split_tokens = setup_.split_tokens;
}

ReferenceAttention DecodeProblem::Reference() const {
  ReferenceAttention attention;
  attention.query = query_.data();
  attention.query_dtype = setup_.query_dtype;
  attention.q_heads = setup_.q_heads;
  attention.query_token_stride = RowStride();
  attention.query_head_stride = setup_.head_dim;
  attention.kv = Cache(const_cast<uint8_t*>(cache_.data()), HostBlockStride(), scales_.data());
  attention.sequences = {.block_table = table_.data(),
                         .kv_lengths = setup_.lengths.data(),
                         .table_stride = pages_,
                         .sequences = static_cast<int32_t>(setup_.lengths.size()),
                         .max_kv_length = MaxLength()};
  attention.softmax_scale = params_.softmax_scale;
  attention.soft_cap = setup_.soft_cap;
  attention.window_tokens = setup_.window_tokens;
  attention.sinks = setup_.sinks ? sinks_.data() : nullptr;
  return attention;
}

void DecodeProblem::PoisonOutput() {
  device_output_->Fill(0xFF);
  device_lse_->Fill(0xFF);
}

DecodeResult DecodeProblem::ReadResult() const {
  DecodeResult result;
  std::vector<uint16_t> rows(query_.size() / 2);
  device_output_->CopyTo(rows.data(), query_.size());
  int wild_writes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int64_t>(i) % RowStride() < RowStride() - kRowGap) {
      result.bits.push_back(rows[i]);
    } else {
      wild_writes += rows[i] != kPoison16;
    }
  }
  result.lse.resize(setup_.lengths.size() * setup_.q_heads + kLseBehind);
  device_lse_->CopyTo(result.lse.data(), device_lse_->bytes());
  for (int i = 0; i < kLseBehind; ++i, result.lse.pop_back()) {
    wild_writes += !std::isnan(result.lse.back());
  }
  EXPECT_EQ(wild_writes, 0) << "written outside of the rows";
  return result;
}

DecodeResult DecodeProblem::Run() {
  PoisonOutput();
  EXPECT_EQ(kvt_decode(&params_, workspace_->get(), workspace_->bytes(), nullptr), KVT_KERNEL_OK);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return ReadResult();
}

void DecodeProblem::SetLengths(const std::vector<int32_t>& lengths) {
  setup_.lengths = lengths;
  device_lengths_->CopyFrom(lengths.data(), device_lengths_->bytes());
}

void DecodeProblem::ExpectRight(const DecodeResult& result) const {
  const ReferenceOutput exact = AttentionReference(Reference());
  const ReferenceOutput plain = AttentionReference(Reference(), ReferenceArithmetic::kPlain16Bit);
  const int dim = setup_.head_dim;
  std::vector<double> row(dim);
  for (size_t i = 0; i < exact.lse.size(); ++i) {
    for (int d = 0; d < dim; ++d) {
      row[d] =
          LoadElement(result.bits.data(), setup_.query_dtype, static_cast<int64_t>(i) * dim + d);
    }
    const double* const expected = &exact.output[i * dim];
    const double allowed =
        2 * Norm(&plain.output[i * dim], expected, dim) + kEpsilon * Norm(expected, nullptr, dim);
    const auto where = [&] {
      return "sequence " + std::to_string(i / setup_.q_heads) + " of length " +
             std::to_string(setup_.lengths[i / setup_.q_heads]) + ", head " +
             std::to_string(i % setup_.q_heads);
    };
    // Not EXPECT_LE: NaN must fail.
    ASSERT_TRUE(Norm(row.data(), expected, dim) <= allowed)
        << where() << ": off by " << Norm(row.data(), expected, dim) << ", allowed " << allowed;
    if (std::isinf(exact.lse[i])) {
      ASSERT_EQ(result.lse[i], exact.lse[i]) << where();
    } else {
      ASSERT_NEAR(result.lse[i], exact.lse[i], kLseTolerance) << where();
    }
  }
}

double DecodeProblem::ErrorBesidePlain(const DecodeResult& result) const {
  const ReferenceOutput exact = AttentionReference(Reference());
  const ReferenceOutput plain = AttentionReference(Reference(), ReferenceArithmetic::kPlain16Bit);
  double squares = 0, plain_squares = 0;
  for (size_t i = 0; i < exact.output.size(); ++i) {
    const double value =
        LoadElement(result.bits.data(), setup_.query_dtype, static_cast<int64_t>(i));
    squares += (value - exact.output[i]) * (value - exact.output[i]);
    plain_squares += (plain.output[i] - exact.output[i]) * (plain.output[i] - exact.output[i]);
  }
  return std::sqrt(squares / plain_squares);
}

}  // namespace kvtier::kernels
