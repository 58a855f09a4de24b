// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "tests/fakes/derived_bytes.h"
#include "tests/sim/sim_check.h"

namespace kvtier {
namespace {

// No client of pools has such a number.
constexpr uint64_t kFirstSession = uint64_t{1} << 40;
constexpr uint64_t kPatternStream = 0x7e610e;

BlockHash PatternOf(uint64_t pattern) { return TestHash(kPatternStream, pattern); }

}  // namespace

SimRegions::SimRegions(SimContext context, SeededRandom random)
    : context_(context),
      random_(random),
      next_session_(kFirstSession),
      looks_(context.world.machine().loop.AddSource(FakeLoop::Order::kAny)) {}

bool SimRegions::Step() {
  if (!context_.plan.lends_regions || !random_.Chance(0.3)) return false;
  for (const auto& [id, region] : regions_) CheckPatterns(region);
  if (random_.Chance(0.5)) LetGoOfOne();
  const uint64_t choice = random_.Below(100);
  if (choice < 12 || regions_.empty()) {
    Open();
  } else if (choice < 62) {
    Begin();
  } else if (choice < 82) {
    GoOn();
  } else if (choice < 87) {
    Close();
  } else if (choice < 92) {
    Reopen();
  } else if (choice < 95) {
    CloseSession();
  } else {
    Misbehave();
  }
  return true;
}

void SimRegions::Open() {
  if (regions_.size() >= kMostRegions) return;
  if (sessions_.empty() || random_.Chance(0.2)) {
    sessions_.insert(SessionId(next_session_));
    context_.world.cache().OpenSession(SessionId(next_session_++), [](const LoadProgress&) {});
  }
  const auto name_space = static_cast<uint32_t>(random_.Below(context_.plan.namespaces.size()));
  const auto device = static_cast<uint32_t>(random_.Below(context_.plan.sizes.devices));
  const NamespaceIdentity& identity = context_.plan.namespaces[name_space].identity;
  Region region{.session = *std::next(sessions_.begin(),
                                      static_cast<ptrdiff_t>(random_.Below(sessions_.size()))),
                .name_space = name_space,
                .block_bytes = identity.block_bytes,
                .patterns = std::vector<uint64_t>(kRows),
                .held = {},
                .published = {}};
  if (random_.Chance(0.7)) {
    region.published =
        std::make_shared<FakePublishedBlocks>(&context_.world.machine().loop, looks_);
  }
  RegionMemory memory{
      .lent = {.kind = LentMemory::Kind::kVmm, .bytes = kRows * identity.block_bytes},
      .device = DeviceIndex(device),
      .blocks = kRows,
      .block_tokens = 16,
      .pieces = {{0, identity.block_bytes, identity.block_bytes}},
      .published = region.published};
  const Result<PoolId> id =
      context_.world.cache().OpenRegion(region.session, identity, std::move(memory));
  SIM_CHECK(id.has_value(), id.error().ToString());
  SIM_CHECK(numbers_.insert(*id).second, "a region has the number of an earlier one");
  region.memory = context_.world.machine().devices[device]->lent().back()->memory();
  for (uint32_t row = 0; row < kRows; ++row) Scribble(&region, BlockIndex(row));
  regions_.emplace(*id, std::move(region));
}

void SimRegions::Begin() {
  const auto region = PickOpen();
  if (region == regions_.end()) return;
  Transfer transfer{.is_load = random_.Chance(0.5),
                    .erasures = context_.oracle.erasures(),
                    .stream = static_cast<uint32_t>(random_.Below(SimUniverse::kStreams)),
                    .first_depth = static_cast<uint32_t>(random_.Below(SimUniverse::kDepth))};
  const bool one_hash = transfer.is_load && random_.Chance(0.2);
  for (uint32_t row = 0; row < kRows; ++row) {
    const auto depth = transfer.first_depth + (one_hash ? 0 : uint32_t(transfer.rows.size()));
    if (depth >= SimUniverse::kDepth) break;
    const bool is_free =
        region->second.patterns[row] != 0 || region->second.held.contains(BlockIndex(row));
    if (!is_free || random_.Chance(0.3)) continue;
    transfer.rows.emplace_back(row);
    transfer.hashes.push_back(context_.universe.HashAt(transfer.stream, depth));
  }
  if (transfer.rows.empty()) return;
  for (size_t i = 0; i < transfer.rows.size(); ++i) {
    if (region->second.held.erase(transfer.rows[i]) > 0) {
      region->second.published->Retract(transfer.rows[i]);
    }
    region->second.patterns[transfer.rows[i].value] = 0;
    if (transfer.is_load) continue;
    FillFromHash(SimUniverse::ContentsOf(region->second.name_space, transfer.hashes[i]),
                 Bytes(region->second, transfer.rows[i]));
  }
  const TransferId number(next_transfer_++);
  const std::vector<BlockIndex> rows = transfer.rows;
  const bool in_layers = transfer.is_load && random_.Chance(0.3);
  const size_t named = random_.Chance(0.7) ? rows.size() : random_.Below(rows.size() + 1);
  region->second.transfers.emplace(number, std::move(transfer));
  const PoolId id = region->first;
  const Status begun = context_.world.cache().BeginTransfer(
      id, number, rows, [this, id, number](const TransferEnd& end) { OnEnded(id, number, end); },
      {.layers = in_layers ? 2u : 0u});
  SIM_CHECK(begun.has_value(), begun.error().ToString());
  NameSome(id, number, named);
}

void SimRegions::NameSome(PoolId id, TransferId number, size_t count) {
  if (count == 0) return;
  const Region& region = regions_.at(id);
  Transfer& transfer = regions_.at(id).transfers.at(number);
  std::vector<StoreRequest> stores;
  std::vector<LoadRequest> loads;
  touched_.emplace(region.name_space, transfer.stream);
  for (const size_t end = transfer.named + count; transfer.named < end; ++transfer.named) {
    const BlockHash& hash = transfer.hashes[transfer.named];
    const BlockIndex row = transfer.rows[transfer.named];
    if (transfer.is_load) {
      loads.push_back({row, hash});
      continue;
    }
    const auto depth = transfer.first_depth + static_cast<uint32_t>(transfer.named);
    StoreRequest store{.block = row, .hash = hash, .tokens = 16, .depth = depth};
    if (depth > 0) store.parent = context_.universe.HashAt(transfer.stream, depth - 1);
    store.retention = SimUniverse::RetentionOf(hash);
    stores.push_back(store);
    if (region.published) region.published->Publish(row, hash);
    context_.oracle.OnComputed(region.name_space, hash);
  }
  TouchPending();
  // The last of it may end the transfer within the call.
  if (transfer.is_load) {
    context_.world.cache().Load(id, loads);
  } else {
    context_.world.cache().Store(id, stores);
  }
}

void SimRegions::GoOn() {
  const auto region = PickOpen();
  if (region == regions_.end()) return;
  for (const auto& [number, transfer] : region->second.transfers) {
    const size_t left = transfer.rows.size() - transfer.named;
    if (left == 0) continue;
    return NameSome(region->first, number, random_.Between(1, left));
  }
}

void SimRegions::Close() {
  const auto region = PickOpen();
  if (region == regions_.end()) return;
  region->second.closing = true;
  const PoolId id = region->first;
  context_.world.cache().CloseRegion(id, [this, id] {
    const auto closed = regions_.find(id);
    SIM_CHECK(closed != regions_.end(), "a region was closed twice");
    SIM_CHECK(closed->second.transfers.empty(), "a region was closed with a transfer under way");
    regions_.erase(closed);
  });
}

void SimRegions::Reopen() {
  Close();
  for (int events = 0; events < 8 && context_.world.machine().loop.RunOne(); ++events) {
  }
  Open();
  Begin();
}

// Nothing of it is reported: the memory is not the engine's to look at any more.
void SimRegions::CloseSession() {
  if (sessions_.empty()) return;
  const SessionId session = *sessions_.begin();
  sessions_.erase(session);
  std::erase_if(regions_, [&](const auto& known) { return known.second.session == session; });
  context_.world.cache().CloseSession(session);
  context_.world.cache().ReleaseQuarantine(session);
}

void SimRegions::CloseAll() {
  while (!sessions_.empty()) CloseSession();
}

void SimRegions::BeforeDeath() {
  TouchPending();
  regions_.clear();
  sessions_.clear();
  numbers_.clear();
  touched_.clear();
}

void SimRegions::Misbehave() {
  const auto region = PickOpen();
  if (region == regions_.end()) return;
  Cache& cache = context_.world.cache();
  const auto refused = [&](const std::vector<BlockIndex>& rows) {
    return !cache.BeginTransfer(region->first, TransferId(next_transfer_++), rows,
                                [](const TransferEnd&) {});
  };
  SIM_CHECK(refused({BlockIndex(kRows)}), "a block outside the region was taken");
  SIM_CHECK(refused({BlockIndex(0), BlockIndex(0)}), "a block was taken twice");
  for (const auto& [number, transfer] : region->second.transfers) {
    if (transfer.named == transfer.rows.size()) continue;
    SIM_CHECK(refused({transfer.rows.back()}), "a block was taken that another transfer has");
  }
}

void SimRegions::OnEnded(PoolId id, TransferId number, const TransferEnd& end) {
  const auto found = regions_.find(id);
  SIM_CHECK(found != regions_.end(), "a transfer ended in a region that is closed");
  Region& region = found->second;
  const auto under_way = region.transfers.extract(number);
  SIM_CHECK(!under_way.empty(), "a transfer ended twice");
  const Transfer& transfer = under_way.mapped();
  SIM_CHECK(end.copied + end.skipped + end.failed.size() == transfer.rows.size(),
            fmt::format("{} copied, {} skipped, {} failed of {}", end.copied, end.skipped,
                        end.failed.size(), transfer.rows.size()));
  SIM_CHECK(end.skipped == 0 || !transfer.is_load, "a load skips nothing");
  std::vector<bool> failed(transfer.rows.size());
  for (const auto& [position, reason] : end.failed) {
    SIM_CHECK(position < failed.size() && !failed[position], "a block failed twice, or another");
    failed[position] = true;
  }
  for (size_t i = 0; i < transfer.rows.size(); ++i) {
    if (transfer.is_load && !failed[i]) CheckLoaded(region, transfer, i);
    if (!transfer.is_load && region.published && i < transfer.named && random_.Chance(0.6)) {
      region.held.emplace(transfer.rows[i], transfer.hashes[i]);
    } else {
      if (region.published) region.published->Retract(transfer.rows[i]);
      Scribble(&region, transfer.rows[i]);
    }
  }
  ++ended_;
}

void SimRegions::CheckLoaded(const Region& region, const Transfer& transfer,
                             size_t position) const {
  const BlockHash& hash = transfer.hashes[position];
  context_.oracle.CheckNotErased(region.name_space, hash, transfer.erasures);
  SIM_CHECK(MatchesHash(SimUniverse::ContentsOf(region.name_space, hash),
                        Bytes(region, transfer.rows[position])),
            "a region was given wrong bytes");
}

SimRegions::Regions::iterator SimRegions::PickOpen() {
  std::vector<Regions::iterator> open;
  for (auto region = regions_.begin(); region != regions_.end(); ++region) {
    if (!region->second.closing) open.push_back(region);
  }
  return open.empty() ? regions_.end() : open[random_.Below(open.size())];
}

std::span<std::byte> SimRegions::Bytes(const Region& region, BlockIndex row) const {
  return {region.memory->data() + row.value * region.block_bytes, region.block_bytes};
}

// As an engine does with memory that is its own again.
void SimRegions::Scribble(Region* region, BlockIndex row) {
  region->patterns[row.value] = next_pattern_++;
  FillFromHash(PatternOf(region->patterns[row.value]), Bytes(*region, row));
}

void SimRegions::LetGoOfOne() {
  const auto region = PickOpen();
  if (region == regions_.end() || region->second.held.empty()) return;
  const auto [row, hash] = *region->second.held.begin();
  region->second.held.erase(row);
  region->second.published->Retract(row);
  Scribble(&region->second, row);
  if (random_.Chance(0.3)) region->second.published->Publish(row, hash);
}

void SimRegions::CheckPatterns(const Region& region) const {
  for (uint32_t row = 0; row < kRows; ++row) {
    if (region.patterns[row] == 0) continue;
    SIM_CHECK(MatchesHash(PatternOf(region.patterns[row]), Bytes(region, BlockIndex(row))),
              "a block of a region was written to after its transfer had ended");
  }
}

// Prefixes are made young in parts, some of them after the transfer.
void SimRegions::TouchPending() {
  for (const auto& [id, region] : regions_) {
    for (const auto& [number, transfer] : region.transfers) {
      touched_.emplace(region.name_space, transfer.stream);
    }
  }
  for (const auto& [name_space, stream] : touched_) {
    for (uint32_t depth = 0; depth < SimUniverse::kDepth; ++depth) {
      context_.oracle.OnTouched(name_space, context_.universe.HashAt(stream, depth));
    }
  }
  if (context_.world.machine().loop.pending() == 0) touched_.clear();
}

}  // namespace kvtier
