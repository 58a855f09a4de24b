// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels of libkvtier_kernels.so, which was opened at run time: no CUDA header is
// needed here, and none of its libraries.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/attention/attention_engine.h"
#include "kernels/service/device_stream.h"
#include "kvtier/kernel_table.h"

namespace kvtier {

// One engine per GPU, with a stream and buffers of its own, used by one thread at a time. It runs
// beside the copies of the cache, which have other streams. `table` outlives it.
class CudaAttentionEngine final : public AttentionEngine {
 public:
  // For the GPU `ordinal`. Errors: kUnsupported, kIoError from CUDA.
  [[nodiscard]] static Result<std::unique_ptr<CudaAttentionEngine>> Open(
      const kvt_kernel_table* table, int32_t ordinal);

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] bool concurrent() const override { return false; }
  [[nodiscard]] double max_products() const override { return 0x1p43; }
  [[nodiscard]] std::span<const int32_t> head_dims() const override;
  [[nodiscard]] std::span<const int32_t> groups() const override;

  [[nodiscard]] Status Check(const AttentionJob& job) const override;
  [[nodiscard]] Status Run(const AttentionJob& job) override;
  [[nodiscard]] Status StoreKv(const kvt_paged_kv& cache, kvt_dtype dtype, const void* keys,
                               const void* values, std::span<const int64_t> slots) override;
  [[nodiscard]] Status Copy(void* to, const void* from, size_t bytes) override;

 private:
  CudaAttentionEngine() = default;

  // Turns the result of a call of the table into a Status; `attempted` names the call in messages.
  // Errors as of Run, and kUnsupported "attend_geometry".
  [[nodiscard]] Status ToStatus(kvt_kernel_status status, const char* attempted) const;
  [[nodiscard]] const kvt_kernel_table& table() const { return stream_.table(); }
  // The job's tables on the device, and its cache with the scales there.
  struct DeviceTables {
    kvt_paged_kv cache{};
    kvt_sequences sequences{};
    const int32_t* query_starts = nullptr;
  };
  [[nodiscard]] Result<DeviceTables> Upload(const AttentionJob& job);
  [[nodiscard]] Status Decode(const AttentionJob& job, const DeviceTables& tables);
  [[nodiscard]] Status Append(const AttentionJob& job, const DeviceTables& tables);

  kernels::DeviceStream stream_;
  // Buffers grow with the largest job so far and are kept, since allocating stalls the whole
  // device.
  kernels::DeviceBuffer tables_;
  kernels::DeviceBuffer staging_;
  // Each kernel's own: what one leaves there means nothing to the other.
  kernels::DeviceBuffer decode_workspace_;
  kernels::DeviceBuffer prefill_workspace_;
};

}  // namespace kvtier
