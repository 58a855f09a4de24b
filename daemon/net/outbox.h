// SPDX-License-Identifier: Apache-2.0
// The unsent frames of a connection: encoded, some with descriptors that travel with their first
// byte. Does not limit itself: its owner looks at bytes() and stops making more.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvtier {

// Event loop only. It owns the encoded bytes, not the descriptors. A frame with descriptors begins
// a segment, so that they travel with exactly its first byte: the client's receiver relies on that
// to match the two.
class Outbox {
 public:
  // Appends what `encode(std::vector<std::byte>*)` appends to the buffer it is given.
  template <typename Encode>
  void Append(Encode&& encode) {
    std::vector<std::byte>& tail = OpenTail();
    const size_t before = tail.size();
    encode(&tail);
    bytes_ += tail.size() - before;
  }
  // The same, with `descriptors` attached to the first byte appended. `owner` keeps them open and
  // is kept until they were sent: a number that was closed may be another client's by then.
  // REQUIRES: `encode` appends something; at most wire::kMaxDescriptorsPerSend.
  template <typename Encode>
  void AppendWithDescriptors(std::vector<int> descriptors, std::shared_ptr<const void> owner,
                             Encode&& encode) {
    KVT_CHECK(owner != nullptr);
    segments_.push_back({{}, 0, std::move(descriptors), std::move(owner)});
    Append(std::forward<Encode>(encode));
  }

  // Sends until all is sent or the socket would block; returns how many bytes went.
  // Errors: those of wire::Send.
  [[nodiscard]] Result<size_t> SendTo(int socket);

  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const { return bytes_ == 0; }
  // Drops everything unsent, and the owners of descriptors with it. A frame sent half stays half:
  // the connection must be over.
  void Clear();

 private:
  // Bytes that are sent one after the other, with descriptors only at their beginning.
  struct Segment {
    std::vector<std::byte> data;
    size_t sent = 0;
    std::vector<int> descriptors;
    std::shared_ptr<const void> owner;  // of the descriptors
  };

  // A buffer to append to: small frames share one, so that they share system calls.
  std::vector<std::byte>& OpenTail();

  std::deque<Segment> segments_;
  size_t bytes_ = 0;
};

}  // namespace kvtier
