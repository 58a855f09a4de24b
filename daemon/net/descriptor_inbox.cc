// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/descriptor_inbox.h"

#include <algorithm>
#include <utility>

#include "daemon/net/descriptor_kind.h"
#include "daemon/net/linger_breaker.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

// Descriptors of one tenant that wait to be closed. A client of the tenant that sends more is cut
// off before they are received: each costs an entry of the process's descriptor table, and a client
// could otherwise use up the table by sending descriptors whose close() hangs.
constexpr size_t kMaxDescriptorsPending = 256;

// As many as a frame has use for.
constexpr size_t kMaxDescriptorsOfFrame = 2;

}  // namespace

void DescriptorInbox::Accept() {
  accepts_ = true;
  PassDescriptors(socket_.get(), true);
}

Status DescriptorInbox::Expect(size_t bytes) {
  if (!accepts_) {
    return MakeError(ErrorCode::kInvalidArgument, "unexpected_descriptor",
                     "before HELLO was answered");
  }
  if (closer_.pending(tenant_) > kMaxDescriptorsPending) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_descriptors",
                     "those sent before could not be closed yet");
  }
  bytes_with_descriptors_ = bytes;
  return {};
}

DescriptorInbox::Received DescriptorInbox::Receive(std::span<std::byte> space, size_t wanted,
                                                   bool begins_frame) {
  space = space.first(std::min({space.size(), wanted, bytes_with_descriptors_}));
  std::vector<UniqueFd> descriptors;
  Result<std::optional<size_t>> bytes = [&] {
    // Descriptors that the process's table has no room for are closed within the call.
    const LingerBreaker breaker;
    return wire::Receive(socket_.get(), space, &descriptors);
  }();
  bytes_with_descriptors_ -= bytes ? bytes->value_or(0) : 0;
  if (!descriptors.empty()) bytes_with_descriptors_ = 0;
  for (UniqueFd& descriptor : descriptors) {
    const bool has_use = begins_frame && kept_.size() < kMaxDescriptorsOfFrame;
    const bool is_kept = has_use && IsOfMemory(descriptor.get());
    if (!is_kept) closer_.Close(std::move(descriptor), tenant_);
    if (has_use) kept_.emplace_back(std::move(descriptor), &closer_, tenant_);
  }
  return {std::move(bytes), descriptors.size()};
}

std::optional<UniqueFd> DescriptorInbox::Take() {
  if (kept_.empty()) return std::nullopt;
  UniqueFd first = kept_.front().Take();
  kept_.pop_front();
  return first;
}

}  // namespace kvtier
