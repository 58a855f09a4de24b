// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/token_ids.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/result.h"
#include "tiers/state/cache_state.h"

namespace kvtier {
namespace {

// The bytes that a block with ids takes besides them, rounded up.
constexpr uint64_t kBytesPerBlock = 32;

static_assert(TokenIds::kNoShare == Namespace::kNoTokenShare);

uint64_t CostOf(size_t ids) { return kBytesPerBlock + ids * sizeof(uint32_t); }

}  // namespace

// An entry that was taken keeps its turn, and its share of the bytes, until its turn comes or
// nothing is expected: so the queue is bounded as well.
void ExpectedTokens::Add(const BlockKey& key, std::span<const uint32_t> ids, int64_t now_ms) {
  if (!ids_.try_emplace(key, ids.begin(), ids.end()).second) return;
  turns_.push_back({key, now_ms});
  bytes_ += CostOf(ids.size());
  while (bytes_ > kMaxBytes && turns_.size() > 1) DropOldest();
}

std::vector<uint32_t> ExpectedTokens::Take(const BlockKey& key) {
  const auto found = ids_.find(key);
  if (found == ids_.end()) return {};
  std::vector<uint32_t> ids = std::move(found->second);
  bytes_ -= ids.size() * sizeof(uint32_t);
  ids_.erase(found);
  if (ids_.empty()) Clear();
  return ids;
}

void ExpectedTokens::Expire(int64_t now_ms) {
  while (!turns_.empty() && now_ms - turns_.front().since_ms > kMaxWaitMs) DropOldest();
}

void ExpectedTokens::Clear() {
  ids_.clear();
  turns_.clear();
  bytes_ = 0;
}

void ExpectedTokens::DropOldest() {
  const auto found = ids_.find(turns_.front().key);
  bytes_ -= kBytesPerBlock;
  if (found != ids_.end()) {
    bytes_ -= found->second.size() * sizeof(uint32_t);
    ids_.erase(found);
  }
  turns_.pop_front();
  if (ids_.empty()) Clear();
}

TokenIds::TokenIds(CacheState* state, std::vector<std::string> tenants, uint64_t bytes)
    : state_(*state), share_bytes_(bytes / std::max<size_t>(tenants.size(), 1)) {
  for (std::string& tenant : tenants) shares_.push_back({.tenant = std::move(tenant)});
}

uint32_t TokenIds::ShareOf(const std::string& tenant) const {
  const auto found = std::ranges::find(shares_, tenant, &Share::tenant);
  return found == shares_.end() ? kNoShare : static_cast<uint32_t>(found - shares_.begin());
}

bool TokenIds::Keeps(NamespaceId id) const {
  return id.value < state_.blocks.namespaces.size() &&
         state_.blocks.namespaces[id.value].token_share != kNoShare;
}

TokenIds::Share& TokenIds::ShareOf(EntryIndex entry) {
  return shares_[state_.blocks.NamespaceOf(state_[entry]).token_share];
}

const TokenIds::Row* TokenIds::Find(EntryIndex entry) const { return rows_.Find(entry.value); }

bool TokenIds::Give(const BlockKey& key, std::span<const uint32_t> ids) {
  if (!Keeps(key.namespace_id)) return false;
  const EntryIndex entry = state_.blocks.Find(key);
  if (entry == kNoEntry) {
    const uint32_t share = state_.blocks.namespaces[key.namespace_id.value].token_share;
    shares_[share].expected.Add(key, ids, state_.clock.NowMs());
    return true;
  }
  const Row* const row = Find(entry);
  if (row != nullptr && row->count > 0) return true;
  if (state_.BeingErased(state_[entry]) || !Add(entry, ids)) return false;
  if (state_.env.events != nullptr) state_.presence.TellAgain(entry);
  state_.QueueRecencyUpdate(entry);
  return true;
}

void TokenIds::NoteAdded(EntryIndex entry) {
  if (!Keeps(state_[entry].namespace_id)) return;
  Share& share = ShareOf(entry);
  if (share.expected.empty()) return;
  const std::vector<uint32_t> ids =
      share.expected.Take({state_[entry].namespace_id, state_[entry].hash});
  if (!ids.empty()) Add(entry, ids);
}

bool TokenIds::Restore(const BlockKey& key, std::span<const uint32_t> ids) {
  const EntryIndex entry = state_.blocks.Find(key);
  if (entry == kNoEntry || !Keeps(key.namespace_id) || !state_[entry].in_index()) return false;
  if (!Add(entry, ids)) return false;
  rows_[entry.value].stored = Stored::kYes;
  return true;
}

bool TokenIds::Add(EntryIndex entry, std::span<const uint32_t> ids) {
  Share& share = ShareOf(entry);
  if (ids.empty() || ids.size() != state_[entry].tokens) return false;
  if (share.bytes + CostOf(ids.size()) > share_bytes_) {
    ++state_.stats.token_ids_refused;
    return false;
  }
  Row& row = rows_.At(entry.value);
  KVT_CHECK(row.count == 0);
  row.ids = std::make_unique<uint32_t[]>(ids.size());
  row.count = static_cast<uint16_t>(ids.size());
  std::ranges::copy(ids, row.ids.get());
  share.bytes += CostOf(ids.size());
  ++blocks_;
  return true;
}

std::span<const uint32_t> TokenIds::Of(EntryIndex entry) const {
  const Row* const row = Find(entry);
  if (row == nullptr || row->count == 0) return {};
  if (state_.BeingErased(state_[entry])) return {};
  return {row->ids.get(), row->count};
}

void TokenIds::Drop(EntryIndex entry) {
  Row& row = rows_[entry.value];
  if (row.count == 0) return;
  ShareOf(entry).bytes -= CostOf(row.count);
  --blocks_;
  row.ids.reset();
  row.count = 0;
}

void TokenIds::Forget(EntryIndex entry) {
  if (Find(entry) == nullptr) return;
  Drop(entry);
  rows_[entry.value].stored = Stored::kNo;
}

bool TokenIds::Erase(EntryIndex entry) {
  if (Find(entry) == nullptr) return false;
  Drop(entry);
  return std::exchange(rows_[entry.value].stored, Stored::kNo) != Stored::kNo;
}

void TokenIds::EraseExpected(const std::string& tenant) {
  const uint32_t share = ShareOf(tenant);
  if (share != kNoShare) shares_[share].expected.Clear();
}

void TokenIds::Tick() {
  for (Share& share : shares_) share.expected.Expire(state_.clock.NowMs());
}

bool TokenIds::Unstored(EntryIndex entry) const {
  const Row* const row = Find(entry);
  return row != nullptr && row->stored != Stored::kYes && !Of(entry).empty();
}

std::span<const uint32_t> TokenIds::TakeUnstored(EntryIndex entry) {
  if (!Unstored(entry)) return {};
  rows_[entry.value].stored = Stored::kMaybe;
  return Of(entry);
}

void TokenIds::NoteStored(EntryIndex entry) {
  const Row* const row = Find(entry);
  if (row != nullptr && row->stored == Stored::kMaybe) rows_[entry.value].stored = Stored::kYes;
}

bool TokenIds::TakeStored(const BlockKey& key) {
  if (shares_.empty()) return false;
  const EntryIndex entry = state_.blocks.directory.Find(key);
  if (entry == kNoEntry || Find(entry) == nullptr) return false;
  return std::exchange(rows_[entry.value].stored, Stored::kNo) != Stored::kNo;
}

uint64_t TokenIds::bytes() const {
  return std::accumulate(
      shares_.begin(), shares_.end(), uint64_t{0},
      [](uint64_t sum, const Share& share) { return sum + share.bytes + share.expected.bytes(); });
}

}  // namespace kvtier
