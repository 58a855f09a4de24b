// SPDX-License-Identifier: Apache-2.0
// A kernel table whose GPUs are host memory, and that notices calls made with another GPU current
// than the one they concern.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvtier/kernel_table.h"

namespace kvtier::kernels {

// One at a time; the table's calls go to the one that lives. Any thread.
class FakeKernelTable {
 public:
  static constexpr int32_t kGpus = 4;

  FakeKernelTable() { living_ = this; }
  ~FakeKernelTable() { living_ = nullptr; }
  FakeKernelTable(const FakeKernelTable&) = delete;
  FakeKernelTable& operator=(const FakeKernelTable&) = delete;

  [[nodiscard]] const kvt_kernel_table* table() const { return &kTable; }

  // Bytes that are allocated on a GPU now, and its streams.
  [[nodiscard]] size_t BytesOn(int32_t gpu) const {
    const std::lock_guard lock(mutex_);
    size_t bytes = 0;
    for (const auto& [address, memory] : memory_) bytes += memory.gpu == gpu ? memory.bytes : 0;
    return bytes;
  }
  [[nodiscard]] size_t StreamsOn(int32_t gpu) const {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    for (const auto& [stream, its_gpu] : streams_) count += its_gpu == gpu ? 1 : 0;
    return count;
  }
  // Calls of another GPU's streams or memory, and of those that are gone.
  [[nodiscard]] std::vector<std::string> mistakes() const {
    const std::lock_guard lock(mutex_);
    return mistakes_;
  }
  [[nodiscard]] int synchronised() const {
    const std::lock_guard lock(mutex_);
    return synchronised_;
  }

  // From here on.
  kvt_kernel_status stream_answer = KVT_KERNEL_OK;
  kvt_kernel_status allocate_answer = KVT_KERNEL_OK;
  kvt_kernel_status launch_answer = KVT_KERNEL_OK;
  kvt_kernel_status synchronize_answer = KVT_KERNEL_OK;
  // Called by decode and by prefill, when set.
  std::function<void(const kvt_decode_params&)> on_decode;
  std::function<void(const kvt_prefill_params&)> on_prefill;

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
    int32_t gpu = 0;
  };

  static kvt_kernel_status SelectDevice(int32_t ordinal) {
    if (ordinal < 0 || ordinal >= kGpus) return KVT_KERNEL_UNSUPPORTED;
    current_ = ordinal;
    return KVT_KERNEL_OK;
  }
  static kvt_kernel_status CreateStream(void** stream) {
    if (living_->stream_answer != KVT_KERNEL_OK) return living_->stream_answer;
    const std::lock_guard lock(living_->mutex_);
    *stream = reinterpret_cast<void*>(++living_->last_stream_);
    living_->streams_[*stream] = current_;
    return KVT_KERNEL_OK;
  }
  static void DestroyStream(void* stream) {
    living_->CheckStream("destroy_stream", stream);
    const std::lock_guard lock(living_->mutex_);
    living_->streams_.erase(stream);
  }
  static kvt_kernel_status Synchronize(void* stream) {
    living_->CheckStream("synchronize", stream);
    const std::lock_guard lock(living_->mutex_);
    ++living_->synchronised_;
    return living_->synchronize_answer;
  }
  static kvt_kernel_status Allocate(void** memory, size_t bytes) {
    *memory = nullptr;
    if (living_->allocate_answer != KVT_KERNEL_OK) return living_->allocate_answer;
    auto data = std::make_unique<std::byte[]>(bytes);
    *memory = data.get();
    const std::lock_guard lock(living_->mutex_);
    living_->memory_[*memory] = {std::move(data), bytes, current_};
    return KVT_KERNEL_OK;
  }
  static void Release(void* memory) {
    const std::lock_guard lock(living_->mutex_);
    const auto found = living_->memory_.find(memory);
    if (found == living_->memory_.end() || found->second.gpu != current_) {
      living_->mistakes_.emplace_back("release");
    }
    living_->memory_.erase(memory);
  }
  static kvt_kernel_status Copy(void* to, const void* from, size_t bytes, void* stream) {
    living_->CheckStream("copy", stream);
    std::memcpy(to, from, bytes);
    return KVT_KERNEL_OK;
  }
  static kvt_kernel_status Decode(const kvt_decode_params* params, void*, size_t, void* stream) {
    living_->CheckStream("decode", stream);
    if (living_->on_decode) living_->on_decode(*params);
    return living_->launch_answer;
  }
  static kvt_kernel_status Prefill(const kvt_prefill_params* params, void*, size_t, void* stream) {
    living_->CheckStream("append", stream);
    if (living_->on_prefill) living_->on_prefill(*params);
    return KVT_KERNEL_OK;
  }
  static kvt_kernel_status KvWrite(const kvt_kv_write_params*, void* stream) {
    living_->CheckStream("kv_write", stream);
    return KVT_KERNEL_OK;
  }

  void CheckStream(const char* call, void* stream) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end() || found->second != current_) mistakes_.emplace_back(call);
  }

  static constexpr kvt_kernel_table kTable = {
      .abi = KVT_KERNELS_ABI,
      .table_bytes = sizeof(kvt_kernel_table),
      .decode_params_bytes = sizeof(kvt_decode_params),
      .prefill_params_bytes = sizeof(kvt_prefill_params),
      .kv_write_params_bytes = sizeof(kvt_kv_write_params),
      .version = "fake",
      .status_text = [](kvt_kernel_status) { return "status"; },
      .last_error_detail = [] { return "detail"; },
      .cuda_error_text = [] { return "error"; },
      .decode_workspace_bytes = [](const kvt_decode_params*) { return size_t{4096}; },
      .decode = Decode,
      .prefill_workspace_bytes = [](const kvt_prefill_params*) { return size_t{4096}; },
      .prefill = Prefill,
      .kv_write = KvWrite,
      .select_device = SelectDevice,
      .create_stream = CreateStream,
      .destroy_stream = DestroyStream,
      .synchronize = Synchronize,
      .allocate = Allocate,
      .release = Release,
      .copy = Copy,
  };

  inline static FakeKernelTable* living_ = nullptr;
  // As CUDA's: each thread has its own.
  inline static thread_local int32_t current_ = 0;

  mutable std::mutex mutex_;  // guards the following
  std::map<void*, Memory> memory_;
  std::map<void*, int32_t> streams_;
  uintptr_t last_stream_ = 0;
  int synchronised_ = 0;
  std::vector<std::string> mistakes_;
};

}  // namespace kvtier::kernels
