// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/cold_deletions.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "tiers/cold/cold_object.h"
#include "tiers/state/cold_copies.h"

namespace kvtier {
namespace {

constexpr int64_t kTimeoutMs = 5'000;
constexpr int64_t kFirstPauseMs = 5'000;
constexpr int64_t kLongestPauseMs = 60'000;
constexpr int64_t kGiveUpAfterMs = 4 * 3'600'000;
// As many objects that the store refuses are some 100 MB.
constexpr size_t kMostKept = 1 << 20;
// Keys that one event looks at.
constexpr size_t kLookedAt = 4096;

// The command has its answer.
bool IsRefused(const std::shared_ptr<ObjectEviction>& eviction) {
  return !eviction->ended.has_value();
}

}  // namespace

// Blocks that follow it may keep the entry.
void ColdDeletions::Forget(const BlockKey& key, const std::shared_ptr<ObjectEviction>& whose) {
  const EntryIndex index = state_.blocks.Find(key);
  if (index != kNoEntry) ForgetColdCopy(&state_, index);
  Erasures::Object& object = state_.erasing.objects[key];
  object.give_up_ms = state_.clock.NowMs() + kGiveUpAfterMs;
  if (whose) {
    ++whose->left;
    object.by_hand = true;
    object.evictions.push_back(whose);
  }
  fresh_.insert(key);
  Begin();
}

void ColdDeletions::Tick() {
  GiveUpSome();
  Begin();
}

void ColdDeletions::NoteWritten(const BlockKey& key, const Status& status) {
  const auto object = state_.erasing.objects.find(key);
  if (object == state_.erasing.objects.end()) return;
  if (!status) Tell(std::exchange(object->second.evictions, {}), status);
  Begin();
}

void ColdDeletions::Begin() {
  if (is_deleting_) return;
  std::vector<BlockKey> keys = Fresh();
  if (keys.empty() && state_.clock.NowMs() >= again_ms_) keys = Kept();
  if (keys.empty()) return;
  std::vector<std::string> names;
  for (const BlockKey& key : keys) {
    names.push_back(ColdName(state_.blocks.namespaces[key.namespace_id.value].identity, key.hash));
  }
  is_deleting_ = true;
  last_asked_ = keys.back();
  const bool again = state_.clock.NowMs() < state_.erasing.puts_may_come_until_ms;
  state_.env.cold->Delete(std::move(names), kTimeoutMs,
                          gate_.WhileOpen([this, keys, again](const Status& status) {
                            OnDeleted(keys, again, status);
                          }));
}

// A store keeps no order among calls: the object of a block that is being written is deleted when
// its write has ended. No call is of two tenants, who may have different rights there.
bool ColdDeletions::Take(const BlockKey& key, std::vector<BlockKey>* keys) const {
  if (choice_.IsUnderWay(key)) return true;
  const std::map<BlockKey, Erasures::Object>& objects = state_.erasing.objects;
  const size_t most = objects.at(key).most;
  const BlockKey& first = keys->empty() ? key : keys->front();
  if (key.namespace_id != first.namespace_id || most != objects.at(first).most) return false;
  keys->push_back(key);
  return keys->size() < most;
}

// If all commands that evicted an object have their answer, it need not go at once.
std::vector<BlockKey> ColdDeletions::Fresh() {
  std::vector<BlockKey> keys;
  auto next = fresh_.begin();
  for (size_t left = kLookedAt; left > 0 && next != fresh_.end(); --left) {
    const Evictions& evictions = state_.erasing.objects.at(*next).evictions;
    if (!evictions.empty() && std::ranges::all_of(evictions, IsRefused)) {
      next = fresh_.erase(next);
    } else if (!Take(*next++, &keys)) {
      break;
    }
  }
  return keys;
}

std::vector<BlockKey> ColdDeletions::Kept() const {
  std::vector<BlockKey> keys;
  const std::map<BlockKey, Erasures::Object>& objects = state_.erasing.objects;
  for (auto first : {objects.upper_bound(last_asked_), objects.begin()}) {
    while (first != objects.end() && Take(first->first, &keys)) ++first;
    if (!keys.empty()) break;
  }
  return keys;
}

// A call of several that the store refuses is made again in halves. One that it does not answer,
// or that failed after a pause, waits. `again`: a put of an earlier daemon could come after it, so
// that those evicted by hand are deleted once more when none can. Others may be good by then.
void ColdDeletions::OnDeleted(const std::vector<BlockKey>& keys, bool again, const Status& status) {
  is_deleting_ = false;
  const bool answered = status || (status.error().code != ErrorCode::kTimeout &&
                                   status.error().code != ErrorCode::kUnavailable);
  const bool in_halves = !status && answered && keys.size() > 1;
  const bool was_fresh = fresh_.contains(keys.front());
  Evictions told;
  for (const BlockKey& key : keys) {
    const auto object = state_.erasing.objects.find(key);
    if (in_halves) {
      object->second.most = (keys.size() + 1) / 2;
      continue;
    }
    std::ranges::move(std::exchange(object->second.evictions, {}), std::back_inserter(told));
    fresh_.erase(key);
    if (status && !(again && object->second.by_hand)) state_.erasing.objects.erase(object);
  }
  if (status) {
    pause_ms_ = 0;
    if (again) again_ms_ = state_.erasing.puts_may_come_until_ms;
  } else {
    const uint32_t whose = keys.front().namespace_id.value;
    state_.incidents.ReportCold(state_.blocks.namespaces[whose].identity, status.error());
  }
  if (!status && !(in_halves && was_fresh)) {
    pause_ms_ = std::clamp(2 * pause_ms_, kFirstPauseMs, kLongestPauseMs);
    again_ms_ = state_.clock.NowMs() + pause_ms_;
  }
  Begin();
  Tell(told, status);
}

// This host may load and write such an object again.
void ColdDeletions::GiveUpSome() {
  if (is_deleting_) return;
  std::map<BlockKey, Erasures::Object>& objects = state_.erasing.objects;
  const int64_t now_ms = state_.clock.NowMs();
  auto next = objects.lower_bound(next_to_give_up_);
  for (size_t left = kLookedAt; left > 0 && next != objects.end(); --left) {
    const bool gives_up =
        objects.size() - fresh_.size() > kMostKept || now_ms >= next->second.give_up_ms;
    next = gives_up && !fresh_.contains(next->first) ? objects.erase(next) : std::next(next);
  }
  next_to_give_up_ = next == objects.end() ? BlockKey{} : next->first;
}

void ColdDeletions::Tell(const Evictions& evictions, const Status& status) {
  for (const std::shared_ptr<ObjectEviction>& eviction : evictions) {
    --eviction->left;
    if (!status) {
      eviction->ended =
          MakeError(ErrorCode::kIoError, "cold_object_kept",
                    "the block left this host, and the shared store does not delete its object: " +
                        status.error().reason + "; evict again to learn when it has");
    }
    if (!eviction->done || (eviction->left > 0 && eviction->ended)) continue;
    std::exchange(eviction->done, {})(eviction->ended);
  }
}

}  // namespace kvtier
