// SPDX-License-Identifier: Apache-2.0
// The forward pass of a Llama-style decoder: RMSNorm, rope, grouped-query attention, SwiGLU.
//
// Its keys and values live wherever a KvAccess puts them. In memory of the CPU, computing a token
// gives the same bits whether it comes alone or in the middle of a long prompt, in whichever
// blocks, on however many threads. So a prefix taken from a cache continues exactly as if it had
// been computed here.
#pragma once

#include <barrier>
#include <cstddef>
#include <span>
#include <vector>

#include "client/examples/attention.h"
#include "client/examples/model_shape.h"
#include "client/examples/weights.h"

namespace kvtier::generate {

// Rotary position embedding: a token's position, turned into its queries and keys. Immutable; any
// thread.
class Rope {
 public:
  explicit Rope(const ModelShape& shape);

  // Turns each of `heads` vectors of kHeadDim floats; element i together with i + kHeadDim / 2.
  void Rotate(float* vectors, size_t heads, size_t position) const;

 private:
  // [position][kHeadDim / 2]
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

// Immutable; may be used by several threads at once.
class Model {
 public:
  // Computes on up to `threads` threads. REQUIRES: threads > 0.
  Model(Weights weights, size_t threads);

  [[nodiscard]] const ModelShape& shape() const { return weights_.shape; }
  // Identifies the weights.
  [[nodiscard]] const Digest256& digest() const { return weights_.digest; }

  // Computes `tokens`, which follow `first_position` others whose keys and values are in `kv`, and
  // adds theirs. `logits` ([vocabulary]) are those of the last one.
  // REQUIRES: tokens not empty and below the vocabulary, positions below max_positions, kv's block
  // table covers them.
  void Compute(std::span<const Token> tokens, size_t first_position, KvAccess* kv,
               std::span<float> logits) const;
  // The same in memory of the CPU.
  void Compute(std::span<const Token> tokens, size_t first_position, const KvView& kv,
               std::span<float> logits) const;

 private:
  // The tokens that one thread computes, and its vectors: row by row, one row a token.
  struct Rows;
  using Barrier = std::barrier<>;

  void ComputeChunk(std::span<const Token> tokens, size_t first_position, KvAccess* kv,
                    std::span<float> logits) const;
  void ComputeRows(Rows* rows, KvAccess* kv, Barrier* keys_written) const;
  void Embed(Rows* rows) const;
  // Makes the tokens' queries, and writes their keys and values.
  void ProjectHeads(size_t layer, Rows* rows, KvAccess* kv) const;
  void AddAttention(size_t layer, Rows* rows, KvAccess* kv) const;
  void AddFeedForward(size_t layer, Rows* rows) const;

  const Weights weights_;
  const Rope rope_;
  const size_t threads_;
};

}  // namespace kvtier::generate
