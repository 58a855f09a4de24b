// SPDX-License-Identifier: Apache-2.0
#include "kernels/service/host_attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

constexpr int kLanes = 16;
// `aligned(4)`: may be loaded from any float's address.
using Lanes = float __attribute__((vector_size(64), aligned(4), may_alias));

// Compiled once for each width of vectors; the dynamic linker picks. Sanitizers instrument the
// picking itself, before they are ready for it.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVT_VECTOR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define KVT_VECTOR_CLONES
#endif

// Keys converted at a time: they and their values stay in the second-level cache.
constexpr int kTileTokens = 128;
// Query vectors that share a tile.
constexpr int kTileQueries = 64;
constexpr float kNone = -std::numeric_limits<float>::infinity();

const Lanes& At(const float* values) { return *reinterpret_cast<const Lanes*>(values); }
Lanes& At(float* values) { return *reinterpret_cast<Lanes*>(values); }

// scores[i] = query . keys[i], vectors of `dim` floats, a multiple of kLanes.
KVT_VECTOR_CLONES void Score(const float* query, const float* keys, int tokens, int dim,
                             float* scores) {
  for (int token = 0; token < tokens; ++token) {
    const float* const key = keys + static_cast<ptrdiff_t>(token) * dim;
    Lanes products = At(query) * At(key);
    for (int d = kLanes; d < dim; d += kLanes) products += At(query + d) * At(key + d);
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += products[lane];
    scores[token] = sum;
  }
}

// mixed = mixed * shrink + sum of weights[i] * values[i].
KVT_VECTOR_CLONES void Mix(const float* weights, const float* values, int tokens, int dim,
                           float shrink, float* mixed) {
  for (int d = 0; d < dim; d += kLanes) {
    Lanes sum = At(mixed + d) * shrink;
    for (int token = 0; token < tokens; ++token) {
      sum += At(values + static_cast<ptrdiff_t>(token) * dim + d) * weights[token];
    }
    At(mixed + d) = sum;
  }
}

// While it lives, the thread takes and makes zeros for numbers too small to be normal, which cost a
// processor up to twenty times as much: a call's price must not depend on a client's bytes.
class FlushToZero {
 public:
#ifdef __x86_64__
  FlushToZero() { _mm_setcsr(before_ | 0x8040); }  // results, and operands
  ~FlushToZero() { _mm_setcsr(before_); }
#else
  FlushToZero() = default;
#endif
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;

#ifdef __x86_64__
 private:
  const unsigned before_ = _mm_getcsr();
#endif
};

std::array<float, 256> EveryE4m3() {
  std::array<float, 256> values{};
  for (size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = FloatFromE4m3(static_cast<uint8_t>(bits));
  }
  return values;
}

// `count` elements from element `at` on.
void Convert(const void* from, kvt_dtype dtype, int64_t at, int count, float* to) {
  static const std::array<float, 256> kE4m3 = EveryE4m3();
  const auto* const wide = static_cast<const uint16_t*>(from) + at;
  switch (dtype) {
    case KVT_FP32:
      std::memcpy(to, static_cast<const float*>(from) + at, sizeof(float) * count);
      break;
    case KVT_BF16:
      for (int i = 0; i < count; ++i) to[i] = FloatFromBf16(wide[i]);
      break;
    case KVT_FP16:
      for (int i = 0; i < count; ++i) to[i] = FloatFromFp16(wide[i]);
      break;
    case KVT_FP8_E4M3:
      for (int i = 0; i < count; ++i) to[i] = kE4m3[static_cast<const uint8_t*>(from)[at + i]];
      break;
  }
}

float ScaleOf(const kvt_scales& scales, int head) {
  return scales.values == nullptr ? 1.0F : scales.values[head * scales.head_stride];
}

// The sums so far for one query vector; they are relative to e^peak.
struct Partial {
  float peak = kNone;
  double weight_sum = 0;
};

// The queries of some rows of one sequence that read one KV head.
class QueryTile {
 public:
  QueryTile(const HostAttention& attention, int sequence, int kv_head, int dim)
      : attention_(attention),
        problem_(attention.problem),
        sequence_(sequence),
        kv_head_(kv_head),
        dim_(dim),
        group_(problem_.q_heads / problem_.kv.kv_heads) {}

  // Rows [first, end) of the sequence's `rows`, the first of which is row `row_base` of all.
  void Load(int row_base, int rows, int first, int end);
  // Adds the keys and values of positions [begin, begin + tokens).
  void Add(const float* keys, const float* values, int begin, int tokens);
  void Store() const;

  // The keys that any of the rows sees.
  [[nodiscard]] int begin_key() const { return SeenFrom(first_); }
  [[nodiscard]] int end_key() const { return SeenTo(end_ - 1); }

 private:
  [[nodiscard]] int length() const { return problem_.sequences.kv_lengths[sequence_]; }
  [[nodiscard]] int SeenTo(int row) const { return std::max(0, length() - rows_ + row + 1); }
  [[nodiscard]] int SeenFrom(int row) const {
    return problem_.window_tokens > 0 ? std::max(0, SeenTo(row) - problem_.window_tokens) : 0;
  }

  const HostAttention& attention_;
  const ReferenceAttention& problem_;
  const int sequence_, kv_head_, dim_, group_;
  int row_base_ = 0, rows_ = 0, first_ = 0, end_ = 0;
  std::vector<float> queries_, mixed_;  // [row][group][dim], padded with zeros
  std::vector<Partial> partials_;
  float scores_[kTileTokens] = {};
};

void QueryTile::Load(int row_base, int rows, int first, int end) {
  row_base_ = row_base;
  rows_ = rows;
  first_ = first;
  end_ = end;
  const size_t count = static_cast<size_t>(end - first) * group_;
  queries_.assign(count * dim_, 0.0F);
  mixed_.assign(count * dim_, 0.0F);
  partials_.assign(count, Partial());
  // The keys' scale rides on the queries, the values' on their mixture.
  const float score_scale = problem_.softmax_scale * ScaleOf(problem_.kv.key_scales, kv_head_);
  for (size_t i = 0; i < count; ++i) {
    const int64_t row = row_base + first + static_cast<int64_t>(i / group_);
    const int64_t head = kv_head_ * int64_t{group_} + static_cast<int64_t>(i % group_);
    float* const query = &queries_[i * dim_];
    Convert(problem_.query, problem_.query_dtype,
            row * problem_.query_token_stride + head * problem_.query_head_stride,
            problem_.kv.head_dim, query);
    for (int d = 0; d < dim_; ++d) query[d] *= score_scale;
  }
}

// By size, where NaN is the largest, so that it shows in the results.
bool IsBelow(float a, float b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

void QueryTile::Add(const float* keys, const float* values, int begin, int tokens) {
  for (size_t i = 0; i < partials_.size(); ++i) {
    const int row = first_ + static_cast<int>(i / group_);
    const int from = std::max(begin, SeenFrom(row)) - begin;
    const int to = std::min(begin + tokens, SeenTo(row)) - begin;
    if (from >= to) continue;
    const int count = to - from;
    Score(&queries_[i * dim_], keys + static_cast<ptrdiff_t>(from) * dim_, count, dim_, scores_);
    if (problem_.soft_cap > 0) {
      for (int k = 0; k < count; ++k) {
        scores_[k] = problem_.soft_cap * std::tanh(scores_[k] / problem_.soft_cap);
      }
    }
    Partial& partial = partials_[i];
    const float peak =
        std::max(partial.peak, *std::max_element(scores_, scores_ + count, IsBelow), IsBelow);
    // Nothing but -infinity so far: no weight to give.
    if (peak == kNone) continue;
    const float shrink = std::exp(partial.peak - peak);
    float sum = 0;
    for (int k = 0; k < count; ++k) {
      scores_[k] = std::exp(scores_[k] - peak);
      sum += scores_[k];
    }
    partial.peak = peak;
    partial.weight_sum = partial.weight_sum * shrink + sum;
    Mix(scores_, values + static_cast<ptrdiff_t>(from) * dim_, count, dim_, shrink,
        &mixed_[i * dim_]);
  }
}

void QueryTile::Store() const {
  const int head_dim = problem_.kv.head_dim;
  const float value_scale = ScaleOf(problem_.kv.value_scales, kv_head_);
  for (size_t i = 0; i < partials_.size(); ++i) {
    const int64_t row = row_base_ + first_ + static_cast<int64_t>(i / group_);
    const int64_t head = kv_head_ * int64_t{group_} + static_cast<int64_t>(i % group_);
    const int64_t to = row * problem_.q_heads + head;
    const Partial& partial = partials_[i];
    const auto scale =
        partial.weight_sum == 0 ? 0.0F : static_cast<float>(value_scale / partial.weight_sum);
    for (int d = 0; d < head_dim; ++d) {
      StoreElement(attention_.output, problem_.query_dtype, to * head_dim + d,
                   mixed_[i * dim_ + d] * scale);
    }
    if (attention_.lse != nullptr) {
      attention_.lse[to] = partial.weight_sum == 0
                               ? kNone
                               : static_cast<float>(partial.peak + std::log(partial.weight_sum));
    }
  }
}

// The keys and values of one KV head for a run of positions, as floats.
class KeyTile {
 public:
  KeyTile(const ReferenceAttention& problem, int sequence, int kv_head, int dim)
      : problem_(problem),
        table_(problem.sequences.block_table + sequence * problem.sequences.table_stride),
        kv_head_(kv_head),
        dim_(dim),
        keys_(static_cast<size_t>(kTileTokens) * dim),
        values_(keys_.size()) {}

  void Load(int begin, int tokens) {
    const kvt_paged_kv& kv = problem_.kv;
    for (int i = 0; i < tokens; ++i) {
      const int position = begin + i;
      const int64_t row = table_[position / kv.page_tokens] * kv.block_stride +
                          (position % kv.page_tokens) * kv.token_stride + kv_head_ * kv.head_stride;
      Convert(kv.key, kv.dtype, row, kv.head_dim, &keys_[static_cast<size_t>(i) * dim_]);
      Convert(kv.value, kv.dtype, row, kv.head_dim, &values_[static_cast<size_t>(i) * dim_]);
    }
  }
  [[nodiscard]] const float* keys() const { return keys_.data(); }
  [[nodiscard]] const float* values() const { return values_.data(); }

 private:
  const ReferenceAttention& problem_;
  const int32_t* const table_;
  const int kv_head_, dim_;
  std::vector<float> keys_, values_;  // [kTileTokens][dim]; what pads a row stays 0
};

int QueryRows(const ReferenceAttention& problem, int sequence) {
  if (problem.query_starts == nullptr) return 1;
  return problem.query_starts[sequence + 1] - problem.query_starts[sequence];
}

// Rows of queries that share a tile of keys.
int TileRows(const ReferenceAttention& problem) {
  return std::max(1, kTileQueries / (problem.q_heads / problem.kv.kv_heads));
}

int PaddedDim(const ReferenceAttention& problem) {
  return (problem.kv.head_dim + kLanes - 1) / kLanes * kLanes;
}

bool AttendHead(const HostAttention& attention, int sequence, int kv_head,
                const std::atomic<bool>* cancelled) {
  const ReferenceAttention& problem = attention.problem;
  const int dim = PaddedDim(problem);
  const int row_base = problem.query_starts != nullptr ? problem.query_starts[sequence] : sequence;
  const int rows = QueryRows(problem, sequence);
  const int step = TileRows(problem);
  QueryTile queries(attention, sequence, kv_head, dim);
  KeyTile keys(problem, sequence, kv_head, dim);
  for (int first = 0; first < rows; first += step) {
    queries.Load(row_base, rows, first, std::min(rows, first + step));
    for (int begin = queries.begin_key(); begin < queries.end_key(); begin += kTileTokens) {
      if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) return false;
      const int tokens = std::min(kTileTokens, queries.end_key() - begin);
      keys.Load(begin, tokens);
      queries.Add(keys.keys(), keys.values(), begin, tokens);
    }
    queries.Store();
  }
  return true;
}

}  // namespace

bool AttendOnHost(const HostAttention& attention, const std::atomic<bool>* cancelled) {
  [[maybe_unused]] const FlushToZero flush;
  for (int sequence = 0; sequence < attention.problem.sequences.sequences; ++sequence) {
    for (int head = 0; head < attention.problem.kv.kv_heads; ++head) {
      if (!AttendHead(attention, sequence, head, cancelled)) return false;
    }
  }
  return true;
}

// Measured on a Xeon with AVX-512. A query's pair with a key costs an exponential, maybe a tanh,
// and its products. All queries of a tile share the conversion of a key, and the tile's own memory,
// which costs as much as some keys.
double HostAttentionNs(const ReferenceAttention& problem) {
  constexpr double kExpNs = 10, kTanhNs = 10, kProductNs = 0.15, kConvertNs = 2.5, kTileKeys = 16;
  const double dim = PaddedDim(problem);
  const double pair_ns = kExpNs + (problem.soft_cap > 0 ? kTanhNs : 0) + kProductNs * dim;
  double all_ns = 0;
  for (int sequence = 0; sequence < problem.sequences.sequences; ++sequence) {
    const double keys = problem.sequences.kv_lengths[sequence];
    const int rows = QueryRows(problem, sequence);
    const double tiles = std::ceil(static_cast<double>(rows) / TileRows(problem));
    all_ns += rows * keys * problem.q_heads * pair_ns +
              tiles * (keys + kTileKeys) * problem.kv.kv_heads * kConvertNs * dim;
  }
  return all_ns;
}

}  // namespace kvtier::kernels
