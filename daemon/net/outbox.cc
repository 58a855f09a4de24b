// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/outbox.h"

#include <algorithm>
#include <span>

#include "protocol/socket_io.h"

namespace kvtier {
namespace {

// A segment this long is not appended to: its memory is freed only when all of it is sent, so that
// one segment that grows for ever would never be freed under steady traffic.
constexpr size_t kFullSegmentBytes = 64u << 10;

// After the first of these times a client that reads has taken in all that is on its way.
constexpr int64_t kFirstRetryMs = 1;
constexpr int64_t kLastRetryMs = 50;

}  // namespace

std::vector<std::byte>& Outbox::OpenTail() {
  if (segments_.empty() || segments_.back().data.size() >= kFullSegmentBytes) {
    segments_.emplace_back();
  }
  return segments_.back().data;
}

Result<size_t> Outbox::Send() {
  size_t total = 0;
  stall_.reset();
  while (!segments_.empty()) {
    Segment& segment = segments_.front();
    const auto rest = std::span<const std::byte>(segment.data).subspan(segment.sent);
    // The descriptors go with the first byte only. A send that took no byte has not sent them
    // either.
    const std::span<const int> descriptors =
        segment.sent == 0 ? std::span<const int>(segment.descriptors) : std::span<const int>();
    if (!descriptors.empty()) stall_ = sender_.Refusal(descriptors.size());
    if (stall_) break;
    if (!rest.empty()) {
      const Result<std::optional<size_t>> sent = wire::Send(socket_.get(), rest, descriptors);
      if (!sent) {
        if (sent.error().code != ErrorCode::kResourceExhausted) return tl::unexpected(sent.error());
        stall_ = sent.error();
        break;
      }
      if (!*sent) break;
      if (!descriptors.empty()) sender_.NoteSent(descriptors.size());
      descriptors_ -= descriptors.size();
      segment.sent += **sent;
      total += **sent;
      bytes_ -= **sent;
    }
    if (segment.sent == segment.data.size()) segments_.pop_front();
  }
  if (total > 0) retry_ms_ = 0;
  return total;
}

void Outbox::Retry(std::function<void()> again) {
  retry_ms_ = std::clamp(2 * retry_ms_, kFirstRetryMs, kLastRetryMs);
  retry_.Start(retry_ms_, std::move(again));
}

void Outbox::Clear() {
  segments_.clear();
  bytes_ = 0;
  descriptors_ = 0;
  stall_.reset();
  retry_.Cancel();
}

}  // namespace kvtier
