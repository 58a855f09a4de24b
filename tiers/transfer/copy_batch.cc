// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/copy_batch.h"

#include <utility>

#include "base/result.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

CopyBatch::CopyBatch(CacheState* state, CopyDirection direction, CopyPriority priority,
                     uint64_t most_bytes)
    : state_(*state), most_bytes_(most_bytes) {
  request_.direction = direction;
  request_.priority = priority;
}

std::span<std::byte> CopyBatch::Add(CachePool* pool, EntryIndex index, uint64_t offset,
                                    uint64_t bytes) {
  KVT_CHECK(Admits(*pool));
  const BlockEntry& entry = state_[index];
  const auto in_host = state_.tables.HostBytes(entry).subspan(kSlotHeaderBytes + offset, bytes);
  pool_ = pool;
  bytes_ += bytes;
  pool->ForEachPart(
      state_.blocks.BlockIn(*pool, entry), offset, bytes, &at_,
      [&](uint64_t in_pool, uint64_t in_payload, uint64_t part_bytes) {
        request_.copies.push_back({in_pool, in_host.data() + (in_payload - offset), part_bytes});
      });
  return in_host;
}

void CopyBatch::AddFrom(CachePool* pool, EntryIndex index, const CachePool& source,
                        BlockIndex block) {
  KVT_CHECK(AdmitsFrom(*pool, source));
  std::byte* const from = source.memory->data();
  pool_ = pool;
  request_.source = source.memory.get();
  from_ = source.device;
  bytes_ += pool->block_bytes;
  // Each part of the target is cut where the source is: both are walked in step.
  pool->ForEachPart(
      state_.blocks.BlockIn(*pool, state_[index]), 0, pool->block_bytes, &at_,
      [&](uint64_t in_pool, uint64_t in_payload, uint64_t part_bytes) {
        source.ForEachPart(
            block, in_payload, part_bytes, &at_source_,
            [&](uint64_t in_source, uint64_t at, uint64_t bytes) {
              request_.copies.push_back({in_pool + (at - in_payload), from + in_source, bytes});
            });
      });
}

void CopyLimiter::Start(CopyBatch batch, std::function<void(const Status&)> done) {
  KVT_CHECK(!batch.empty());
  CopyRequest request = std::move(batch.request_);
  const auto flight = flights_.insert(
      flights_.end(),
      {batch.pool_,
       InFlightBytes(&in_flight_[batch.pool_->copy_line], batch.bytes_, request.copies.size()),
       std::move(done), batch.bytes_, RateOf(batch)});
  pieces_started_ += request.copies.size();
  meter().Begin(state_.clock.NowMs());
  if (flight->rate != nullptr) flight->rate->Begin(flight->copied_bytes, state_.clock.PreciseUs());
  request.pool = batch.pool_->memory.get();
  if (batch.pool_->lender) {
    request.is_lent = [lender = batch.pool_->lender] { return !lender->Seen(); };
  }
  request.done = [this, flight](const Status& status) { OnCopied(flight, status); };
  batch.pool_->copier->Copy(std::move(request));
}

void CopyLimiter::OnCopied(std::list<Flight>::iterator flight, Status status) {
  const CachePool& pool = *flight->pool;
  if (status && !pool.IsLent()) status = MakeError(ErrorCode::kCancelled, "not_lent");
  if (!status && status.error().code != ErrorCode::kCancelled) {
    state_.incidents.Report(IncidentKind::kCopyFailed, pool.namespace_id,
                            status.error().ToString());
  }
  // The flight is gone before `done` runs, so that the bytes in flight are right when it starts the
  // next copy.
  const std::function<void(const Status&)> done = std::move(flight->done);
  if (flight->rate != nullptr) {
    flight->rate->End(flight->copied_bytes, status.has_value(), state_.clock.PreciseUs());
  }
  flights_.erase(flight);
  meter().End(state_.clock.NowMs());
  // The pump runs at the end of the event, and starts the next copies for all that ended in it.
  state_.SchedulePump();
  done(status);
}

RateMeter* CopyLimiter::RateOf(const CopyBatch& batch) {
  const DeviceIndex device = batch.pool_->device;
  if (lane_ == CopyLane::kPoolToPool) return &state_.load_rates.neighbour(device, batch.from_);
  return lane_ == CopyLane::kHostToPool ? &state_.load_rates.bus(device) : nullptr;
}

bool HostSlotIsOf(CacheState& state, const BlockEntry& entry) {
  return HeaderNames(state.blocks.NamespaceOf(entry).identity, entry.hash, entry.tokens,
                     state.tables.HostBytes(entry).first<kSlotHeaderBytes>());
}

void FetchHostHeader(CacheState& state, const BlockEntry& entry) {
  constexpr size_t kCacheLineBytes = 64;
  const std::byte* const header = state.tables.HostBytes(entry).data();
  for (size_t i = 0; i < kSlotIdentityBytes; i += kCacheLineBytes) __builtin_prefetch(header + i);
}

}  // namespace kvtier
