// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

// The keys and values that one KV head of one sequence shows to its queries, as numbers.
template <typename Real>
struct HeadCache {
  std::vector<Real> keys;    // [tokens, head_dim]
  std::vector<Real> values;  // [tokens, value_dim]
};

int ValueDim(const ReferenceAttention& attention) {
  return attention.value_dim > 0 ? attention.value_dim : attention.kv.head_dim;
}

float Scale(const kvt_scales& scales, int64_t block, int64_t token, int64_t head) {
  if (scales.values == nullptr) return 1.0F;
  return scales.values[block * scales.block_stride + token * scales.token_stride +
                       head * scales.head_stride];
}

// Tokens before `first` are left 0: no query sees them, and their blocks may be gone.
template <typename Real>
HeadCache<Real> GatherHead(const ReferenceAttention& attention, int sequence, int head, int first) {
  const kvt_paged_kv& kv = attention.kv;
  const int length = attention.sequences.kv_lengths[sequence];
  const int32_t* const table =
      attention.sequences.block_table + sequence * attention.sequences.table_stride;
  HeadCache<Real> cache;
  cache.keys.resize(static_cast<size_t>(length) * kv.head_dim);
  const int value_dim = ValueDim(attention);
  cache.values.resize(static_cast<size_t>(length) * value_dim);
  for (int position = first; position < length; ++position) {
    const int64_t block = table[position / kv.page_tokens];
    const int64_t token = position % kv.page_tokens;
    const int64_t row = block * kv.block_stride + token * kv.token_stride + head * kv.head_stride;
    const float key_scale = Scale(kv.key_scales, block, token, head);
    const float value_scale = Scale(kv.value_scales, block, token, head);
    Real* const key = &cache.keys[int64_t{position} * kv.head_dim];
    for (int d = 0; d < kv.head_dim; ++d) {
      key[d] = Real{LoadElement(kv.key, kv.dtype, row + d)} * key_scale;
    }
    Real* const value = &cache.values[int64_t{position} * value_dim];
    for (int d = 0; d < value_dim; ++d) {
      value[d] = Real{LoadElement(kv.value, kv.dtype, row + d)} * value_scale;
    }
  }
  return cache;
}

struct KeyRange {
  int begin;
  int end;
};

// Row `row` of `rows` queries at the end of a sequence.
KeyRange SeenKeys(const ReferenceAttention& attention, int length, int row, int rows) {
  const int end = std::max(0, length - rows + row + 1);
  const int begin = attention.window_tokens > 0 ? std::max(0, end - attention.window_tokens) : 0;
  return {std::min(begin, length), std::min(end, length)};
}

// One query row of one head: writes value_dim numbers and returns the log of the sum of
// exponentials.
template <typename Real, bool kRound>
double AttendRow(const ReferenceAttention& attention, const Real* query, int q_head,
                 const HeadCache<Real>& cache, KeyRange seen, double* output) {
  const int dim = attention.kv.head_dim;
  const int value_dim = ValueDim(attention);
  std::fill_n(output, value_dim, 0.0);
  const double sink = attention.sinks != nullptr ? attention.sinks[q_head]
                                                 : -std::numeric_limits<double>::infinity();
  std::vector<Real> scores(std::max(0, seen.end - seen.begin));
  double peak = sink;
  for (int i = seen.begin; i < seen.end; ++i) {
    Real dot = 0;
    const Real* const key = &cache.keys[static_cast<size_t>(i) * dim];
    for (int d = 0; d < dim; ++d) dot += query[d] * key[d];
    Real score = dot * Real{attention.softmax_scale};
    if (attention.soft_cap > 0) {
      score = attention.soft_cap * std::tanh(score / Real{attention.soft_cap});
    }
    scores[i - seen.begin] = score;
    // One that is NaN stays the peak, and shows in the results.
    if (!std::isnan(peak) && !(score <= peak)) peak = score;
  }
  if (std::isinf(peak) && peak < 0) return peak;
  double sum = std::exp(sink - peak);
  std::vector<Real> sums(value_dim, 0);
  for (int i = seen.begin; i < seen.end; ++i) {
    Real weight = std::exp(scores[i - seen.begin] - static_cast<Real>(peak));
    sum += weight;
    if (kRound) weight = RoundTo(attention.query_dtype, static_cast<float>(weight));
    const Real* const value = &cache.values[static_cast<size_t>(i) * value_dim];
    for (int d = 0; d < value_dim; ++d) sums[d] += weight * value[d];
  }
  for (int d = 0; d < value_dim; ++d) {
    output[d] = sums[d] / sum;
    if (kRound) output[d] = RoundTo(attention.query_dtype, static_cast<float>(output[d]));
  }
  return peak + std::log(sum);
}

struct Rows {
  int first;
  int count;
};

Rows RowsOf(const ReferenceAttention& attention, int sequence) {
  if (attention.query_starts == nullptr) return {sequence, 1};
  const int first = attention.query_starts[sequence];
  return {first, attention.query_starts[sequence + 1] - first};
}

template <typename Real, bool kRound>
ReferenceOutput Attend(const ReferenceAttention& attention) {
  const int sequences = attention.sequences.sequences;
  const int dim = attention.kv.head_dim;
  const int group = attention.q_heads / attention.kv.kv_heads;
  int64_t row_count = 0;
  for (int s = 0; s < sequences; ++s) {
    const Rows rows = RowsOf(attention, s);
    row_count = std::max<int64_t>(row_count, rows.first + rows.count);
  }
  ReferenceOutput result;
  const int value_dim = ValueDim(attention);
  result.output.resize(row_count * attention.q_heads * value_dim);
  result.lse.resize(row_count * attention.q_heads);
  std::vector<Real> query(dim);
  for (int s = 0; s < sequences; ++s) {
    const int length = attention.sequences.kv_lengths[s];
    const Rows rows = RowsOf(attention, s);
    const KeyRange first_seen = SeenKeys(attention, length, 0, rows.count);
    for (int head = 0; head < attention.kv.kv_heads; ++head) {
      const auto cache = GatherHead<Real>(attention, s, head, first_seen.begin);
      for (int i = 0; i < rows.count; ++i) {
        for (int q_head = head * group; q_head < (head + 1) * group; ++q_head) {
          const int64_t row = rows.first + i;
          const int64_t at =
              row * attention.query_token_stride + q_head * attention.query_head_stride;
          for (int d = 0; d < dim; ++d) {
            query[d] = LoadElement(attention.query, attention.query_dtype, at + d);
          }
          const int64_t to = row * attention.q_heads + q_head;
          result.lse[to] = AttendRow<Real, kRound>(attention, query.data(), q_head, cache,
                                                   SeenKeys(attention, length, i, rows.count),
                                                   &result.output[to * value_dim]);
        }
      }
    }
  }
  return result;
}

}  // namespace

ReferenceOutput AttentionReference(const ReferenceAttention& attention,
                                   ReferenceArithmetic arithmetic) {
  if (arithmetic == ReferenceArithmetic::kPlain16Bit) return Attend<float, true>(attention);
  return Attend<double, false>(attention);
}

}  // namespace kvtier::kernels
