// SPDX-License-Identifier: Apache-2.0
// The keys and values of one sequence, as the generator sees them: in a pool shared with other
// processes, or in memory of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "client/examples/kv_access.h"
#include "client/examples/kv_view.h"
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
  // Makes room for one more token.
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

}  // namespace kvtier::generate
