// SPDX-License-Identifier: Apache-2.0
// Descriptors that were sent and that their receivers may not have taken in. The kernel counts them
// against this process's user, and sends none beyond RLIMIT_NOFILE: a client that asks for many and
// reads nothing would keep all others from theirs, also after its connection's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/tenant_budget.h"
#include "daemon/net/descriptor_closer.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// As many may be on their way to one client, which is enough for all groups of a model at once.
inline constexpr size_t kMaxUnreadDescriptors = 16;

// How many may be on their way to all clients together: a part of the kernel's limit, since this
// user's other processes send some, too.
[[nodiscard]] uint64_t MaxUnreadDescriptors();

// Event loop only. It counts for each socket and each tenant. The kernel tells that a socket's peer
// has taken in all that was sent, not how much.
class SentDescriptors {
  struct Unread;

 public:
  // One connection's. Destroyed before `all`, and when nothing watches the socket any more.
  class Sender {
   public:
    // Both are borrowed and outlive it; `socket` is given up at the end if its peer may not have
    // taken in all descriptors.
    Sender(SentDescriptors* all, PeerSocket* socket, const std::string& tenant);
    ~Sender();
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    // Why so many more may not be sent now; nothing if they may be. Errors: kTimeout "slow_reader"
    // (this client has not read the last); kLimitExceeded "unread_descriptors" (the tenant's).
    [[nodiscard]] std::optional<Error> Refusal(size_t count);
    void NoteSent(size_t count);

   private:
    SentDescriptors& all_;
    PeerSocket& socket_;
    const std::shared_ptr<Unread> unread_;
  };

  // So many are shared by all tenants. `loop` and `closer` are borrowed and outlive this.
  SentDescriptors(EventLoop* loop, DescriptorCloser* closer, uint64_t total)
      : closer_(*closer), budget_(total), next_look_(loop) {}
  SentDescriptors(const SentDescriptors&) = delete;
  SentDescriptors& operator=(const SentDescriptors&) = delete;

  // How many the tenant's clients may not have taken in.
  [[nodiscard]] uint64_t unread(const std::string& tenant) const { return budget_.taken(tenant); }

 private:
  struct Unread {
    Unread(std::string of_tenant, int of_socket)
        : tenant(std::move(of_tenant)), socket(of_socket) {}

    const std::string tenant;
    const int socket;
    size_t count = 0;
    bool listed = false;              // in `unread_`
    std::optional<PeerSocket> ended;  // the socket of a connection that has ended
  };

  // Asks the kernel whether all were taken in.
  void Look(Unread* unread);
  void LookLater();
  void LookAround();

  DescriptorCloser& closer_;
  TenantBudget budget_;
  std::deque<std::shared_ptr<Unread>> unread_;
  Timer next_look_;
};

}  // namespace kvtier
