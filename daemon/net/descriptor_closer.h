// SPDX-License-Identifier: Apache-2.0
// Closes descriptors whose last reference may be ours and which others have had a hand in: a TCP
// socket with SO_LINGER, or a file of a user's file system, can hold up close() for as long as its
// maker likes. That must not hold up the event loop.
#pragma once

#include <memory>
#include <utility>

#include "base/posix.h"

namespace kvtier {

// One thread, started with the first descriptor. The destructor does not wait for it: a close()
// that hangs must not hold up the daemon's end either.
class DescriptorCloser {
 public:
  DescriptorCloser();
  // What is queued is still closed if the process lives long enough. The process's end closes the
  // rest.
  ~DescriptorCloser();
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;

  // Returns at once. Any thread.
  void Close(UniqueFd descriptor);
  // How many descriptors Close was given that are not closed yet. Any thread.
  [[nodiscard]] size_t pending() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

// A descriptor that its closer closes when the owner goes. Move-only.
class ForeignFd {
 public:
  // `closer` is borrowed and outlives it; null: closed in place.
  ForeignFd(UniqueFd descriptor, DescriptorCloser* closer)
      : descriptor_(std::move(descriptor)), closer_(closer) {}
  ForeignFd(ForeignFd&&) noexcept = default;
  ForeignFd& operator=(ForeignFd&&) = delete;
  ~ForeignFd() {
    if (descriptor_.valid() && closer_ != nullptr) closer_->Close(std::move(descriptor_));
  }

  [[nodiscard]] int get() const { return descriptor_.get(); }
  // Gives it up: it is the caller's to close.
  [[nodiscard]] UniqueFd Take() { return std::move(descriptor_); }

 private:
  UniqueFd descriptor_;
  DescriptorCloser* closer_;
};

}  // namespace kvtier
