// SPDX-License-Identifier: Apache-2.0
// The ring is read while events go on being recorded, one step per event of the loop. The listing
// ends at the event that was the last when it began, so that it ends however busy the daemon is.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cstring>
#include <utility>

#include "daemon/admin/admin_operations.h"
#include "daemon/admin/trace_ring.h"
#include "daemon/session/server.h"
#include "protocol/message_type.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// The limit of one step: less than a millisecond of the event loop.
constexpr uint32_t kEventsPerStep = 1024;

constexpr std::array<std::string_view, kTraceKindCount> kKindNames = {
    "session", "request", "wait", "load",       "block_load",  "disk_read",    "check",
    "copy_up", "offload", "seal", "disk_write", "verify_read", "index_commit", "evict"};

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return lower;
}

// Zeros are left out: most events use few of the members, and a listing is long.
void AppendNumber(std::string_view name, uint64_t value, std::string* out) {
  if (value != 0) *out += fmt::format(R"(,"{}":{})", name, value);
}

void AppendText(std::string_view name, std::string_view value, std::string* out) {
  *out += fmt::format(R"(,"{}":"{}")", name, value);
}

// The digits in the order of the hash's own, whatever this machine's byte order, so that a person
// can compare them with those of "ls".
std::string HashDigits(uint64_t prefix) {
  Digest<sizeof(prefix)> digest;
  std::memcpy(digest.bytes.data(), &prefix, sizeof(prefix));
  return digest.Hex();
}

// Written by hand, because there are many. All texts are names of this program, so that nothing
// needs to be escaped.
void AppendEvent(const TraceEvent& event, std::string* out) {
  *out += fmt::format(R"({{"us":{},"kind":"{}","ph":"{}")", event.time_us,
                      kKindNames[static_cast<size_t>(event.kind)],
                      "bei"[static_cast<size_t>(event.phase)]);
  AppendNumber("session", event.tag.session.value, out);
  AppendNumber("request", event.tag.request, out);
  AppendNumber("id", event.id, out);
  if (event.hash_prefix != 0) AppendText("hash", HashDigits(event.hash_prefix), out);
  AppendNumber("bytes", event.bytes, out);
  AppendNumber("n0", event.blocks[0], out);
  AppendNumber("n1", event.blocks[1], out);
  AppendNumber("n2", event.blocks[2], out);
  if (event.message != 0) {
    AppendText("message", LowerCase(wire::MessageTypeName(event.message)), out);
  }
  if (event.miss != MissReason::kNone) AppendText("miss", MissReasonName(event.miss), out);
  const bool begins_block_load =
      event.kind == TraceKind::kBlockLoad && event.phase == TracePhase::kBegin;
  if (event.kind == TraceKind::kEvict || begins_block_load) {
    AppendText("tier", kTierNames[static_cast<size_t>(event.tier)], out);
  }
  if (event.kind == TraceKind::kEvict) AppendText("reason", DropReasonName(event.drop), out);
  AppendNumber("failed", event.failed, out);
  *out += '}';
}

class TraceListing final : public AdminOperation {
 public:
  TraceListing(const OperationBasics& basics, const TraceRing* ring, const Server* server,
               std::shared_ptr<AdminCall> call, const AdminRequestBody& request)
      : AdminOperation(basics, std::move(call)),
        ring_(*ring),
        server_(*server),
        now_us_(TraceRing::ClockUs()),
        wall_ms_(clock_.WallMs()),
        end_(ring_.end()),
        cursor_(FirstOf(request)),
        left_(request.limit) {}

  void Run() override {
    if (Cancelled()) return;
    SkipOverwritten();
    const uint64_t stop = std::min({end_, cursor_ + left_, cursor_ + kEventsPerStep});
    left_ -= static_cast<uint32_t>(stop - cursor_);
    for (; cursor_ < stop; ++cursor_) {
      if (!events_.empty()) events_ += ',';
      AppendEvent(ring_[cursor_], &events_);
    }
    if (cursor_ == end_ || left_ == 0) return Finish();
    Later(0, [this] { Run(); });
  }

 private:
  [[nodiscard]] uint64_t FirstOf(const AdminRequestBody& request) const {
    if (request.cursor > 0) return std::min(request.cursor, end_);
    return request.since_ms > 0 ? ring_.FirstSince(now_us_ - request.since_ms * 1000)
                                : ring_.first();
  }

  // Recording went on since the last step, and may have overwritten events that were to be listed.
  // They are counted, so that a reader of the trace knows of the gap.
  void SkipOverwritten() {
    const uint64_t first = std::min(ring_.first(), end_);
    if (cursor_ >= first) return;
    lost_ += first - cursor_;
    cursor_ = first;
  }

  void Finish() {
    json::array sessions;
    for (const Session::Summary& session : server_.Sessions()) {
      sessions.push_back({{"id", session.id.value},
                          {"tenant", session.tenant},
                          {"client", session.client_name},
                          {"pid", session.pid}});
    }
    Reply(fmt::format(R"({{"schema":"kvtier.trace/1","now_us":{},"wall_ms":{},"cursor":{},)"
                      R"("end":{},"lost":{},"sessions":{},"events":[{}]}})",
                      now_us_, wall_ms_, cursor_, end_, lost_, json::serialize(sessions), events_));
  }

  const TraceRing& ring_;
  const Server& server_;
  const int64_t now_us_;
  const int64_t wall_ms_;
  const uint64_t end_;
  uint64_t cursor_;
  uint32_t left_;
  uint64_t lost_ = 0;
  std::string events_;
};

}  // namespace

Result<std::unique_ptr<AdminOperation>> MakeTraceListing(const OperationBasics& basics,
                                                         const TraceRing* ring,
                                                         const Server* server,
                                                         const AdminRequestBody& request,
                                                         std::shared_ptr<AdminCall> call) {
  if (request.limit == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_request", "\"limit\" must not be 0");
  }
  return std::make_unique<TraceListing>(basics, ring, server, std::move(call), request);
}

}  // namespace kvtier
