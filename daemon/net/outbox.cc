// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/outbox.h"

#include <span>

#include "protocol/socket_io.h"

namespace kvtier {
namespace {

// A segment this long is not appended to: what was sent of it could not be freed.
constexpr size_t kFullSegmentBytes = 64u << 10;

}  // namespace

std::vector<std::byte>& Outbox::OpenTail() {
  if (segments_.empty() || segments_.back().data.size() >= kFullSegmentBytes) {
    segments_.emplace_back();
  }
  return segments_.back().data;
}

Result<size_t> Outbox::SendTo(int socket) {
  size_t total = 0;
  while (!segments_.empty()) {
    Segment& segment = segments_.front();
    const auto rest = std::span<const std::byte>(segment.data).subspan(segment.sent);
    const int descriptor = segment.sent == 0 ? segment.descriptor : -1;
    if (!rest.empty()) {
      KVT_ASSIGN_OR_RETURN(const std::optional<size_t> sent, wire::Send(socket, rest, descriptor));
      if (!sent) return total;
      segment.sent += *sent;
      total += *sent;
      bytes_ -= *sent;
    }
    if (segment.sent == segment.data.size()) segments_.pop_front();
  }
  return total;
}

void Outbox::Clear() {
  segments_.clear();
  bytes_ = 0;
}

}  // namespace kvtier
