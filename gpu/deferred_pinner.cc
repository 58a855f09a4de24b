// SPDX-License-Identifier: Apache-2.0
#include "gpu/deferred_pinner.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvtier {

void DeferredPinner::Begin() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(begun_, true)) return;
  }
  PinNext();
}

Status DeferredPinner::Pin(std::span<std::byte> memory) {
  {
    const std::lock_guard lock(mutex_);
    if (!begun_) {
      noted_.push_back(memory);
      return {};
    }
  }
  return pinner_->Pin(memory);
}

void DeferredPinner::Unpin(std::span<std::byte> memory) {
  {
    std::unique_lock lock(mutex_);
    pinned_.wait(lock, [&] { return pinning_ != memory.data(); });
    if (unpinned_.erase(memory.data()) > 0) return;
    const auto noted = std::ranges::find(noted_, memory.data(), &std::span<std::byte>::data);
    if (noted != noted_.end()) {
      noted_.erase(noted);
      return;
    }
  }
  pinner_->Unpin(memory);
}

// One piece for each event, so that a daemon that ends meanwhile waits for one only.
void DeferredPinner::PinNext() {
  std::span<std::byte> piece;
  {
    const std::lock_guard lock(mutex_);
    if (noted_.empty()) return;
    piece = noted_.front();
    noted_.pop_front();
    pinning_ = piece.data();
  }
  const auto failed = std::make_shared<std::optional<Error>>();
  executor_->Run(
      [this, piece, failed] {
        const Status pinned = pinner_->Pin(piece);
        if (!pinned) *failed = pinned.error();
        const std::lock_guard lock(mutex_);
        if (!pinned) unpinned_.insert(piece.data());
        pinning_ = nullptr;
        pinned_.notify_all();
      },
      gate_.WhileOpen([this, failed] {
        if (*failed && log_) log_((*failed)->ToString());
        PinNext();
      }));
}

}  // namespace kvtier
