// SPDX-License-Identifier: Apache-2.0
// Keys and values in memory of this process alone, in the layout of the pool.
#pragma once

#include <numeric>
#include <vector>

#include "base/aligned_buffer.h"
#include "client/examples/kv_store.h"

namespace kvtier::generate {

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
