// SPDX-License-Identifier: Apache-2.0
#include "client/examples/gpu_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/result.h"
#include "kernels/reference/number_format.h"
#include "kernels/service/device_stream.h"
#include "kernels/service/kernel_library.h"

namespace kvtier::generate {
namespace {

constexpr size_t kElementBytes = 2;

// Vectors of kHeadDim floats as vectors of kGpuHeadDim halves.
std::vector<uint16_t> Widen(const float* vectors, size_t count) {
  std::vector<uint16_t> halves(count * kGpuHeadDim);
  for (size_t i = 0; i < count; ++i) {
    std::transform(vectors + i * kHeadDim, vectors + (i + 1) * kHeadDim,
                   halves.begin() + static_cast<ptrdiff_t>(i * kGpuHeadDim),
                   kernels::Fp16FromFloat);
  }
  return halves;
}

class KernelAttention final : public GpuAttention {
 public:
  explicit KernelAttention(const GpuPool& pool) : pool_(pool) {}

  [[nodiscard]] Status Start(const kvt_kernel_table* table);
  [[nodiscard]] Status Store(const LayerRows& rows, std::span<const int32_t> block_table,
                             const float* keys, const float* values) override;
  [[nodiscard]] Status Attend(const LayerRows& rows, std::span<const int32_t> block_table,
                              const float* queries, float* mixed) override;
  [[nodiscard]] Status Copy(uint64_t to, uint64_t from, uint64_t bytes) override;

 private:
  // What a call of the table came to.
  [[nodiscard]] Status ToStatus(kvt_kernel_status status, const char* attempted) const;
  [[nodiscard]] const kvt_kernel_table& table() const { return stream_.table(); }
  [[nodiscard]] Status SelectDevice() const;
  [[nodiscard]] Status Reserve(kernels::DeviceBuffer* buffer, size_t bytes);
  template <typename T>
  [[nodiscard]] Status Upload(kernels::DeviceBuffer* buffer, const std::vector<T>& values);
  [[nodiscard]] kvt_paged_kv Layer(size_t layer) const;
  [[nodiscard]] Status Decode(const kvt_paged_kv& cache, const kvt_sequences& sequence);
  [[nodiscard]] Status Append(const kvt_paged_kv& cache, const kvt_sequences& sequence,
                              const int32_t* query_starts, int32_t query_tokens);

  const GpuPool pool_;
  std::mutex mutex_;
  kernels::DeviceStream stream_;
  kernels::DeviceBuffer keys_, values_, slots_, tables_, queries_, output_;
  // Each kernel's own: what one leaves there means nothing to the other.
  kernels::DeviceBuffer decode_workspace_, prefill_workspace_;
};

Status KernelAttention::ToStatus(kvt_kernel_status status, const char* attempted) const {
  if (status == KVT_KERNEL_OK) return {};
  return MakeError(status == KVT_KERNEL_UNSUPPORTED ? ErrorCode::kUnsupported : ErrorCode::kIoError,
                   "kernel_failed",
                   std::string(attempted) + ": " + table().status_text(status) + ", " +
                       table().cuda_error_text());
}

Status KernelAttention::Start(const kvt_kernel_table* table) {
  const kvt_kernel_status opened = stream_.Open({table, pool_.ordinal});
  return ToStatus(opened, "a stream");
}

Status KernelAttention::SelectDevice() const {
  return ToStatus(stream_.device().Select(), "choosing the GPU");
}

Status KernelAttention::Reserve(kernels::DeviceBuffer* buffer, size_t bytes) {
  return ToStatus(buffer->Reserve(stream_, bytes), "scratch memory");
}

template <typename T>
Status KernelAttention::Upload(kernels::DeviceBuffer* buffer, const std::vector<T>& values) {
  return ToStatus(buffer->Upload(stream_, values.data(), values.size() * sizeof(T)),
                  "copying to the GPU");
}

kvt_paged_kv KernelAttention::Layer(size_t layer) const {
  const KvLayout& layout = pool_.layout;
  const uint64_t key = pool_.base + layer * layout.layer_stride;
  return {.key = reinterpret_cast<void*>(key),
          .value = reinterpret_cast<void*>(key + layout.value_offset),
          .dtype = KVT_FP16,
          .kv_heads = static_cast<int32_t>(pool_.kv_heads),
          .head_dim = kGpuHeadDim,
          .page_tokens = kBlockTokens,
          .block_stride = static_cast<int64_t>(layout.block_stride / kElementBytes),
          .token_stride = static_cast<int64_t>(layout.key_token_stride / kElementBytes),
          .head_stride = static_cast<int64_t>(layout.key_head_stride / kElementBytes)};
}

Status KernelAttention::Store(const LayerRows& rows, std::span<const int32_t> block_table,
                              const float* keys, const float* values) {
  const std::lock_guard lock(mutex_);
  KVT_RETURN_IF_ERROR(SelectDevice());
  std::vector<int64_t> slots;
  for (size_t row = 0; row < rows.count; ++row) {
    const size_t position = rows.first_position + row;
    KVT_CHECK(position / kBlockTokens < block_table.size());
    slots.push_back(int64_t{block_table[position / kBlockTokens]} * int64_t{kBlockTokens} +
                    static_cast<int64_t>(position % kBlockTokens));
  }
  const size_t vectors = rows.count * pool_.kv_heads;
  KVT_RETURN_IF_ERROR(Upload(&keys_, Widen(keys, vectors)));
  KVT_RETURN_IF_ERROR(Upload(&values_, Widen(values, vectors)));
  KVT_RETURN_IF_ERROR(Upload(&slots_, slots));
  const auto token_stride = static_cast<int64_t>(pool_.kv_heads * kGpuHeadDim);
  const kvt_kv_write_params params{.key = keys_.memory(),
                                   .value = values_.memory(),
                                   .dtype = KVT_FP16,
                                   .tokens = static_cast<int32_t>(rows.count),
                                   .key_token_stride = token_stride,
                                   .key_head_stride = kGpuHeadDim,
                                   .value_token_stride = token_stride,
                                   .value_head_stride = kGpuHeadDim,
                                   .slot_mapping = static_cast<const int64_t*>(slots_.memory()),
                                   .cache = Layer(rows.layer)};
  return ToStatus(table().kv_write(&params, stream_.get()), "writing keys and values");
}

Status KernelAttention::Decode(const kvt_paged_kv& cache, const kvt_sequences& sequence) {
  const auto row = static_cast<int64_t>(pool_.query_heads * kGpuHeadDim);
  const kvt_decode_params params{.query = queries_.memory(),
                                 .output = output_.memory(),
                                 .query_dtype = KVT_FP16,
                                 .q_heads = static_cast<int32_t>(pool_.query_heads),
                                 .query_sequence_stride = row,
                                 .query_head_stride = kGpuHeadDim,
                                 .output_sequence_stride = row,
                                 .output_head_stride = kGpuHeadDim,
                                 .kv = cache,
                                 .sequences = sequence,
                                 .softmax_scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim))};
  KVT_RETURN_IF_ERROR(Reserve(&decode_workspace_, table().decode_workspace_bytes(&params)));
  return ToStatus(
      table().decode(&params, decode_workspace_.memory(), decode_workspace_.bytes(), stream_.get()),
      "decode");
}

Status KernelAttention::Append(const kvt_paged_kv& cache, const kvt_sequences& sequence,
                               const int32_t* query_starts, int32_t query_tokens) {
  const auto row = static_cast<int64_t>(pool_.query_heads * kGpuHeadDim);
  const kvt_prefill_params params{.query = queries_.memory(),
                                  .output = output_.memory(),
                                  .query_dtype = KVT_FP16,
                                  .q_heads = static_cast<int32_t>(pool_.query_heads),
                                  .query_token_stride = row,
                                  .query_head_stride = kGpuHeadDim,
                                  .output_token_stride = row,
                                  .output_head_stride = kGpuHeadDim,
                                  .kv = cache,
                                  .sequences = sequence,
                                  .query_starts = query_starts,
                                  .query_tokens = query_tokens,
                                  .softmax_scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim)),
                                  .causal = 1};
  KVT_RETURN_IF_ERROR(Reserve(&prefill_workspace_, table().prefill_workspace_bytes(&params)));
  return ToStatus(table().prefill(&params, prefill_workspace_.memory(), prefill_workspace_.bytes(),
                                  stream_.get()),
                  "append");
}

Status KernelAttention::Attend(const LayerRows& rows, std::span<const int32_t> block_table,
                               const float* queries, float* mixed) {
  const std::lock_guard lock(mutex_);
  KVT_RETURN_IF_ERROR(SelectDevice());
  const auto length = static_cast<int32_t>(rows.first_position + rows.count);
  const size_t vectors = rows.count * pool_.query_heads;
  std::vector<uint16_t> halves = Widen(queries, vectors);
  KVT_RETURN_IF_ERROR(Upload(&queries_, halves));
  KVT_RETURN_IF_ERROR(Reserve(&output_, halves.size() * kElementBytes));
  // The sequence's length, where its queries begin and end, then its blocks.
  std::vector<int32_t> tables = {length, 0, static_cast<int32_t>(rows.count), 0};
  tables.insert(tables.end(), block_table.begin(), block_table.end());
  KVT_RETURN_IF_ERROR(Upload(&tables_, tables));
  const auto* const table = static_cast<const int32_t*>(tables_.memory());
  const kvt_sequences sequence{.block_table = table + 4,
                               .kv_lengths = table,
                               .table_stride = static_cast<int64_t>(block_table.size()),
                               .sequences = 1,
                               .max_kv_length = length};
  const kvt_paged_kv cache = Layer(rows.layer);
  KVT_RETURN_IF_ERROR(rows.count == 1
                          ? Decode(cache, sequence)
                          : Append(cache, sequence, table + 1, static_cast<int32_t>(rows.count)));
  KVT_RETURN_IF_ERROR(
      ToStatus(stream_.Copy(halves.data(), output_.memory(), halves.size() * kElementBytes),
               "copying from the GPU"));
  KVT_RETURN_IF_ERROR(ToStatus(stream_.Synchronize(), "waiting for the kernels"));
  for (size_t i = 0; i < vectors; ++i) {
    std::transform(&halves[i * kGpuHeadDim], &halves[i * kGpuHeadDim] + kHeadDim,
                   mixed + i * kHeadDim, kernels::FloatFromFp16);
  }
  return {};
}

Status KernelAttention::Copy(uint64_t to, uint64_t from, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  KVT_RETURN_IF_ERROR(SelectDevice());
  KVT_RETURN_IF_ERROR(
      ToStatus(stream_.Copy(reinterpret_cast<void*>(pool_.base + to),
                            reinterpret_cast<const void*>(pool_.base + from), bytes),
               "copying a block"));
  return ToStatus(stream_.Synchronize(), "copying a block");
}

}  // namespace

Result<std::unique_ptr<GpuAttention>> GpuAttention::Open(const GpuPool& pool) {
  const kernels::KernelLibrary library = kernels::OpenKernelLibrary();
  if (library.table == nullptr) {
    return MakeError(ErrorCode::kUnsupported, "no_kernels", library.why_not);
  }
  auto attention = std::make_unique<KernelAttention>(pool);
  KVT_RETURN_IF_ERROR(attention->Start(library.table));
  return attention;
}

void GpuKv::Store(const LayerRows& rows, const float* keys, const float* values) {
  Remember(gpu_->Store(rows, block_table_, keys, values));
}

void GpuKv::Attend(const LayerRows& rows, const float* queries, std::span<float>, float* mixed) {
  const Status attended = gpu_->Attend(rows, block_table_, queries, mixed);
  if (!attended) std::fill_n(mixed, rows.count * rows.shape.query_width(), 0.0F);
  Remember(attended);
}

Status GpuKv::status() const {
  const std::lock_guard lock(mutex_);
  if (error_) return tl::unexpected(*error_);
  return {};
}

void GpuKv::Remember(const Status& status) {
  if (status) return;
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = status.error();
}

}  // namespace kvtier::generate
