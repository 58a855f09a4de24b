// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/cold_buffers.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace kvtier {

struct ColdBuffers::Shelf {
  const uint64_t max_bytes;
  std::mutex mutex;  // guards what follows
  std::vector<std::unique_ptr<Buffer>> waiting;
  uint64_t bytes = 0;

  explicit Shelf(uint64_t max) : max_bytes(max) {}

  [[nodiscard]] std::unique_ptr<Buffer> Pop(size_t least) {
    const std::lock_guard lock(mutex);
    const auto fits = std::ranges::find_if(
        waiting, [least](const auto& buffer) { return buffer->capacity() >= least; });
    if (fits == waiting.end()) return nullptr;
    std::unique_ptr<Buffer> buffer = std::move(*fits);
    std::swap(*fits, waiting.back());
    waiting.pop_back();
    bytes -= buffer->capacity();
    return buffer;
  }
  // One that there is no space for is freed when the lock is not held any more.
  void Push(std::unique_ptr<Buffer> buffer) {
    const std::lock_guard lock(mutex);
    if (bytes + buffer->capacity() > max_bytes) return;
    bytes += buffer->capacity();
    waiting.push_back(std::move(buffer));
  }
};

ColdBuffers::ColdBuffers(uint64_t max_kept_bytes)
    : shelf_(std::make_shared<Shelf>(max_kept_bytes)) {}

std::shared_ptr<ColdBuffers::Buffer> ColdBuffers::Take(size_t bytes) {
  std::unique_ptr<Buffer> buffer = shelf_->Pop(bytes);
  if (!buffer) buffer = std::make_unique<Buffer>();
  buffer->resize(bytes);
  return {buffer.release(),
          [shelf = shelf_](Buffer* given_up) { shelf->Push(std::unique_ptr<Buffer>(given_up)); }};
}

uint64_t ColdBuffers::kept_bytes() const {
  const std::lock_guard lock(shelf_->mutex);
  return shelf_->bytes;
}

}  // namespace kvtier
