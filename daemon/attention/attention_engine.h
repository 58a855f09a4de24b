// SPDX-License-Identifier: Apache-2.0
// What computes attention: the CPU over pools in host memory, the kernels over those on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "daemon/attention/attention_job.h"

namespace kvtier {

// The reason of an error after which nothing of the device works in this process any more.
inline constexpr const char* kDeviceLost = "device_lost";

// Check may be called from any thread; everything else from one thread at a time, or from several
// if concurrent() says so.
class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;  // "cpu", "cuda"
  [[nodiscard]] virtual bool concurrent() const = 0;
  // Products of a query's and a key's element that one job may ask for: a few seconds' worth.
  [[nodiscard]] virtual double max_products() const = 0;
  // The head sizes and group sizes for which it has code of their own.
  [[nodiscard]] virtual std::span<const int32_t> head_dims() const = 0;
  [[nodiscard]] virtual std::span<const int32_t> groups() const = 0;

  // Whether it can compute such a job, whatever its addresses. Errors: kUnsupported
  // "attend_geometry".
  [[nodiscard]] virtual Status Check(const AttentionJob& job) const = 0;
  // Computes, and returns when the results are there. REQUIRES: Check passed, the job makes sense.
  // Errors: kCancelled; kResourceExhausted when the device's memory does not suffice for this job;
  // kIoError when the device failed, after which it is of no use any more.
  [[nodiscard]] virtual Status Run(const AttentionJob& job) = 0;

  // Writes keys and values of `slots.size()` tokens ([tokens, kv_heads, head_dim] of `dtype`, host
  // memory) into the cache, as its clients do. Errors: kIoError.
  [[nodiscard]] virtual Status StoreKv(const kvt_paged_kv& cache, kvt_dtype dtype, const void* keys,
                                       const void* values, std::span<const int64_t> slots) = 0;
  // Between host memory and the device's, either way. Errors: kIoError.
  [[nodiscard]] virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
};

}  // namespace kvtier
