// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/canary.h"

#include <fmt/format.h>

#include <utility>

#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// A sample needs no more, and host has better uses for its slots.
constexpr size_t kMostCopies = 64;
// In one event; to drop a block takes as long as to look at so many rows.
constexpr size_t kRowsPerEvent = 4096;
constexpr size_t kRowsPerDrop = 32;

// Any hash that differs from the block's would do. No honest client knows a sequence that has it.
BlockHash HashOfCopy(BlockHash hash) {
  for (uint8_t& byte : hash.bytes) byte ^= 0xa5;
  return hash;
}

}  // namespace

EntryIndex Canary::BeginCopy(EntryIndex stored, const StoreRequest& request, Party computed) {
  if (request.compare.format == NumberFormat::kNone) return kNoEntry;
  const BlockEntry& entry = state_[stored];
  if (!state_.blocks.trust.HasRoom(state_.blocks.LineOf(entry))) return kNoEntry;
  const BlockKey key{entry.namespace_id, HashOfCopy(entry.hash)};
  if (!entry.in_host() || copies_.size() + comparisons_.size() >= kMostCopies ||
      state_.blocks.directory.Find(key) != kNoEntry) {
    return kNoEntry;
  }
  const EntryRef ref = state_.blocks.directory.RefOf(stored);
  const EntryIndex copy =
      state_.AddEntry(key, request.tokens, request.depth, RetentionClass::kMemory);
  state_[copy].is_copy = true;
  copies_.emplace(copy, Copy{ref, computed, request.compare});
  return copy;
}

std::span<const std::byte> Canary::PayloadOf(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  return state_.tables.HostBytes(entry).subspan(
      kSlotHeaderBytes, state_.blocks.NamespaceOf(entry).identity.block_bytes);
}

void Canary::EndCopy(EntryIndex index) {
  const Copy copy = copies_.extract(index).mapped();
  const EntryRef entry = state_.blocks.directory.RefOf(index);
  const EntryIndex stored = state_.blocks.directory.Resolve(copy.stored);
  if (!state_[index].in_host() || stored == kNoEntry || !state_[stored].in_host()) {
    state_.stats.CountCanary(CanaryOutcome::kAbsent);
    return DropCopy(entry);
  }
  const auto comparison =
      comparisons_.insert(comparisons_.end(), {.copy = copy,
                                               .entry = entry,
                                               .copy_pin = HostPin(&state_, index),
                                               .stored_pin = HostPin(&state_, stored),
                                               .difference = {}});
  state_.env.executor->Run(
      [comparison, has = PayloadOf(stored), got = PayloadOf(index)] {
        comparison->difference = CompareKv(has, got, comparison->copy.numbers);
      },
      [this, comparison] { Finish(comparison); });
}

void Canary::Finish(Comparisons::iterator finished) {
  Comparisons ended;
  ended.splice(ended.end(), comparisons_, finished);
  Comparison& comparison = ended.front();
  const EntryIndex stored = state_.blocks.directory.Resolve(comparison.copy.stored);
  comparison.copy_pin.Release();
  comparison.stored_pin.Release();
  const KvDifference& difference = comparison.difference;
  const bool is_noise = difference.error <= NoiseBound(comparison.copy.numbers.format);
  state_.stats.CountCanary(difference.bits_equal ? CanaryOutcome::kEqual
                           : is_noise            ? CanaryOutcome::kNoise
                                                 : CanaryOutcome::kDifferent);
  // The pin has kept the block until now. One that is refused already is no witness.
  if (state_.blocks.Distrusts(state_[stored].namespace_id, stored)) {
    (void)Drop(stored);
  } else if (is_noise) {
    state_.blocks.trust.Agree(state_[stored].namespace_id,
                              state_.blocks.trust.StorerOf(comparison.copy.stored),
                              comparison.copy.computed);
  } else {
    OnDifferent(comparison, stored);
  }
  DropCopy(comparison.entry);
  state_.SchedulePump();
}

void Canary::OnDifferent(const Comparison& comparison, EntryIndex stored) {
  Trust& trust = state_.blocks.trust;
  const NamespaceId whose = state_[stored].namespace_id;
  const Party computed = comparison.copy.computed;
  const Party storer = trust.StorerOf(comparison.copy.stored);
  if (!trust.Expelled(whose, computed)) {
    std::string text =
        fmt::format("block {}: relative error {:.3g} in layer {}; {} stored it, {} computed it",
                    state_[stored].hash.Hex().substr(0, 16), comparison.difference.error,
                    comparison.difference.layer, trust.NameOf(storer), trust.NameOf(computed));
    const TenantLine tenant = state_.blocks.LineOf(state_[stored]);
    const Ruling ruling = trust.Differ(whose, tenant, storer, computed);
    if (ruling.kind == Ruling::Kind::kExpel) {
      purges_.push_back({.whose = whose, .party = ruling.party});
      text += fmt::format("; others differ from {}, all of whose blocks go",
                          trust.NameOf(ruling.party));
    }
    state_.incidents.Report(IncidentKind::kKvDiffers, whose, std::move(text));
    if (ruling.kind == Ruling::Kind::kDistrust) {
      purges_.push_back({.whose = whose, .party = {}});
      if (state_.has_disk()) disk_.committer().PutTrust(whose);
      const char* const more =
          trust.HasRoom(tenant) ? "" : ", of so many models that no more are compared";
      state_.incidents.Report(IncidentKind::kDistrusted, whose,
                              fmt::format("KV differs again and again{}", more));
    }
    if (!purges_.empty()) state_.SchedulePart();
  }
  (void)Drop(stored);
}

bool Canary::Drop(EntryIndex index) {
  if (state_[index].pinned()) state_.Unpin(index);
  const EntryRef block = state_.blocks.directory.RefOf(index);
  (void)evict_({state_[index].namespace_id, state_[index].hash});
  if (state_.blocks.directory.Resolve(block) == kNoEntry) return true;
  Condemn(block);
  return false;
}

void Canary::Condemn(EntryRef block) {
  if (state_.blocks.trust.StorerOf(block) == kCondemnedParty) return;
  state_.blocks.trust.Condemn(block);
  condemned_.push_back(block);
}

bool Canary::KeepsRefused(EntryIndex index) {
  return index != kNoEntry && state_.blocks.Distrusts(state_[index].namespace_id, index) &&
         !Drop(index);
}

void Canary::DropCopy(EntryRef copy) {
  const EntryIndex index = state_.blocks.directory.Resolve(copy);
  if (index == kNoEntry) return;
  const BlockEntry& entry = state_[index];
  // A client that has guessed its hash may use it as any block.
  if (entry.busy() || entry.pinned() || entry.offered()) return Condemn(copy);
  if (entry.in_host()) return host_.Drop(index, DropReason::kCompared);
  state_.ForgetIfGone(index);
}

void Canary::Forgive(NamespaceId whose) {
  std::erase_if(purges_, [whose](const Purge& purge) { return purge.whose == whose; });
  if (state_.blocks.trust.Forgive(whose) && state_.has_disk()) disk_.committer().PutTrust(whose);
  state_.SchedulePump();
}

void Canary::GoOn() {
  size_t left = kRowsPerEvent;
  while (!purges_.empty() && left > 0) {
    Purge& purge = purges_.front();
    for (; purge.next_row < state_.blocks.directory.end() && left > 0; ++purge.next_row) {
      const EntryIndex index(purge.next_row);
      const bool concerned = Concerns(purge, index);
      if (concerned) (void)Drop(index);
      left -= std::min(left, concerned ? kRowsPerDrop : 1);
    }
    if (left > 0) purges_.pop_front();
  }
  for (; tries_left_ > 0 && left > 0; --tries_left_) {
    const EntryRef block = condemned_.front();
    condemned_.pop_front();
    const EntryIndex index = state_.blocks.directory.Resolve(block);
    const bool stays = index != kNoEntry && !Drop(index);
    if (stays) condemned_.push_back(block);
    left -= std::min(left, stays || index == kNoEntry ? 1 : kRowsPerDrop);
  }
  if (!purges_.empty() || tries_left_ > 0) state_.SchedulePart();
}

void Canary::Tick() {
  if (condemned_.empty()) return;
  tries_left_ = condemned_.size();
  state_.SchedulePart();
}

bool Canary::Concerns(const Purge& purge, EntryIndex index) const {
  const Directory& directory = state_.blocks.directory;
  return directory.Live(index) && directory[index].namespace_id == purge.whose &&
         (!purge.party || state_.blocks.trust.StorerOf(directory.RefOf(index)) == *purge.party);
}

}  // namespace kvtier
