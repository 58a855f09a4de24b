// SPDX-License-Identifier: Apache-2.0
// The descriptors that a peer sends beside its bytes: they are admitted before they are received,
// and kept for the frame that they came with.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/net/descriptor_closer.h"

namespace kvtier {

// Part of a Connection. Event loop only. Closing a descriptor may take long: that is left to the
// DescriptorCloser, in the tenant's name.
class DescriptorInbox {
 public:
  // `socket` and `closer` are borrowed and outlive this.
  DescriptorInbox(const PeerSocket* socket, DescriptorCloser* closer, const std::string& tenant)
      : socket_(*socket), closer_(*closer), tenant_(tenant) {}

  // The peer may send descriptors from now on.
  void Accept();
  // So many of the next bytes may come with descriptors. Errors, on which nothing should be
  // received: kInvalidArgument "unexpected_descriptor" before Accept; kLimitExceeded
  // "too_many_descriptors" while many of the tenant's wait to be closed.
  [[nodiscard]] Status Expect(size_t bytes);
  [[nodiscard]] bool expects() const { return bytes_with_descriptors_ > 0; }

  struct Received {
    Result<std::optional<size_t>> bytes;  // as of wire::Receive
    size_t descriptors = 0;
  };
  // Receives at most `wanted` of the expected bytes. Keeps the descriptors of a frame's first byte,
  // as many as a frame has use for, and closes all others. REQUIRES: expects().
  [[nodiscard]] Received Receive(std::span<std::byte> space, size_t wanted, bool begins_frame);
  // See Connection::TakeDescriptor.
  [[nodiscard]] std::optional<UniqueFd> Take();
  // The frame that they came with has been handled.
  void Clear() { kept_.clear(); }

 private:
  const PeerSocket& socket_;
  DescriptorCloser& closer_;
  const std::string tenant_;
  bool accepts_ = false;
  size_t bytes_with_descriptors_ = 0;  // the next so many bytes may come with some
  std::deque<ForeignFd> kept_;         // of the next frame
};

}  // namespace kvtier
