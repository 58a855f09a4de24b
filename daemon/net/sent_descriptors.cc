// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/sent_descriptors.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "daemon/runtime/process.h"

namespace kvtier {
namespace {

// How often the kernel is asked, and about how many sockets at once: clients that leave tens of
// thousands unread cost the loop a few percent.
constexpr int64_t kLookMs = 20;
constexpr size_t kLooksPerEvent = 512;

bool AllTaken(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

}  // namespace

uint64_t MaxUnreadDescriptors() { return MostDescriptors() / 4; }

SentDescriptors::Sender::Sender(SentDescriptors* all, PeerSocket* socket, const std::string& tenant)
    : all_(*all), socket_(*socket), unread_(std::make_shared<Unread>(tenant, socket->get())) {}

// The peer sees the end, and can still take in all that was sent. The next look finds the socket.
SentDescriptors::Sender::~Sender() {
  all_.Look(unread_.get());
  if (unread_->count > 0) {
    ::shutdown(socket_.get(), SHUT_RDWR);
    unread_->ended.emplace(socket_.Take(), &all_.closer_, unread_->tenant);
  }
}

std::optional<Error> SentDescriptors::Sender::Refusal(size_t count) {
  if (unread_->count + count > kMaxUnreadDescriptors) {
    all_.Look(unread_.get());
    if (unread_->count + count > kMaxUnreadDescriptors) {
      return Error{ErrorCode::kTimeout, "slow_reader", "replies with descriptors were not read"};
    }
  }
  if (all_.budget_.MayTake(unread_->tenant, count)) return std::nullopt;
  return Error{ErrorCode::kLimitExceeded, "unread_descriptors",
               "clients of the tenant have not read replies with descriptors"};
}

void SentDescriptors::Sender::NoteSent(size_t count) {
  unread_->count += count;
  all_.budget_.Take(unread_->tenant, count);
  if (!std::exchange(unread_->listed, true)) all_.unread_.push_back(unread_);
  all_.LookLater();
}

void SentDescriptors::Look(Unread* unread) {
  if (unread->count == 0 || !AllTaken(unread->socket)) return;
  budget_.GiveBack(unread->tenant, std::exchange(unread->count, 0));
}

void SentDescriptors::LookLater() {
  if (!next_look_.running()) next_look_.Start(kLookMs, [this] { LookAround(); });
}

void SentDescriptors::LookAround() {
  for (size_t looks = std::min(unread_.size(), kLooksPerEvent); looks > 0; --looks) {
    std::shared_ptr<Unread> first = std::move(unread_.front());
    unread_.pop_front();
    Look(first.get());
    first->listed = first->count > 0;
    if (first->listed) unread_.push_back(std::move(first));
  }
  if (!unread_.empty()) LookLater();
}

}  // namespace kvtier
