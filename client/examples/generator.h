// SPDX-License-Identifier: Apache-2.0
// Greedy text generation over a KV store that may come from the cache and may be lost.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/examples/kv_store.h"
#include "client/examples/model.h"

namespace kvtier::generate {

struct Generation {
  std::string text;
  uint64_t prompt_tokens = 0;
  uint64_t prefilled_tokens = 0;  // of the prompt: computed here
  CachedTokens cached;            // of the prompt: the others
  std::chrono::duration<double, std::milli> first_token_ms{};
  std::chrono::duration<double, std::milli> total_ms{};
  // Why private memory had to take the cache's place, if it had to.
  std::optional<Error> cache_error;
};

// One thread.
class Generator {
 public:
  // Opens the sequence's KV store with its prompt. An error means to do without the cache.
  using OpenStore = std::function<Result<std::unique_ptr<KvStore>>(std::span<const Token> prompt)>;
  // Called with each token as soon as it is certain.
  using OnToken = std::function<void(Token)>;

  // `open_store` may be empty: no cache. `model` must outlive the generator.
  Generator(const Model& model, const KvLayout& layout, OpenStore open_store)
      : model_(model), layout_(layout), open_store_(std::move(open_store)) {}

  // The `count` most likely tokens one after another. A cache that fails on the way costs time, not
  // the result: everything is computed again in private memory, to the same bits.
  // REQUIRES: prompt not empty, prompt.size() + count <= max_positions.
  [[nodiscard]] Generation Run(std::span<const Token> prompt, size_t count,
                               const OnToken& on_token);

 private:
  using Clock = std::chrono::steady_clock;
  struct Progress;

  // Opens the store and generates from it. On an error `progress` stands as if there was no store.
  [[nodiscard]] Status RunFromCache(Progress* progress, const OnToken& on_token) const;
  // Generates what is missing.
  [[nodiscard]] Status Continue(Progress* progress, const OnToken& on_token) const;
  // Computes tokens that are not yet in the store and gives the next one.
  [[nodiscard]] Result<Token> ComputeNext(Progress* progress) const;

  const Model& model_;
  const KvLayout layout_;
  const OpenStore open_store_;
};

}  // namespace kvtier::generate
