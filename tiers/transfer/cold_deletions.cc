// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/cold_deletions.h"

#include <string>
#include <utility>

#include "tiers/cold/cold_object.h"
#include "tiers/state/cold_copies.h"

namespace kvtier {
namespace {

constexpr int64_t kTimeoutMs = 5'000;
// Objects that one call deletes.
constexpr size_t kDeletedAtOnce = 64;
// After a deletion that failed.
constexpr int64_t kAgainMs = 10'000;

}  // namespace

// Blocks that follow it may keep the entry.
void ColdDeletions::Forget(const BlockKey& key) {
  const EntryIndex index = state_.blocks.Find(key);
  if (index != kNoEntry) ForgetColdCopy(&state_, index);
  state_.erasing.objects.insert(key);
  Begin();
}

void ColdDeletions::Tick() {
  if (state_.clock.NowMs() >= again_ms_) Begin();
}

void ColdDeletions::NoteWritten(const BlockKey& key, const Status& status) {
  if (!state_.erasing.objects.contains(key)) return;
  if (!status) Tell(status);
  Begin();
}

void ColdDeletions::WhenDone(std::function<void(Status)> done) {
  if (state_.erasing.objects.empty()) return done({});
  waiters_.push_back(std::move(done));
}

// A store keeps no order among calls: the object of a block that is being written is deleted when
// its write has ended.
void ColdDeletions::Begin() {
  if (is_deleting_) return;
  std::vector<BlockKey> keys;
  std::vector<std::string> names;
  for (const BlockKey& key : state_.erasing.objects) {
    if (keys.size() == kDeletedAtOnce) break;
    if (choice_.IsUnderWay(key)) continue;
    keys.push_back(key);
    names.push_back(ColdName(state_.blocks.namespaces[key.namespace_id.value].identity, key.hash));
  }
  if (keys.empty()) return;
  is_deleting_ = true;
  state_.env.cold->Delete(
      std::move(names), kTimeoutMs,
      gate_.WhileOpen([this, keys](const Status& status) { OnDeleted(keys, status); }));
}

void ColdDeletions::OnDeleted(const std::vector<BlockKey>& keys, const Status& status) {
  is_deleting_ = false;
  if (!status) {
    again_ms_ = state_.clock.NowMs() + kAgainMs;
    const uint32_t whose = keys.front().namespace_id.value;
    state_.incidents.ReportCold(state_.blocks.namespaces[whose].identity, status.error());
    return Tell(status);
  }
  for (const BlockKey& key : keys) state_.erasing.objects.erase(key);
  state_.erasing.objects.empty() ? Tell({}) : Begin();
}

void ColdDeletions::Tell(const Status& status) {
  Status told;
  if (!status) {
    told = MakeError(ErrorCode::kIoError, "cold_object_kept",
                     "the block left this host, and the shared store does not delete its object: " +
                         status.error().reason + "; evict again to learn when it has");
  }
  for (const auto& done : std::exchange(waiters_, {})) done(told);
}

}  // namespace kvtier
