// SPDX-License-Identifier: Apache-2.0
// The unsent frames of a connection: encoded, some with descriptors that travel with their first
// byte. Does not limit itself: its owner looks at bytes() and stops making more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "daemon/net/descriptor_closer.h"
#include "daemon/net/sent_descriptors.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Event loop only. It owns the encoded bytes, not the descriptors. A frame with descriptors begins
// a segment, so that they travel with exactly its first byte: the client's receiver relies on that
// to match the two.
class Outbox {
 public:
  // All are borrowed and outlive it; see SentDescriptors::Sender of the socket.
  Outbox(EventLoop* loop, PeerSocket* socket, SentDescriptors* sent, const std::string& tenant)
      : socket_(*socket), sender_(sent, socket, tenant), retry_(loop) {}

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
    descriptors_ += descriptors.size();
    segments_.push_back({{}, 0, std::move(descriptors), std::move(owner)});
    Append(std::forward<Encode>(encode));
  }

  // Sends until all is sent, the socket would block or it stalls; returns how many bytes went.
  // Errors: those of wire::Send by which it does not stall.
  [[nodiscard]] Result<size_t> Send();
  // Why the last Send ended though the socket may have space: Sender::Refusal, or wire::Send's
  // "send_refused". No event tells when that is over.
  [[nodiscard]] const std::optional<Error>& stall() const { return stall_; }
  // Calls `again` when it is time to try: soon, and later each time that nothing went. Not after
  // Clear.
  void Retry(std::function<void()> again);

  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] size_t descriptors() const { return descriptors_; }
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

  PeerSocket& socket_;
  SentDescriptors::Sender sender_;
  std::deque<Segment> segments_;
  size_t bytes_ = 0;
  size_t descriptors_ = 0;
  std::optional<Error> stall_;
  int64_t retry_ms_ = 0;
  Timer retry_;
};

}  // namespace kvtier
