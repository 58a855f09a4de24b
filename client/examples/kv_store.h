// SPDX-License-Identifier: Apache-2.0
// The keys and values of one sequence, as the generator sees them: in a pool shared with other
// processes, or in memory of its own.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "client/examples/attention.h"
#include "client/examples/model_shape.h"

namespace kvtier::generate {

// Tokens of the prompt whose keys and values came from the cache, by the tier that had them.
struct CachedTokens {
  uint64_t pool = 0;
  uint64_t host = 0;
  uint64_t disk = 0;
  [[nodiscard]] uint64_t total() const { return pool + host + disk; }
};

// One thread. After an error nothing in the store may be trusted any more: what was computed from
// it since the last successful MarkComputed must be thrown away.
class KvStore {
 public:
  virtual ~KvStore() = default;

  [[nodiscard]] virtual CachedTokens cached_tokens() const = 0;
  // Covers all tokens so far. Valid until the next Append or Access; the store's. Errors of what is
  // done with it may be told by MarkComputed.
  [[nodiscard]] virtual Result<KvAccess*> Access() = 0;
  // Allocates for one more token.
  [[nodiscard]] virtual Status Append(Token token) = 0;
  // The first `tokens` tokens are computed. Success also confirms that every byte read from the
  // store until now was what it should be.
  [[nodiscard]] virtual Status MarkComputed(uint64_t tokens) = 0;
  // No more tokens follow.
  [[nodiscard]] virtual Status Finish() = 0;
};

// A store in memory of the CPU.
class HostKvStore : public KvStore {
 public:
  // As Access.
  [[nodiscard]] virtual Result<KvView> View() = 0;

  [[nodiscard]] Result<KvAccess*> Access() final {
    KVT_ASSIGN_OR_RETURN(const KvView view, View());
    return &access_.emplace(view);
  }

 private:
  std::optional<HostKv> access_;
};

// Keys and values in memory of this process alone, in the layout of the pool.
class PrivateKv final : public HostKvStore {
 public:
  PrivateKv(const KvLayout& layout, size_t max_tokens)
      : layout_(layout),
        block_table_((max_tokens + kBlockTokens - 1) / kBlockTokens),
        memory_(block_table_.size() * layout.block_stride) {
    std::iota(block_table_.begin(), block_table_.end(), 0);
  }

  [[nodiscard]] CachedTokens cached_tokens() const override { return {}; }
  [[nodiscard]] Result<KvView> View() override {
    return KvView{memory_.span().data(), block_table_, layout_};
  }
  [[nodiscard]] Status Append(Token) override { return {}; }
  [[nodiscard]] Status MarkComputed(uint64_t) override { return {}; }
  [[nodiscard]] Status Finish() override { return {}; }

 private:
  KvLayout layout_;
  std::vector<int32_t> block_table_;
  AlignedBuffer memory_;
};

}  // namespace kvtier::generate
