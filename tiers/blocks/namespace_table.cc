// SPDX-License-Identifier: Apache-2.0
#include "tiers/blocks/namespace_table.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvtier {

std::optional<PoolSlot> Namespace::FreeSlot(uint32_t first) const {
  for (uint32_t slot = first; slot < kMaxPoolSlots; ++slot) {
    if (PoolIn(PoolSlot(slot)) == nullptr) return PoolSlot(slot);
  }
  return std::nullopt;
}

void Namespace::PutPool(PoolSlot slot, CachePool* pool) {
  KVT_CHECK(PoolIn(slot) == nullptr);
  pools.resize(kMaxPoolSlots);
  pools[slot.value] = pool;
}

void Namespace::TakePool(PoolSlot slot) {
  pools[slot.value] = nullptr;
  if (std::ranges::count(pools, nullptr) == kMaxPoolSlots) pools = {};
}

std::optional<NamespaceId> NamespaceTable::Find(const NamespaceIdentity& identity) const {
  const auto found = numbers_.find(identity);
  if (found == numbers_.end()) return std::nullopt;
  return found->second;
}

Result<NamespaceId> NamespaceTable::Add(Namespace name_space) {
  while (first_free_ < table_.size() && table_[first_free_].identity.block_bytes > 0) ++first_free_;
  if (counts_[name_space.line.value] >= kMaxNamespaces - count_) {
    return MakeError(
        ErrorCode::kLimitExceeded, "too_many_namespaces",
        "the tenant has attached too many models since the daemon's start; a restart forgets those "
        "that have no blocks on disk");
  }
  const NamespaceId id(first_free_);
  numbers_.insert_or_assign(name_space.identity, id);
  Put(id, std::move(name_space));
  return id;
}

bool NamespaceTable::Restore(NamespaceId id, Namespace name_space) {
  if (id.value >= kMaxNamespaces) return false;
  if (id.value < table_.size() && table_[id.value].identity.block_bytes > 0) return false;
  // The first of two numbers for one pair counts; only a damaged index has two.
  numbers_.try_emplace(name_space.identity, id);
  Put(id, std::move(name_space));
  return true;
}

void NamespaceTable::Put(NamespaceId id, Namespace name_space) {
  if (id.value >= table_.size()) table_.resize(id.value + 1);
  const auto [known, added] =
      tenants_.try_emplace(name_space.tenant.value, Sharing{name_space.identity.tenant});
  if (!added && known->second.first != name_space.identity.tenant) known->second.shared = true;
  ++counts_[name_space.line.value];
  table_[id.value] = std::move(name_space);
  ++count_;
}

void NamespaceTable::TakeBack(NamespaceId id) {
  Namespace& name_space = table_[id.value];
  numbers_.erase(name_space.identity);
  --counts_[name_space.line.value];
  --count_;
  name_space = {};
  while (!table_.empty() && table_.back().identity.block_bytes == 0) table_.pop_back();
  first_free_ = std::min(first_free_, id.value);
}

bool NamespaceTable::IsShared(TenantId tenant) const {
  const auto known = tenants_.find(tenant.value);
  return known != tenants_.end() && known->second.shared;
}

}  // namespace kvtier
