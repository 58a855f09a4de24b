// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/erasure.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tiers/cold/cold_object.h"
#include "tiers/space/disk_slots.h"
#include "tiers/space/host_slots.h"
#include "tiers/space/pool_space.h"
#include "tiers/state/cold_copies.h"
#include "tiers/storage/key_ring.h"
#include "tiers/transfer/cold_writer.h"
#include "tiers/transfer/host_adoption.h"

namespace kvtier {
namespace {

// A block that is loaded again and again is given up after so many ticks, and counted.
constexpr uint32_t kMostPasses = 200;

// The time-out of one part of the objects. A store that does not answer, or is away, is asked again
// with a tick, so many times: after a start it may not be connected yet.
constexpr int64_t kDeleteTimeoutMs = 5'000;
constexpr uint32_t kMostStoreTries = 100;

// A put that was given up, or whose daemon has ended, may be stored so much later.
constexpr int64_t kPutMayTakeMs = 60'000;
// While one may come, a store that is busy with it is listed again so often, and no longer than
// this.
constexpr int64_t kListAgainMs = 10'000;
constexpr int64_t kMostBusyMs = 3 * kPutMayTakeMs;

}  // namespace

void Erasure::Begin(const EraseRequest& request, Done done) {
  ErasureRecord record{.number = next_number_++,
                       .tenant = request.tenant,
                       .end_hour = request.end_hour,
                       .begun_s = state_.clock.ToWallS(state_.clock.NowS())};
  Add(record.number, request, state_.clock.NowS(), std::move(done));
  // A start that finishes it leaves keys of later hours. One of an hour to come is from before the
  // wall clock was set back.
  if (const KeyRing* const keys = state_.env.keys; keys != nullptr) {
    const uint32_t next_hour = record.begun_s / 3600 + 1;
    record.end_hour = std::min(record.end_hour, std::max(next_hour, keys->EndHour(record.tenant)));
  }
  // No block has a tenant with a longer name.
  if (!state_.has_disk() || record.tenant.size() > kMaxTenantBytes) {
    return OnNoted(record.number, {});
  }
  state_.env.index->Apply({.erasures = {record}},
                          gate_.WhileOpen([this, number = record.number](const Status& status) {
                            OnNoted(number, status);
                          }));
}

void Erasure::Resume(const std::vector<ErasureRecord>& begun, bool may_follow_another) {
  if (may_follow_another)
    state_.erasing.puts_may_come_until_ms = state_.clock.NowMs() + kPutMayTakeMs;
  for (const ErasureRecord& record : begun) {
    next_number_ = std::max(next_number_, record.number + 1);
    const auto done = [this, tenant = record.tenant](const EraseReport& report,
                                                     const Status& status) {
      if (state_.env.owner == nullptr) return;
      state_.env.owner->OnErasureResumed(tenant, report, status);
    };
    Add(record.number, {.tenant = record.tenant, .end_hour = record.end_hour},
        state_.clock.FromWallS(record.begun_s), done);
    OnNoted(record.number, {});
  }
}

// From here on nothing of it is written to disk, or adopted.
void Erasure::Add(uint32_t number, const EraseRequest& request, uint32_t begun_s, Done done) {
  jobs_.push_back({.number = number, .request = request, .done = std::move(done)});
  state_.erasing.scopes.push_back({request, begun_s});
  if (!KeepsTokens(request.tenant)) return;
  state_.token_ids.EraseExpected(request.tenant);
  if (state_.env.events != nullptr) state_.env.events->TokenIdsErased();
}

// An erasure that the index refuses to remember goes on all the same, and the error is told at the
// end.
void Erasure::OnNoted(uint32_t number, const Status& status) {
  Job& job = *std::ranges::find(jobs_, number, &Job::number);
  job.noted = true;
  if (!status) job.status = status;
  DestroyKeys(&job);
  if (state_.env.keys != nullptr) state_.env.keys->WhenStored([](const Status&) {});
  if (&job == &jobs_.front()) BeginPass();
}

void Erasure::DestroyKeys(Job* job) {
  if (state_.env.keys == nullptr) return;
  const EraseRequest& request = job->request;
  job->report.keys += state_.env.keys->Destroy(request.tenant, request.end_hour);
}

void Erasure::BeginPass() {
  next_row_ = 0;
  moving_ = 0;
  waiting_ = false;
  all_was_adopted_ = adoption_.Ended();
  // An adoption, which may take minutes, brings blocks of the tenant, too.
  jobs_.front().passes += all_was_adopted_ ? 1 : 0;
  state_.env.loop->Post(gate_.WhileOpen([this] { GoOn(); }));
}

void Erasure::Tick() {
  if (waiting_) BeginPass();
  if (!asks_store_at_ms_ || state_.clock.NowMs() < *asks_store_at_ms_) return;
  asks_store_at_ms_.reset();
  DeleteObjects();
}

// The slots' headers are voided, with keys or without: they tell the tenant's name in the open.
void Erasure::GoOn() {
  Job& job = jobs_.front();
  const Erasures::Scope& scope = state_.erasing.scopes.front();
  const uint64_t end =
      std::min<uint64_t>(state_.blocks.directory.end(), next_row_ + state_.options.drain_part_rows);
  uint32_t dropped = 0;
  for (; next_row_ < end && dropped < state_.options.close_part_blocks; ++next_row_) {
    const EntryIndex index(static_cast<uint32_t>(next_row_));
    if (!state_.blocks.directory.Live(index) || state_.blocks.lost.Contains(index)) continue;
    const BlockEntry& entry = state_[index];
    if (!state_.erasing.Covers(scope, state_.blocks.NamespaceOf(entry).identity.tenant,
                               entry.created_s)) {
      moving_ += MayComeBack(entry) ? 1 : 0;
      ForgetColdCopy(index);
      continue;
    }
    EraseTokens(index);
    if (Drop(index, &job.report)) {
      ++dropped;
    } else {
      ++moving_;
    }
  }
  state_.SchedulePump();
  disk_.committer().WhenDeleted(gate_.WhileOpen([this](const Status& status) {
    if (!status) jobs_.front().status = status;
    state_.env.loop->Post(gate_.WhileOpen([this] {
      if (next_row_ < state_.blocks.directory.end()) return GoOn();
      EndPass();
    }));
  }));
}

// The cold store may have given the block before its object was deleted: its age tells.
bool Erasure::MayComeBack(const BlockEntry& entry) const {
  const Job& job = jobs_.front();
  return entry.offered() && entry.reading() && job.objects_ended_s &&
         entry.created_s <= *job.objects_ended_s &&
         state_.blocks.NamespaceOf(entry).identity.tenant == job.request.tenant;
}

// Also of a block that something moves, and that may stay for it.
void Erasure::EraseTokens(EntryIndex index) {
  if (!state_.token_ids.Erase(index)) return;
  disk_.committer().DeleteTokens({state_[index].namespace_id, state_[index].hash});
}

void Erasure::EndPass() {
  Job& job = jobs_.front();
  const bool complete = moving_ == 0 && all_was_adopted_;
  waiting_ = !complete && job.passes < kMostPasses;
  if (!waiting_) job.objects_ended_s ? Finish() : DeleteObjects();
}

// A write that was being encrypted at the beginning may have made a new key for an old hour.
void Erasure::Finish() {
  DestroyKeys(&jobs_.front());
  if (state_.env.keys == nullptr) return PurgeTokens();
  const auto stored = [this](const Status& status) {
    if (!status) jobs_.front().status = status;
    PurgeTokens();
  };
  state_.env.keys->WhenStored(gate_.WhileOpen(stored), KeyRing::Older::kGone);
}

// Entries deleted from the index lie in its files for a while; ids are prompts, and may be there in
// the open.
void Erasure::PurgeTokens() {
  if (!state_.has_disk() || !KeepsTokens(jobs_.front().request.tenant)) return Answer();
  state_.env.index->Apply({.purge_tokens = true}, gate_.WhileOpen([this](const Status& status) {
    if (!status) jobs_.front().status = status;
    Answer();
  }));
}

bool Erasure::KeepsTokens(const std::string& tenant) const {
  return state_.token_ids.ShareOf(tenant) != TokenIds::kNoShare;
}

void Erasure::ForgetColdCopy(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (!entry.cold_copy()) return;
  if (state_.blocks.NamespaceOf(entry).identity.tenant != jobs_.front().request.tenant) return;
  kvtier::ForgetColdCopy(&state_, index);
}

// Objects on their way there arrive before, or a deletion would miss them.
void Erasure::DeleteObjects() {
  if (cold_writer_ == nullptr) return Finish();
  Job& job = jobs_.front();
  const int64_t now_ms = state_.clock.NowMs();
  if (cold_writer_->IsWriting(job.request.tenant)) {
    asks_store_at_ms_ = now_ms;
    return;
  }
  if (job.cursor == 0) job.listed_ms = now_ms;
  state_.env.cold->DeleteSome(
      ColdPrefix(job.request.tenant), job.cursor, kDeleteTimeoutMs,
      gate_.WhileOpen([this](const Result<uint64_t>& next) { OnDeleted(next); }));
}

void Erasure::OnDeleted(const Result<uint64_t>& next) {
  Job& job = jobs_.front();
  const int64_t now_ms = state_.clock.NowMs();
  if (next) {
    job.store_tries = 0;
    job.cursor = *next;
    if (job.cursor != 0) return DeleteObjects();
    if (job.listed_ms >= state_.erasing.puts_may_come_until_ms) return OnObjectsEnded();
    asks_store_at_ms_ = state_.erasing.puts_may_come_until_ms;
    return;
  }
  if (next.error().code == ErrorCode::kResourceExhausted) {
    job.cursor = 0;
    if (!job.busy_until_ms) job.busy_until_ms = now_ms + kMostBusyMs;
    if (now_ms < *job.busy_until_ms) asks_store_at_ms_ = now_ms + kListAgainMs;
  } else if (++job.store_tries < kMostStoreTries) {
    asks_store_at_ms_ = now_ms;
  }
  if (asks_store_at_ms_) return;
  job.status = MakeError(ErrorCode::kIoError, next.error().reason, next.error().context);
  OnObjectsEnded();
}

void Erasure::OnObjectsEnded() {
  Job& job = jobs_.front();
  // Acquires may have brought blocks back meanwhile, from objects that were not deleted yet.
  job.objects_ended_s = state_.clock.NowS();
  job.passes = 0;
  BeginPass();
}

void Erasure::Answer() {
  Job& job = jobs_.front();
  job.report.moving = moving_;
  if (!state_.has_disk()) return Reply();
  if (job.status && disk_.health().CountMissing() > 0) {
    job.status = MakeError(ErrorCode::kIoError, "drive_away",
                           "blocks on a drive that is away or has failed stay there until a start "
                           "that has it; erase again then");
  }
  unended_.emplace_back(job.number, job.request);
  // An incomplete erasure is finished by a start.
  const bool complete = job.status && moving_ == 0;
  complete ? EndCovered() : Reply();
}

// Ends the earlier ones that it repeats, too: a start that resumed them would take blocks written
// since. An index that refuses leaves them all to that start, so that its error is told.
void Erasure::EndCovered() {
  const auto covered = [&request = jobs_.front().request](const auto& numbered) {
    return numbered.second.tenant == request.tenant && numbered.second.end_hour <= request.end_hour;
  };
  IndexBatch batch;
  for (const auto& numbered : unended_) {
    if (covered(numbered)) batch.ended_erasures.push_back(numbered.first);
  }
  state_.env.index->Apply(std::move(batch), gate_.WhileOpen([this, covered](const Status& status) {
    if (status) {
      std::erase_if(unended_, covered);
    } else {
      jobs_.front().status = status;
    }
    Reply();
  }));
}

void Erasure::Reply() {
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  state_.erasing.scopes.erase(state_.erasing.scopes.begin());
  if (!jobs_.empty() && jobs_.front().noted) BeginPass();
  job.done(job.report, job.status);
}

bool Erasure::InRegion(const BlockEntry& entry) const {
  bool in_region = false;
  state_.blocks.ForEachPlace(
      entry, [&](const CachePool& pool, BlockIndex) { in_region |= pool.is_region; });
  return in_region;
}

// The last drop forgets the entry: where the block is must be known before.
bool Erasure::Drop(EntryIndex index, EraseReport* report) {
  const BlockEntry& entry = state_[index];
  // A block that an engine stores from memory of its own or loads into it ends soon.
  if (entry.busy() || InRegion(entry)) return false;
  if (entry.pinned()) state_.Unpin(index);
  const bool in_host = entry.in_host();
  const bool on_disk = entry.on_disk();
  const uint64_t slot_bytes = state_.blocks.NamespaceOf(entry).slot_bytes;
  const auto count = [report](Tier tier, uint64_t bytes) {
    ++report->blocks[static_cast<size_t>(tier)];
    report->bytes[static_cast<size_t>(tier)] += bytes;
  };
  if (in_host) count(Tier::kHost, slot_bytes);
  if (on_disk) count(Tier::kDisk, slot_bytes);
  if (entry.in_pool()) DropFromPools(index, report);
  if (in_host) host_.Drop(index, DropReason::kErased);
  if (on_disk) disk_.Drop(index, DropReason::kErased, IndexCommitter::Slot::kVoid);
  return true;
}

void Erasure::DropFromPools(EntryIndex index, EraseReport* report) {
  std::vector<CachePool*> unused;
  std::vector<CachePool*> referenced;
  state_.blocks.ForEachPlace(state_[index], [&](CachePool& pool, BlockIndex block) {
    ++report->blocks[static_cast<size_t>(Tier::kPool)];
    report->bytes[static_cast<size_t>(Tier::kPool)] += pool.block_bytes;
    (pool.blocks[block].references() > 0 ? referenced : unused).push_back(&pool);
  });
  // These first: they leave the entry, which the others may forget.
  for (CachePool* const pool : referenced) {
    ++report->referenced;
    state_.drops.Count(index, Tier::kPool, DropReason::kErased);
    state_.LosePoolBlock(pool, index);
  }
  for (CachePool* const pool : unused) pools_.Drop(pool, index, DropReason::kErased);
  if (!unused.empty()) return;
  to_host_.SourceGone(index);
  state_.ForgetIfGone(index);
}

}  // namespace kvtier
