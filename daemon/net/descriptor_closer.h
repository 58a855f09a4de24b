// SPDX-License-Identifier: Apache-2.0
// Closes descriptors whose last reference may be ours and which others have had a hand in: a TCP
// socket with SO_LINGER, a file of a user's file system, or memory of hundreds of GiB can hold up
// close() for long, or for as long as its maker likes. They must hold up neither the event loop nor
// the descriptors of other senders.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/posix.h"

namespace kvtier {

inline constexpr size_t kMaxClosersPerSender = 4;

// Each sender has threads of its own, kMaxClosersPerSender at most, that are started when there is
// something to close and end when all is closed. One that hangs is given up: the sender's next
// descriptors get another, until all that a sender may have hang. Waits for SO_LINGER are ended
// (LingerBreaker). The destructor waits for none of them.
class DescriptorCloser {
 public:
  using CloseCall = std::function<void(UniqueFd)>;

  // `close` is called on the threads; it may hang, and outlive this object.
  explicit DescriptorCloser(CloseCall close = CloseLingering);
  // Its threads go on until all is closed, or the process ends.
  ~DescriptorCloser();
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;

  // A descriptor that `sender` has sent. Returns at once. Any thread.
  void Close(UniqueFd descriptor, const std::string& sender);
  // Close for one sender. It may be called when this has gone.
  [[nodiscard]] std::function<void(UniqueFd)> CloseFor(const std::string& sender) const;
  // A socket of our own, that `peer` is at the other end of. Descriptors that were sent to it and
  // not received are closed with it. If it may hold some, threads of the peer close it that close
  // nothing else; if not, it is closed within the call. Any thread.
  void CloseSocket(UniqueFd socket, const std::string& peer);
  // How many descriptors of the sender Close was given that are not closed yet. Any thread.
  [[nodiscard]] size_t pending(const std::string& sender) const;
  // The same of all senders, and of sockets. Any thread.
  [[nodiscard]] size_t pending() const;

 private:
  struct State;
  // Waits for no SO_LINGER.
  static void CloseLingering(UniqueFd descriptor);

  const std::shared_ptr<State> state_;
};

// A descriptor that another process has sent; its closer closes it when the owner goes. Move-only.
class ForeignFd {
 public:
  // `closer` is borrowed and outlives it.
  ForeignFd(UniqueFd descriptor, DescriptorCloser* closer, std::string sender)
      : descriptor_(std::move(descriptor)), closer_(closer), sender_(std::move(sender)) {}
  ForeignFd(ForeignFd&&) noexcept = default;
  ForeignFd& operator=(ForeignFd&&) = delete;
  ~ForeignFd() {
    if (descriptor_.valid()) closer_->Close(std::move(descriptor_), sender_);
  }

  [[nodiscard]] int get() const { return descriptor_.get(); }
  // Gives it up: it is the caller's to close.
  [[nodiscard]] UniqueFd Take() { return std::move(descriptor_); }

 private:
  UniqueFd descriptor_;
  DescriptorCloser* closer_;
  std::string sender_;
};

// A socket with a peer, closed as CloseSocket does. Not movable.
class PeerSocket {
 public:
  // `closer` is borrowed and outlives it.
  PeerSocket(UniqueFd socket, DescriptorCloser* closer, std::string peer)
      : socket_(std::move(socket)), closer_(closer), peer_(std::move(peer)) {}
  PeerSocket(const PeerSocket&) = delete;
  PeerSocket& operator=(const PeerSocket&) = delete;
  ~PeerSocket() { closer_->CloseSocket(std::move(socket_), peer_); }

  [[nodiscard]] int get() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  DescriptorCloser* const closer_;
  const std::string peer_;
};

}  // namespace kvtier
