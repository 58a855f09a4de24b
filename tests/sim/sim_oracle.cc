// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "base/digest.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/sim/sim_check.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

std::string NameOf(const SimBlock& block) {
  return fmt::format("space {} device {} block {} generation {}", block.pool.name_space,
                     block.pool.device, block.handle.index.value, block.handle.generation);
}

std::string NameOf(uint32_t name_space, const BlockHash& hash) {
  return fmt::format("space {} hash {}", name_space, hash.Hex().substr(0, 12));
}

}  // namespace

void SimOracle::OnPrivate(const SimBlock& block) {
  const auto [place, inserted] = owned_.try_emplace({block.pool, block.handle.index});
  SIM_CHECK(inserted, NameOf(block) + " was given out although a client has it");
  place->second = {.generation = block.handle.generation, .kind = Owned::Kind::kPrivate};
}

void SimOracle::OnPrivateReleased(const SimBlock& block) {
  owned_.erase({block.pool, block.handle.index});
}

void SimOracle::OnQuarantined(const SimBlock& block) {
  owned_.at({block.pool, block.handle.index}).kind = Owned::Kind::kQuarantined;
}

void SimOracle::OnQuarantineReleased(const SimBlock& block) { OnPrivateReleased(block); }

void SimOracle::OnCommitted(const SimBlock& block, const BlockHash& hash) {
  Owned& owned = owned_.at({block.pool, block.handle.index});
  owned.kind = Owned::Kind::kCommitted;
  owned.references = 1;
  owned.hash = hash;
  ++references_;
  OnComputed(block.pool.name_space, hash);
  OnUsed(block.pool.name_space, hash, NowMs());
}

void SimOracle::OnComputed(uint32_t name_space, const BlockHash& hash) {
  Truth& truth = TruthOf(name_space, hash);
  truth.computed_ms = NowMs();
  truth.commit = ++commits_;
  truth.erased = 0;
}

void SimOracle::OnErased(const std::string& tenant, uint64_t commits) {
  ++erasures_;
  for (auto& [key, truth] : truths_) {
    const uint32_t name_space = key.namespace_id.value;
    if (plan_.namespaces[name_space].identity.tenant != tenant || truth.commit > commits) continue;
    const auto present =
        world_.cache().Lookup(world_.pool({name_space, 0}).id, std::vector{key.hash});
    SIM_CHECK(!present.front().anywhere(), NameOf(name_space, key.hash) + " was not erased");
    truth.erased = erasures_;
  }
}

void SimOracle::OnErasureCut(const std::string& tenant, uint32_t begun_s) {
  erasure_cut_ = true;
  // A block that was computed anew since is younger in its record, too, but not while the index
  // refuses writes: the next daemon, which knows the record alone, erases the block.
  std::unordered_set<BlockKey> recorded_before;
  for (const IndexRecord& record : IndexRecords()) {
    if (record.created_s <= begun_s) recorded_before.insert(record.key);
  }
  std::erase_if(persisted_, [&](const BlockKey& key) {
    return plan_.namespaces[key.namespace_id.value].identity.tenant == tenant &&
           (truths_[key].computed_ms / 1000 <= begun_s || recorded_before.contains(key));
  });
}

void SimOracle::CheckNotErased(uint32_t name_space, const BlockHash& hash, uint64_t erasures) {
  const uint64_t erased = TruthOf(name_space, hash).erased;
  SIM_CHECK(erased == 0 || erased > erasures,
            NameOf(name_space, hash) + " was erased and is served");
}

void SimOracle::OnHit(const SimBlock& block, const BlockHash& hash, int64_t asked_ms) {
  CheckLifetime(block.pool.name_space, hash, asked_ms);
  OnUsed(block.pool.name_space, hash, asked_ms);
  const auto [place, inserted] = owned_.try_emplace({block.pool, block.handle.index});
  Owned& owned = place->second;
  if (inserted) {
    owned = {.generation = block.handle.generation, .kind = Owned::Kind::kCommitted};
    owned.hash = hash;
  }
  SIM_CHECK(owned.kind == Owned::Kind::kCommitted, NameOf(block) + " served although private");
  SIM_CHECK(owned.hash == hash, NameOf(block) + " served as two different hashes");
  SIM_CHECK(owned.generation == block.handle.generation, NameOf(block) + " changed generation");
  ++owned.references;
  ++references_;
}

void SimOracle::OnReferenceDropped(const SimBlock& block) {
  const auto owned = owned_.find({block.pool, block.handle.index});
  SIM_CHECK(owned != owned_.end() && owned->second.references > 0, NameOf(block));
  OnTouched(block.pool.name_space, owned->second.hash);
  --references_;
  if (--owned->second.references == 0) owned_.erase(owned);
}

std::optional<SimBlock> SimOracle::AnyOwned(SeededRandom& random) const {
  if (owned_.empty()) return std::nullopt;
  const auto& [place, owned] =
      *std::next(owned_.begin(), static_cast<ptrdiff_t>(random.Below(owned_.size())));
  return SimBlock{place.first, {place.second, owned.generation}};
}

void SimOracle::OnUsed(uint32_t name_space, const BlockHash& hash, int64_t use_ms) {
  OnTouched(name_space, hash);
  Truth& truth = TruthOf(name_space, hash);
  truth.last_use_ms = std::max(truth.last_use_ms, use_ms);
}

void SimOracle::OnTouched(uint32_t name_space, const BlockHash& hash) {
  TruthOf(name_space, hash).last_touch_ms = NowMs();
  touched_since_quiet_.emplace(NamespaceId(name_space), hash);
}

void SimOracle::OnPinned(uint32_t name_space, const BlockHash& hash, int64_t until_ms) {
  Truth& truth = TruthOf(name_space, hash);
  truth.pinned_until_ms = std::max(truth.pinned_until_ms, until_ms);
  constexpr int64_t kRecordedPinMs = 600'000;
  truth.recorded_pin_ms = std::max(truth.recorded_pin_ms, until_ms + kRecordedPinMs);
}

// A pin counts as use until the tick that ends it, and so does a reference.
void SimOracle::OnTick() {
  for (const auto& [place, owned] : owned_) {
    if (owned.references > 0) OnTouched(place.first.name_space, owned.hash);
  }
  for (auto& [key, truth] : truths_) {
    truth.ticked_use_ms = truth.last_use_ms;
    if (truth.pinned_until_ms == 0 || truth.pinned_until_ms > NowMs()) continue;
    truth.pinned_until_ms = 0;
    truth.last_touch_ms = NowMs();
  }
}

void SimOracle::OnAbsent() {
  const CacheGauges gauges = world_.cache().Gauges();
  absent_references_ = gauges.references;
  for (uint32_t i = 0; i < gauges.pools.size(); ++i) {
    absent_blocks_[{i / plan_.sizes.devices, i % plan_.sizes.devices}] =
        gauges.pools[i].quarantined;
  }
}

void SimOracle::OnAbsentGone() {
  absent_references_ = 0;
  absent_blocks_.clear();
}

void SimOracle::OnTime() {
  if (world_.cache().Gauges().sessions_closing == 0) closing_.clear();
  for (const auto& [name_space, hash] : closing_) OnTouched(name_space, hash);
  for (const BlockKey& key : touched_since_quiet_)
    TruthOf(key.namespace_id.value, key.hash).last_touch_ms = NowMs();
  for (const BlockKey& key : walks_may_touch_) {
    Truth& truth = TruthOf(key.namespace_id.value, key.hash);
    const bool past = NowMs() - truth.last_touch_ms > TtlMs(key.namespace_id.value, key.hash);
    if (!past || truth.pinned_until_ms > 0) truth.last_touch_ms = NowMs();
  }
}

void SimOracle::OnQuiet() {
  if (world_.cache().Gauges().prefixes_to_touch > 0) {
    walks_may_touch_.insert(touched_since_quiet_.begin(), touched_since_quiet_.end());
  } else {
    walks_may_touch_.clear();
  }
  touched_since_quiet_.clear();
  for (auto& [key, truth] : truths_) truth.recorded_use_ms = truth.ticked_use_ms;
}

void SimOracle::OnLeft(const BlockKey& key) {
  const auto copy = copy_use_ms_.find(key);
  if (copy == copy_use_ms_.end()) return;
  Truth& truth = truths_[key];
  truth.recorded_use_ms = std::min(truth.recorded_use_ms, copy->second);
  truth.ticked_use_ms = std::min(truth.ticked_use_ms, copy->second);
  truth.last_use_ms = std::min(truth.last_use_ms, copy->second);
}

const TenantQuota* SimOracle::QuotaOf(uint32_t name_space) const {
  const auto& tenants = world_.options().tenants;
  const auto found =
      std::ranges::find(tenants, plan_.namespaces[name_space].identity.tenant, &TenantQuota::name);
  return found == tenants.end() ? nullptr : &*found;
}

int64_t SimOracle::TtlMs(uint32_t name_space, const BlockHash& hash) const {
  const bool memory = SimUniverse::RetentionOf(hash) == RetentionClass::kMemory;
  const CacheOptions& options = plan_.options;
  const TenantQuota* const quota = QuotaOf(name_space);
  if (quota != nullptr) {
    const int64_t own_ms = memory ? quota->memory_ttl_ms : quota->extended_ttl_ms;
    if (own_ms > 0) return own_ms;
  }
  return memory ? options.memory_ttl_ms : options.extended_ttl_ms;
}

// A block past its time is not served. Times are kept in seconds.
void SimOracle::CheckLifetime(uint32_t name_space, const BlockHash& hash, int64_t asked_ms) {
  constexpr int64_t kSlackMs = 1000;
  const Truth& truth = TruthOf(name_space, hash);
  SIM_CHECK(truth.last_touch_ms > 0, NameOf(name_space, hash) + " was never stored");
  if (truth.pinned_until_ms > 0) return;
  const int64_t idle_ms = asked_ms - truth.last_touch_ms;
  SIM_CHECK(idle_ms <= TtlMs(name_space, hash) + kSlackMs,
            fmt::format("{} served after {} ms idle", NameOf(name_space, hash), idle_ms));
}

void SimOracle::CheckBytes(const SimBlock& block, const BlockHash& hash) {
  const BlockHash contents = SimUniverse::ContentsOf(block.pool.name_space, hash);
  SIM_CHECK(MatchesHash(contents, world_.Bytes(block.pool, block.handle)),
            NameOf(block) + " " + NameOf(block.pool.name_space, hash) + " holds wrong bytes");
}

void SimOracle::CheckPart(const SimBlock& block, const BlockHash& hash, uint32_t parts,
                          uint32_t of) {
  const std::span<const std::byte> bytes = world_.Bytes(block.pool, block.handle);
  std::vector<std::byte> expected(bytes.size());
  FillFromHash(SimUniverse::ContentsOf(block.pool.name_space, hash), expected);
  SIM_CHECK(std::memcmp(bytes.data(), expected.data(), bytes.size() / of * parts) == 0,
            NameOf(block) + " " + NameOf(block.pool.name_space, hash) +
                " holds wrong bytes, counted as here");
}

void SimOracle::CheckGauges() const {
  const CacheGauges gauges = world_.cache().Gauges();
  for (const DeviceGauges& device : gauges.devices) {
    SIM_CHECK(device.pool_used_bytes <= plan_.options.pool_bytes, "pool cap");
  }
  SIM_CHECK(gauges.host_used_bytes <= gauges.host_ready_bytes, "host cap");
  // A tier that shrinks has more until its last block beyond has gone.
  const MachineSizes& sizes = plan_.sizes;
  SIM_CHECK(gauges.host_ready_bytes <= sizes.host_slabs * sizes.slab_bytes, "host arena");
  SIM_CHECK(gauges.disk_used_bytes <= sizes.disk_slabs * sizes.slab_bytes, "disk cap");
  SIM_CHECK(gauges.disk_persisted <= gauges.disk_blocks, "persisted blocks");
  SIM_CHECK(gauges.pinned_blocks <= gauges.entries, "pinned blocks");
  // Acquires that wait hold references of their own, and so do sessions that are closing.
  const bool exact = gauges.acquires_waiting + gauges.sessions_closing == 0;
  const uint64_t held = references_ + absent_references_;
  SIM_CHECK(exact ? gauges.references == held : gauges.references >= held,
            fmt::format("{} references, clients hold {}", gauges.references, held));
  SIM_CHECK(gauges.pools.size() == plan_.namespaces.size() * plan_.sizes.devices, "pools");
  for (uint32_t i = 0; i < gauges.pools.size(); ++i) {
    CheckPoolGauges({i / plan_.sizes.devices, i % plan_.sizes.devices}, gauges.pools[i],
                    gauges.sessions_closing > 0);
  }
  CheckQuotas(gauges);
  const CacheStats::Asked& blocks = world_.cache().stats().blocks;
  SIM_CHECK(
      blocks.asked == blocks.hit[0] + blocks.hit[1] + blocks.hit[2] + blocks.miss + blocks.declined,
      fmt::format("asked {} pool {} host {} disk {} miss {} declined {}", blocks.asked,
                  blocks.hit[0], blocks.hit[1], blocks.hit[2], blocks.miss, blocks.declined));
}

void SimOracle::CheckQuotas(const CacheGauges& gauges) const {
  SIM_CHECK(gauges.tenants.size() == plan_.options.tenants.size(), "tenants with quotas");
  std::array<uint64_t, kTierCount> used{};
  for (const TenantGauges& tenant : gauges.tenants) {
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      used[tier] += tenant.used_bytes[tier];
      const bool capped = tenant.quota.tiers[tier].max_bytes > 0;
      // More than the cap can only be there when it was lowered, or a restart found more.
      SIM_CHECK(!capped || tenant.used_bytes[tier] <= tenant.bound_bytes[tier],
                fmt::format("tenant {} has {} in tier {}", tenant.quota.name,
                            tenant.used_bytes[tier], tier));
      const bool found = tier == static_cast<size_t>(Tier::kDisk);
      SIM_CHECK(!capped || found || host_caps_changed_ ||
                    tenant.used_bytes[tier] <= tenant.quota.tiers[tier].max_bytes,
                fmt::format("tenant {} is over its cap in tier {}", tenant.quota.name, tier));
    }
  }
  SIM_CHECK(used[0] <= gauges.pool_used_bytes, "pools of tenants");
  SIM_CHECK(used[1] <= gauges.host_used_bytes, "host slots of tenants");
  SIM_CHECK(used[2] <= gauges.disk_used_bytes, "disk slots of tenants");
}

void SimOracle::CheckPoolGauges(SimPool pool, const PoolGauges& gauges, bool closing) const {
  uint64_t private_blocks = 0;
  const auto absent = absent_blocks_.find(pool);
  uint64_t quarantined = absent == absent_blocks_.end() ? 0 : absent->second;
  for (const auto& [place, owned] : owned_) {
    if (place.first != pool) continue;
    private_blocks += owned.kind == Owned::Kind::kPrivate;
    quarantined += owned.kind == Owned::Kind::kQuarantined;
  }
  // Until their part comes, private blocks of a session that is closing stay as they were, even if
  // its process is gone by then.
  const bool withheld = gauges.private_blocks >= private_blocks &&
                        gauges.private_blocks + gauges.quarantined >= private_blocks + quarantined;
  SIM_CHECK(closing ? withheld : gauges.private_blocks == private_blocks,
            fmt::format("{} private, clients hold {}", gauges.private_blocks, private_blocks));
  SIM_CHECK(closing || gauges.quarantined == quarantined,
            fmt::format("{} quarantined, should be {}", gauges.quarantined, quarantined));
  SIM_CHECK(
      gauges.blocks == gauges.free + gauges.private_blocks + gauges.referenced + gauges.cached +
                           gauges.loading + gauges.quarantined,
      fmt::format("pool {}/{}: {} blocks = {} free {} private {} referenced {} cached {} "
                  "loading {} quarantined",
                  pool.name_space, pool.device, gauges.blocks, gauges.free, gauges.private_blocks,
                  gauges.referenced, gauges.cached, gauges.loading, gauges.quarantined));
}

void SimOracle::CheckMemoryClass() const {
  for (uint32_t name_space = 0; name_space < plan_.namespaces.size(); ++name_space) {
    const auto present = world_.cache().Lookup(world_.pool({name_space, 0}).id, universe_.all());
    for (size_t i = 0; i < present.size(); ++i) {
      const BlockHash& hash = universe_.all()[i];
      if (SimUniverse::RetentionOf(hash) == RetentionClass::kExtended) continue;
      SIM_CHECK(!present[i].disk, NameOf(name_space, hash) + " is on disk");
    }
  }
}

void SimOracle::CheckMemoryClassAtRest() {
  for (const auto& file : world_.machine().files) {
    const std::span<std::byte> contents = file->contents();
    for (uint64_t at = 0; at < contents.size(); at += kSlotHeaderBytes) {
      const auto header = DecodeSlotHeader(contents.subspan(at).first<kSlotHeaderBytes>());
      if (!header) continue;
      SIM_CHECK(SimUniverse::RetentionOf(header->hash) == RetentionClass::kExtended,
                "a block of the memory class lies on disk");
    }
  }
}

std::vector<BlockKey> SimOracle::OnDisk(Proof proof) const {
  std::vector<BlockKey> keys;
  for (uint32_t name_space = 0; name_space < plan_.namespaces.size(); ++name_space) {
    const auto present = world_.cache().Lookup(world_.pool({name_space, 0}).id, universe_.all());
    for (size_t i = 0; i < present.size(); ++i) {
      const bool listed = present[i].disk || (proof == Proof::kNone && present[i].disk_unverified);
      if (listed) keys.push_back({NamespaceId(name_space), universe_.all()[i]});
    }
  }
  return keys;
}

void SimOracle::BeforeCrash() {
  for (auto& [key, truth] : truths_) {
    if (truth.recorded_pin_ms > NowMs()) truth.pinned_until_ms = truth.recorded_pin_ms;
  }
  erasure_cut_ = false;
  closing_.clear();
  walks_may_touch_.clear();
  copy_use_ms_.clear();
  persisted_ = OnDisk(Proof::kRead);
  KeepDoubts();
  NoteOvertaken();
}

void SimOracle::NoteOvertaken() {
  struct Youngest {
    uint32_t last_use_s = 0;
    uint32_t generation = 0;
    bool whole = false;
  };
  std::unordered_map<BlockKey, Youngest> youngest;
  for (const auto& file : world_.machine().files) {
    const std::span<const std::byte> contents = file->contents();
    for (uint64_t at = 0; at < contents.size(); at += kSlotHeaderBytes) {
      const auto header = DecodeSlotHeader(contents.subspan(at).first<kSlotHeaderBytes>());
      if (!header) continue;
      const auto name_space = NamespaceOf(header->tenant, header->model);
      if (!name_space) continue;
      Youngest& known = youngest[{NamespaceId(*name_space), header->hash}];
      if (std::tie(header->last_use_s, header->generation) <
          std::tie(known.last_use_s, known.generation))
        continue;
      const std::span<const std::byte> behind = contents.subspan(at + kSlotHeaderBytes);
      const bool whole =
          header->payload_bytes <= behind.size() &&
          ChecksumPayload(behind.first(header->payload_bytes)) == header->payload_checksum;
      known = {header->last_use_s, header->generation, whole};
    }
  }
  overtaken_.clear();
  for (const auto& [key, header] : youngest) {
    if (!header.whole) overtaken_.insert(key);
  }
}

// A record that is not verified proves nothing: blocks that are read and right by then are not in
// doubt.
void SimOracle::KeepDoubts() {
  const std::unordered_set<BlockKey> persisted(persisted_.begin(), persisted_.end());
  std::unordered_map<BlockKey, Doubt> still_doubtful;
  for (const IndexRecord& record : IndexRecords()) {
    const auto doubt = doubtful_.find(record.key);
    if (doubt == doubtful_.end()) continue;
    if (doubt->second != Doubt{record.location, record.generation}) continue;
    if (record.verified || persisted.contains(record.key)) still_doubtful.insert(*doubt);
  }
  doubtful_ = std::move(still_doubtful);
}

void SimOracle::OnCopyLeft(const SlotHeader& header, uint32_t last_use_s) {
  const auto name_space = NamespaceOf(header.tenant, header.model);
  if (!name_space) return;
  const int64_t use_ms = int64_t{last_use_s} * 1000;
  const auto [known, is_new] =
      copy_use_ms_.try_emplace(BlockKey{NamespaceId(*name_space), header.hash}, use_ms);
  known->second = std::min(known->second, use_ms);
}

bool SimOracle::Alive(uint32_t name_space, const BlockHash& hash, uint32_t created_s,
                      uint32_t last_use_s) {
  if (NowMs() - int64_t{last_use_s} * 1000 > TtlMs(name_space, hash)) return false;
  const TenantQuota* const quota = QuotaOf(name_space);
  const bool own = quota != nullptr && quota->max_age_ms > 0;
  const int64_t max_age_ms = own ? quota->max_age_ms : plan_.options.max_age_ms;
  return max_age_ms == 0 || NowMs() - int64_t{created_s} * 1000 <= max_age_ms;
}

std::optional<uint32_t> SimOracle::NamespaceOf(const std::string& tenant,
                                               const ModelFingerprint& model) const {
  for (uint32_t name_space = 0; name_space < plan_.namespaces.size(); ++name_space) {
    const NamespaceIdentity& identity = plan_.namespaces[name_space].identity;
    if (identity.tenant == tenant && identity.model == model) return name_space;
  }
  return std::nullopt;
}

std::vector<IndexRecord> SimOracle::IndexRecords() {
  const IndexSnapshot snapshot = world_.machine().Snapshot();
  std::unordered_map<NamespaceId, uint32_t> namespaces;
  for (const auto& [id, identity] : snapshot.namespaces) {
    if (const auto name_space = NamespaceOf(identity.tenant, identity.model))
      namespaces[id] = *name_space;
  }
  std::vector<IndexRecord> records;
  for (IndexRecord record : snapshot.records) {
    const auto name_space = namespaces.find(record.key.namespace_id);
    if (name_space == namespaces.end()) continue;
    record.key.namespace_id = NamespaceId(name_space->second);
    records.push_back(record);
  }
  return records;
}

SimOracle::Readable SimOracle::ReadIndex() {
  // Recency may be written this coarsely.
  constexpr int64_t kCoarseness = 10;
  Readable found;
  for (const IndexRecord& record : IndexRecords()) {
    const BlockKey& key = record.key;
    const int64_t behind_ms = TruthOf(key.namespace_id.value, key.hash).recorded_use_ms -
                              int64_t{record.last_use_s} * 1000;
    SIM_CHECK(plan_.index_failure_rate > 0 || plan_.disk_faulty ||
                  behind_ms <= TtlMs(key.namespace_id.value, key.hash) / kCoarseness + 1000,
              fmt::format("{}: the index is {} ms behind", NameOf(key.namespace_id.value, key.hash),
                          behind_ms));
    found[key] = Alive(key.namespace_id.value, key.hash, record.created_s, record.last_use_s);
  }
  return found;
}

SimOracle::Readable SimOracle::ReadHeaders() {
  Readable found;
  for (const auto& file : world_.machine().files) {
    const std::span<std::byte> contents = file->contents();
    for (uint64_t at = 0; at < contents.size(); at += kSlotHeaderBytes) {
      const auto header = DecodeSlotHeader(contents.subspan(at).first<kSlotHeaderBytes>());
      if (!header) continue;
      const auto name_space = NamespaceOf(header->tenant, header->model);
      if (!name_space) continue;
      bool& alive = found[{NamespaceId(*name_space), header->hash}];
      alive |= Alive(*name_space, header->hash, header->created_s, header->last_use_s);
    }
  }
  return found;
}

void SimOracle::AfterRestart(Source source) {
  owned_.clear();
  OnAbsentGone();
  references_ = 0;
  host_caps_changed_ = false;
  if (source == Source::kNothingSure) persisted_.clear();
  CheckRestored(source == Source::kIndex ? ReadIndex() : ReadHeaders(), source);
  for (auto& [key, truth] : truths_) {
    // Headers know of no use after the write, and a cut index of less. Both may bring back blocks
    // that were given up before they would have been erased.
    if (source != Source::kIndex) truth.recorded_use_ms = truth.erased = 0;
    // The daemon may drop its later copy before it finds the one in host memory.
    if (const auto copy = copy_use_ms_.find(key); copy != copy_use_ms_.end()) {
      truth.recorded_use_ms = std::min(truth.recorded_use_ms, copy->second);
    }
    truth.last_use_ms = truth.ticked_use_ms = truth.recorded_use_ms;
  }
  const std::vector<BlockKey> now = OnDisk(Proof::kNone);
  if (source == Source::kNothingSure) {
    for (const IndexRecord& record : IndexRecords()) {
      doubtful_[record.key] = {record.location, record.generation};
    }
  }
  const std::unordered_set<BlockKey> there(now.begin(), now.end());
  std::erase_if(persisted_, [&](const BlockKey& key) {
    return !there.contains(key) || doubtful_.contains(key);
  });
}

void SimOracle::CheckRestored(const Readable& readable, Source source) const {
  const std::vector<BlockKey> now = OnDisk(Proof::kNone);
  const std::unordered_set<BlockKey> there(now.begin(), now.end());
  for (const BlockKey& key : persisted_) {
    if (source == Source::kHeaders && (doubtful_.contains(key) || overtaken_.contains(key)))
      continue;
    // Headers of slots given up long ago may fill a cap, and be the younger.
    const TenantQuota* const quota = QuotaOf(key.namespace_id.value);
    const bool capped =
        quota != nullptr && quota->tiers[static_cast<size_t>(Tier::kDisk)].max_bytes > 0;
    if (capped && (source == Source::kHeaders || caps_changed_)) continue;
    const std::string name = NameOf(key.namespace_id.value, key.hash);
    SIM_CHECK(readable.contains(key), name + " was persisted and is nowhere");
    SIM_CHECK(there.contains(key) || !readable.at(key),
              name + " was persisted and is not restored");
  }
}

}  // namespace kvtier
