// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/header_voider.h"

#include <algorithm>
#include <utility>

#include "tiers/state/cache_state.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// A header is given up when it has been refused so often, which a drive that refuses now and then
// does to none in a million.
constexpr uint32_t kMostRefusals = 8;
// So are all headers on a file that has taken none for so long.
constexpr int64_t kLongestRefusalMs = 10'000;
// The limit for each file, in one tick.
constexpr size_t kMostRetries = 1024;

}  // namespace

HeaderVoider::HeaderVoider(CacheState* state, SlotOwner* owner)
    : state_(*state), owner_(*owner), refusing_since_ms_(state->env.files.size(), -1) {}

void HeaderVoider::WhenVoided(std::function<void(Status)> done) {
  if (left_ == 0) return done({});
  const uint64_t given_up_before = state_.stats.headers_not_voided;
  waiters_.emplace_back([this, given_up_before, done = std::move(done)](Status status) {
    const bool all = given_up_before == state_.stats.headers_not_voided;
    done(status && !all ? last_error_ : std::move(status));
  });
}

void HeaderVoider::OnIndexFailed(const Status& status) {
  if (left_ == 0) return;
  for (const auto& done : std::exchange(waiters_, {})) done(status);
}

bool HeaderVoider::Pump() {
  if (waiting_.empty() || !under_way_.empty()) return false;
  under_way_.swap(waiting_);
  writes_left_ = under_way_.size();
  if (zeros_.span().empty()) zeros_ = AlignedBuffer(kSlotHeaderBytes);
  const DiskGeometry& geometry = state_.env.geometry;
  for (size_t number = 0; number < under_way_.size(); ++number) {
    const DiskLocation location = under_way_[number].location;
    state_.env.files[geometry.FileOf(location)]->Write(
        geometry.OffsetInFile(location), zeros_.span(),
        [this, number](const Status& status) { OnWritten(number, status); });
  }
  return true;
}

// A sync follows the writes: an eviction that was answered as durable must not come back from the
// drive's cache after a power cut.
void HeaderVoider::OnWritten(size_t number, const Status& status) {
  under_way_[number].written = status.has_value();
  if (!status) {
    ++state_.stats.disk_write_errors;
    last_error_ = status;
  }
  if (--writes_left_ > 0) return;
  if (std::ranges::none_of(under_way_, &Header::written)) return Finish({});
  owner_.Sync([this](const Status& synced) { Finish(synced); });
}

// After a sync that failed it is not known which of them reached the disk.
void HeaderVoider::Finish(const Status& synced) {
  state_.SchedulePump();
  if (!synced) last_error_ = synced;
  const std::vector<Header> ended = std::exchange(under_way_, {});
  // All that a file took first: one that took any does not refuse everything.
  for (const Header& header : ended) {
    if (!header.written || !synced) continue;
    refusing_since_ms_[state_.env.geometry.FileOf(header.location)] = -1;
    --left_;
    owner_.FreeSlot(header.location);
  }
  for (const Header& header : ended) {
    if (!header.written || !synced) OnRefused(header);
  }
  if (left_ == 0) AnswerWaiters();
}

void HeaderVoider::OnRefused(Header header) {
  const int64_t now_ms = state_.clock.NowMs();
  int64_t& since_ms = refusing_since_ms_[state_.env.geometry.FileOf(header.location)];
  if (since_ms < 0) since_ms = now_ms;
  ++header.refusals;
  if (header.refusals < kMostRefusals && now_ms - since_ms < kLongestRefusalMs) {
    refused_.push_back(header);
    return;
  }
  ++state_.stats.headers_not_voided;
  state_.incidents.ReportSlot(IncidentKind::kHeaderKept, header.location, kNoEntry,
                              last_error_ ? std::string() : last_error_.error().ToString());
  --left_;
  owner_.KeepSlot(header.location);
}

void HeaderVoider::Tick() {
  std::vector<size_t> retries(state_.env.files.size());
  const auto stays = [&](const Header& header) {
    return ++retries[state_.env.geometry.FileOf(header.location)] > kMostRetries;
  };
  const auto first_again = std::stable_partition(refused_.begin(), refused_.end(), stays);
  waiting_.insert(waiting_.end(), first_again, refused_.end());
  refused_.erase(first_again, refused_.end());
}

void HeaderVoider::AnswerWaiters() {
  for (const auto& done : std::exchange(waiters_, {})) done({});
}

}  // namespace kvtier
