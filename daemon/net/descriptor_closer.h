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

#include "base/hang_up.h"
#include "base/posix.h"
#include "daemon/net/sender_threads.h"

namespace kvtier {

// Threads of the sender close, and may hang (SenderThreads). Waits for SO_LINGER are ended
// (LingerBreaker). The destructor waits for nothing: threads go on until all is closed, or the
// process ends.
class DescriptorCloser {
 public:
  using CloseCall = std::function<void(UniqueFd)>;

  // `close` is called on the threads; it may hang, and outlive this object.
  explicit DescriptorCloser(CloseCall close = CloseLingering) : close_(std::move(close)) {}
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
  // The same of all senders, and of sockets, with all else that threads of senders do. Any thread.
  [[nodiscard]] size_t pending() const { return threads_.pending(); }
  // For other calls that may hang.
  [[nodiscard]] const SenderThreads& threads() const { return threads_; }

 private:
  // Waits for no SO_LINGER.
  static void CloseLingering(UniqueFd descriptor);
  // The call that closes the descriptor.
  [[nodiscard]] static std::function<void()> CallOf(const CloseCall& close, UniqueFd descriptor);

  const CloseCall close_;
  const SenderThreads threads_;
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
  ~PeerSocket() { closer_->CloseSocket(Take(), peer_); }

  [[nodiscard]] int get() const { return socket_.get(); }
  // May be asked when this has gone.
  [[nodiscard]] const std::shared_ptr<HangUp>& hang_up() const { return hang_up_; }
  // Gives it up: the caller closes it likewise.
  [[nodiscard]] UniqueFd Take() {
    hang_up_->NoteEnd();
    return std::move(socket_);
  }

 private:
  UniqueFd socket_;
  DescriptorCloser* const closer_;
  const std::string peer_;
  const std::shared_ptr<HangUp> hang_up_ = std::make_shared<HangUp>(socket_.get());
};

}  // namespace kvtier
