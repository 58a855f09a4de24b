// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/host_prefetch.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

// How long a tenant's requests wait while none gets on: for a disk that hangs, or until blocks
// brought before are used.
constexpr int64_t kPatienceMs = 5'000;
// How long a block that was brought counts unless it is used.
constexpr int64_t kUnusedMs = 60'000;
// Prefetched blocks may take one part of so many of host, and of the tenant's cap there.
constexpr uint64_t kHostShare = 2;
constexpr size_t kBroughtPerTick = 4096;

}  // namespace

HostPrefetch::HostPrefetch(CacheState* state, PrefixFinder* finder, HostSlots* host, Loader* loader,
                           OffloadQueue* to_host, PrefixTouches* touches)
    : state_(*state),
      finder_(*finder),
      host_(*host),
      loader_(*loader),
      to_host_(*to_host),
      touches_(*touches),
      shares_(state->tenants.rows()) {
  state_.ends.AddListener(this);
}

void HostPrefetch::Begin(SessionId session, NamespaceId namespace_id, std::vector<BlockHash> hashes,
                         Done done) {
  const Namespace& name_space = state_.blocks.namespaces[namespace_id.value];
  Share& share = shares_[name_space.tenant.value];
  Waiting& waiting = waiting_[name_space.line];
  const size_t end = hashes.size();
  Request request{.session = session,
                  .namespace_id = namespace_id,
                  .tenant = name_space.tenant,
                  .line = name_space.line,
                  .hashes = std::move(hashes),
                  .done = std::move(done),
                  .end = end};
  const size_t with_this = waiting.blocks + share.waiting_blocks + 2 * request.price();
  if (end == 0 || with_this > 2 * kMostBlocks) return request.done(0);
  if (waiting.blocks == 0) waiting.moved_ms = state_.clock.NowMs();
  waiting.blocks += request.price();
  share.waiting_blocks += request.price();
  requests_.emplace(++last_request_, std::move(request));
  lines_.Push(name_space.line, last_request_);
}

// Its reads still arrive, for no one.
void HostPrefetch::ForgetSession(SessionId session) {
  std::erase_if(requests_, [&](const auto& item) {
    const Request& request = item.second;
    if (request.session != session) return false;
    GiveBack(request);
    return true;
  });
}

void HostPrefetch::Pump() {
  if (requests_.empty()) return;
  looks_left_ = state_.options.acquire_part_blocks;
  (void)lines_.TakeTurns(
      [this](TenantLine, PriorityQueue<RequestId>* line) { return Step(line->next()); });
  if (looks_left_ == 0) state_.SchedulePart();
}

void HostPrefetch::OnEnded(std::span<const BlockEnd> ends) {
  for (const BlockEnd& end : ends) {
    if (end.move != BlockMove::kReadAhead) continue;
    const auto node = reads_.extract(end.block);
    if (node.empty()) continue;
    const Read read = node.mapped();
    const bool in_host = end.reason == MissReason::kNone;
    const EntryIndex index = state_.blocks.directory.Resolve(end.block);
    if (in_host && index != kNoEntry) {
      ++state_.stats.host_prefetched_blocks;
      state_.stats.host_prefetched_bytes += state_.blocks.NamespaceOf(state_[index]).slot_bytes;
    }
    const auto request = requests_.find(read.request);
    if (request == requests_.end()) continue;
    --request->second.reading;
    waiting_[request->second.line].moved_ms = state_.clock.NowMs();
    if (!in_host) request->second.end = std::min(request->second.end, read.position);
    EndIfDone(request);
  }
}

bool HostPrefetch::Step(std::deque<RequestId>* line) {
  const RequestId id = line->front();
  const auto found = requests_.find(id);
  if (found != requests_.end()) {
    Request& request = found->second;
    if (request.next < request.end && !SeeToNext(id, &request)) return false;
    if (request.next < request.end) return true;
  }
  line->pop_front();
  if (found != requests_.end()) EndIfDone(found);
  return true;
}

// A block that no tier here has ends the prefix: nothing behind it could be hit.
bool HostPrefetch::SeeToNext(RequestId id, Request* request) {
  if (looks_left_ == 0) return false;
  --looks_left_;
  const BlockKey key{request->namespace_id, request->hashes[request->next]};
  MissReason miss = MissReason::kNone;
  const EntryIndex index = finder_.Servable(kNoEntry, key, &miss);
  if (index == kNoEntry) {
    request->end = request->next;
    return true;
  }
  const BlockEntry& entry = state_[index];
  const bool in_memory = entry.in_pool() || entry.has_host_slot() || entry.expected_in_host();
  Loader::HostRead read = in_memory ? Loader::HostRead::kBegun : Loader::HostRead::kRefused;
  if (!in_memory && entry.on_disk()) read = ReadFromDisk(id, request, index);
  if (read == Loader::HostRead::kLater) return false;
  waiting_[request->line].moved_ms = state_.clock.NowMs();
  if (read == Loader::HostRead::kRefused) {
    request->end = request->next;
  } else {
    ++request->next;
  }
  return true;
}

Loader::HostRead HostPrefetch::ReadFromDisk(RequestId id, Request* request, EntryIndex index) {
  const uint64_t slot_bytes = state_.blocks.NamespaceOf(state_[index]).slot_bytes;
  const TenantId tenant = request->tenant;
  const bool others_wait = loader_.reads_queued() > 0 || to_host_.size() > 0;
  if (others_wait || !HasRoom(tenant, slot_bytes)) return Loader::HostRead::kLater;
  const BlockKey key{request->namespace_id, request->hashes[request->next]};
  const uint32_t uses = state_[index].uses;
  const Loader::HostRead read = loader_.ReadToHost(index);
  if (read != Loader::HostRead::kBegun) return read;
  ++request->reading;
  reads_[state_.blocks.directory.RefOf(index)] = {id, request->next};
  brought_.push_back({.block = key,
                      .tenant = tenant,
                      .bytes = slot_bytes,
                      .uses = uses,
                      .until_ms = state_.clock.NowMs() + kUnusedMs});
  shares_[tenant.value].brought_bytes += slot_bytes;
  brought_bytes_ += slot_bytes;
  return read;
}

bool HostPrefetch::HasRoom(TenantId tenant, uint64_t slot_bytes) const {
  const uint64_t host_bytes = host_.allocator().TotalSlots(slot_bytes) * slot_bytes;
  const uint64_t cap_bytes = state_.tenants.cap_bytes(Tier::kHost, tenant);
  return brought_bytes_ + slot_bytes <= host_bytes / kHostShare &&
         shares_[tenant.value].brought_bytes + slot_bytes <= cap_bytes / kHostShare;
}

// Blocks that still count go behind the others, so that all are looked at in turn.
void HostPrefetch::Tick() {
  const int64_t now_ms = state_.clock.NowMs();
  for (size_t looks = std::min(brought_.size(), kBroughtPerTick); looks > 0; --looks) {
    const Brought brought = brought_.front();
    brought_.pop_front();
    const Fate fate = FateOf(brought, now_ms);
    if (fate == Fate::kWaits) {
      brought_.push_back(brought);
      continue;
    }
    if (fate == Fate::kUnused) ++state_.stats.host_prefetched_unused_blocks;
    shares_[brought.tenant.value].brought_bytes -= brought.bytes;
    brought_bytes_ -= brought.bytes;
  }
  for (auto next = requests_.begin(); next != requests_.end();) {
    const auto request = next++;
    if (now_ms - waiting_[request->second.line].moved_ms < kPatienceMs) continue;
    if (request->second.next < request->second.end) {
      request->second.end = request->second.next;
      ++state_.stats.host_prefetches_cut;
    }
    EndIfDone(request);
  }
}

HostPrefetch::Fate HostPrefetch::FateOf(const Brought& brought, int64_t now_ms) const {
  const EntryIndex index = state_.blocks.Find(brought.block);
  if (index != kNoEntry && state_[index].uses != brought.uses) return Fate::kUsed;
  const bool in_host = index != kNoEntry && state_[index].has_host_slot();
  return in_host && now_ms < brought.until_ms ? Fate::kWaits : Fate::kUnused;
}

void HostPrefetch::EndIfDone(Requests::iterator found) {
  if (found->second.next < found->second.end || found->second.reading > 0) return;
  const Request request = std::move(found->second);
  requests_.erase(found);
  GiveBack(request);
  if (request.end > 0) {
    touches_.TouchPrefix(
        state_.blocks.Find({request.namespace_id, request.hashes[request.end - 1]}));
  }
  request.done(static_cast<uint32_t>(request.end));
}

void HostPrefetch::GiveBack(const Request& request) {
  shares_[request.tenant.value].waiting_blocks -= request.price();
  waiting_[request.line].blocks -= request.price();
}

}  // namespace kvtier
