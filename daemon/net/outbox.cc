// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/outbox.h"

#include <span>

#include "protocol/socket_io.h"

namespace kvtier {
namespace {

// A segment this long is not appended to: its memory is freed only when all of it is sent, so that
// one segment that grows for ever would never be freed under steady traffic.
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
    // The descriptors go with the first byte only. A send that took no byte has not sent them
    // either.
    const std::span<const int> descriptors =
        segment.sent == 0 ? std::span<const int>(segment.descriptors) : std::span<const int>();
    if (!rest.empty()) {
      KVT_ASSIGN_OR_RETURN(const std::optional<size_t> sent, wire::Send(socket, rest, descriptors));
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
