// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU.
#pragma once

#include "daemon/attention/attention_engine.h"

namespace kvtier {

// Serves machines without a GPU, and pools in host memory beside one. It has no state, so that any
// number of threads may call it.
class HostAttentionEngine final : public AttentionEngine {
 public:
  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] bool concurrent() const override { return true; }
  [[nodiscard]] double max_products() const override { return 0x1p35; }
  [[nodiscard]] std::span<const int32_t> head_dims() const override;
  [[nodiscard]] std::span<const int32_t> groups() const override;

  [[nodiscard]] Status Check(const AttentionJob& job) const override;
  [[nodiscard]] Status Run(const AttentionJob& job) override;
  [[nodiscard]] Status StoreKv(const kvt_paged_kv& cache, kvt_dtype dtype, const void* keys,
                               const void* values, std::span<const int64_t> slots) override;
  [[nodiscard]] Status Copy(void* to, const void* from, size_t bytes) override;
};

}  // namespace kvtier
