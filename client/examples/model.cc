// SPDX-License-Identifier: Apache-2.0
#include "client/examples/model.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "base/result.h"
#include "client/examples/lanes.h"
#include "client/examples/tensor.h"

namespace kvtier::generate {
namespace {

constexpr size_t kPairs = kHeadDim / 2;

// Tokens that a thread computes together: enough to reuse each weight read from memory, few enough
// for their vectors to stay in its caches.
constexpr size_t kChunkTokens = 64;

}  // namespace

Rope::Rope(const ModelShape& shape)
    : cosines_(shape.max_positions * kPairs), sines_(shape.max_positions * kPairs) {
  for (size_t pair = 0; pair < kPairs; ++pair) {
    const double turn =
        std::pow(double{shape.rope_theta}, -2.0 * static_cast<double>(pair) / kHeadDim);
    for (size_t position = 0; position < shape.max_positions; ++position) {
      const double angle = static_cast<double>(position) * turn;
      cosines_[position * kPairs + pair] = static_cast<float>(std::cos(angle));
      sines_[position * kPairs + pair] = static_cast<float>(std::sin(angle));
    }
  }
}

void Rope::Rotate(float* vectors, size_t heads, size_t position) const {
  const float* cosines = cosines_.data() + position * kPairs;
  const float* sines = sines_.data() + position * kPairs;
  for (size_t head = 0; head < heads; ++head) {
    float* first = vectors + head * kHeadDim;
    float* second = first + kPairs;
    for (size_t i = 0; i < kPairs; ++i) {
      const float x = first[i];
      const float y = second[i];
      first[i] = x * cosines[i] - y * sines[i];
      second[i] = y * cosines[i] + x * sines[i];
    }
  }
}

struct Model::Rows {
  Rows(const ModelShape& shape, std::span<const Token> tokens, size_t first_position)
      : tokens(tokens),
        first_position(first_position),
        residual(tokens.size() * shape.width),
        normed(residual.size()),
        product(residual.size()),
        query(tokens.size() * shape.query_width()),
        mixed(query.size()),
        key(tokens.size() * shape.kv_width()),
        value(key.size()),
        gate(tokens.size() * shape.hidden),
        up(gate.size()),
        scores(first_position + tokens.size() + kLanes) {}

  [[nodiscard]] size_t count() const { return tokens.size(); }

  std::span<const Token> tokens;
  size_t first_position;
  std::vector<float> residual;
  std::vector<float> normed;
  std::vector<float> product;
  std::vector<float> query;
  std::vector<float> mixed;
  std::vector<float> key;
  std::vector<float> value;
  std::vector<float> gate;
  std::vector<float> up;
  std::vector<float> scores;
};

Model::Model(Weights weights, size_t threads)
    : weights_(std::move(weights)), rope_(weights_.shape), threads_(threads) {
  KVT_CHECK(threads > 0);
}

void Model::Compute(std::span<const Token> tokens, size_t first_position, const KvView& kv,
                    std::span<float> logits) const {
  HostKv host(kv);
  Compute(tokens, first_position, &host, logits);
}

void Model::Compute(std::span<const Token> tokens, size_t first_position, KvAccess* kv,
                    std::span<float> logits) const {
  KVT_CHECK(!tokens.empty() && first_position + tokens.size() <= shape().max_positions);
  KVT_CHECK(logits.size() == shape().vocabulary);
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), kChunkTokens * threads_);
    ComputeChunk(tokens.first(count), first_position, kv, logits);
    tokens = tokens.subspan(count);
    first_position += count;
  }
}

void Model::ComputeChunk(std::span<const Token> tokens, size_t first_position, KvAccess* kv,
                         std::span<float> logits) const {
  const size_t threads = std::min(threads_, tokens.size());
  Barrier keys_written(static_cast<std::ptrdiff_t>(threads));
  const auto compute_part = [&](size_t part) {
    const size_t begin = tokens.size() * part / threads;
    const size_t end = tokens.size() * (part + 1) / threads;
    Rows rows(shape(), tokens.subspan(begin, end - begin), first_position + begin);
    ComputeRows(&rows, kv, &keys_written);
    if (end < tokens.size()) return;
    const float* last = rows.residual.data() + (rows.count() - 1) * shape().width;
    NormalizeRows(last, 1, weights_.final_norm, shape().norm_epsilon, rows.normed.data());
    MultiplyRows(weights_.logits, rows.normed.data(), 1, logits.data());
  };
  std::vector<std::jthread> helpers;
  for (size_t part = 1; part < threads; ++part) helpers.emplace_back(compute_part, part);
  compute_part(0);
}

void Model::ComputeRows(Rows* rows, KvAccess* kv, Barrier* keys_written) const {
  Embed(rows);
  for (size_t layer = 0; layer < shape().layers; ++layer) {
    ProjectHeads(layer, rows, kv);
    // A token attends to earlier ones of the chunk, which other threads may have.
    keys_written->arrive_and_wait();
    AddAttention(layer, rows, kv);
    AddFeedForward(layer, rows);
  }
}

void Model::Embed(Rows* rows) const {
  for (size_t row = 0; row < rows->count(); ++row) {
    KVT_CHECK(rows->tokens[row] < shape().vocabulary);
    std::copy_n(weights_.embedding.data() + rows->tokens[row] * shape().width, shape().width,
                rows->residual.data() + row * shape().width);
  }
}

void Model::ProjectHeads(size_t layer, Rows* rows, KvAccess* kv) const {
  const LayerWeights& weights = weights_.layers[layer];
  NormalizeRows(rows->residual.data(), rows->count(), weights.attention_norm, shape().norm_epsilon,
                rows->normed.data());
  MultiplyRows(weights.query, rows->normed.data(), rows->count(), rows->query.data());
  MultiplyRows(weights.key, rows->normed.data(), rows->count(), rows->key.data());
  MultiplyRows(weights.value, rows->normed.data(), rows->count(), rows->value.data());
  for (size_t row = 0; row < rows->count(); ++row) {
    const size_t position = rows->first_position + row;
    rope_.Rotate(rows->query.data() + row * shape().query_width(), shape().query_heads, position);
    rope_.Rotate(rows->key.data() + row * shape().kv_width(), shape().kv_heads, position);
  }
  kv->Store({shape(), layer, rows->first_position, rows->count()}, rows->key.data(),
            rows->value.data());
}

void Model::AddAttention(size_t layer, Rows* rows, KvAccess* kv) const {
  const LayerWeights& weights = weights_.layers[layer];
  kv->Attend({shape(), layer, rows->first_position, rows->count()}, rows->query.data(),
             rows->scores, rows->mixed.data());
  MultiplyRowsAndAdd(weights.attention_output, rows->mixed.data(), rows->count(),
                     rows->residual.data(), rows->product.data());
}

void Model::AddFeedForward(size_t layer, Rows* rows) const {
  const LayerWeights& weights = weights_.layers[layer];
  NormalizeRows(rows->residual.data(), rows->count(), weights.feed_forward_norm,
                shape().norm_epsilon, rows->normed.data());
  MultiplyRows(weights.gate, rows->normed.data(), rows->count(), rows->gate.data());
  MultiplyRows(weights.up, rows->normed.data(), rows->count(), rows->up.data());
  GateInPlace(rows->gate.data(), rows->up.data(), rows->gate.size());
  MultiplyRowsAndAdd(weights.down, rows->gate.data(), rows->count(), rows->residual.data(),
                     rows->product.data());
}

}  // namespace kvtier::generate
