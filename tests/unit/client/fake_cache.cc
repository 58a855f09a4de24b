// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/client/fake_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/result.h"

namespace kvtier::client {

FakeCache::FakeCache(uint64_t block_bytes, uint32_t blocks)
    : block_bytes_(block_bytes), fd_(::memfd_create("fake-pool", MFD_CLOEXEC)), blocks_(blocks) {
  const uint64_t bytes = block_bytes * blocks;
  KVT_CHECK(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  KVT_CHECK(base != MAP_FAILED);
  base_ = static_cast<std::byte*>(base);
}

FakeCache::~FakeCache() { (void)::munmap(base_, block_bytes_ * blocks_.size()); }

void FakeCache::PutBelow(const BlockHash& hash, Tier tier, uint16_t tokens, std::byte fill) {
  below_[hash] = {tier, tokens, fill};
}

Result<wire::AcquireReply::Part> FakeCache::Acquire(const wire::Acquire::Part& request,
                                                    const std::optional<LoadWish>& wish) {
  const auto is_free = [](const Block& block) { return block.references == 0 && !block.hash; };
  if (std::count_if(blocks_.begin(), blocks_.end(), is_free) < request.new_blocks) {
    return MakeError(ErrorCode::kResourceExhausted, "pool_full");
  }
  wire::AcquireReply::Part reply;
  if (wish) reply.forecast.emplace();
  for (const BlockHash& hash : request.hashes) {
    const auto hit = AcquireOne(hash);
    if (!hit) break;
    reply.hits.push_back(*hit);
  }
  for (uint32_t i = 0;
       reply.hits.size() == request.hashes.size() && i < request.partial_blocks.size(); ++i) {
    const auto hit = AcquireOne(request.partial_blocks[i]);
    if (!hit) continue;
    reply.hits.push_back(*hit);
    reply.partial_block = i;
    break;
  }
  const bool all_hit =
      reply.hits.size() == request.hashes.size() + (request.partial_blocks.empty() ? 0 : 1);
  reply.miss = all_hit ? MissReason::kNone : MissReason::kUnknown;
  for (uint32_t i = 0; i < request.new_blocks; ++i) {
    const uint32_t index = *Allocate();
    blocks_[index].is_private = true;
    reply.new_blocks.push_back({BlockIndex{index}, blocks_[index].generation});
  }
  const auto loads = [](const AcquiredBlock& hit) { return hit.tier != Tier::kPool; };
  if (std::any_of(reply.hits.begin(), reply.hits.end(), loads)) {
    reply.load = LoadId{++last_load_};
    for (const AcquiredBlock& hit : reply.hits) {
      const uint32_t index = hit.handle.index.value;
      std::optional<std::byte> fill;
      if (loads(hit)) fill = below_[*blocks_[index].hash].fill;
      loads_[reply.load].emplace_back(index, fill);
    }
  }
  return reply;
}

std::optional<AcquiredBlock> FakeCache::AcquireOne(const BlockHash& hash) {
  if (const auto it = committed_.find(hash); it != committed_.end()) {
    Block& block = blocks_[it->second];
    ++block.references;
    return AcquiredBlock{{BlockIndex{it->second}, block.generation}, Tier::kPool, block.tokens};
  }
  const auto below = below_.find(hash);
  if (below == below_.end()) return std::nullopt;
  const auto index = Allocate();
  if (!index) return std::nullopt;
  Block& block = blocks_[*index];
  block.hash = hash;
  block.tokens = below->second.tokens;
  committed_[hash] = *index;
  return AcquiredBlock{{BlockIndex{*index}, block.generation}, below->second.tier, block.tokens};
}

std::optional<uint32_t> FakeCache::Allocate() {
  for (uint32_t index = 0; index < blocks_.size(); ++index) {
    Block& block = blocks_[index];
    if (block.references > 0 || block.hash) continue;
    block.references = 1;
    return index;
  }
  return std::nullopt;
}

void FakeCache::Load(LoadId load, uint32_t ready) {
  const auto& blocks = loads_[load];
  for (uint32_t i = 0; i < ready && i < blocks.size(); ++i) {
    if (!blocks[i].second) continue;
    std::memset(Bytes(blocks[i].first).data(), static_cast<int>(*blocks[i].second), block_bytes_);
  }
}

wire::CommitReply FakeCache::Commit(const wire::Commit& request) {
  wire::CommitReply reply;
  for (uint32_t position = 0; position < request.items.size(); ++position) {
    const wire::CommitItem& item = request.items[position];
    Block* block = Find(item.block);
    if (block == nullptr || !block->is_private) {
      reply.items.push_back(
          {position, wire::CommitOutcome::kFailed, ErrorCode::kStaleHandle, "stale_handle"});
    } else if (committed_.contains(item.hash)) {
      reply.items.push_back({.position = position, .outcome = wire::CommitOutcome::kDuplicate});
    } else {
      block->is_private = false;
      block->hash = item.hash;
      block->tokens = item.tokens;
      committed_[item.hash] = item.block.index.value;
    }
  }
  return reply;
}

wire::ReleaseReply FakeCache::Release(const wire::Release& request) {
  wire::ReleaseReply reply;
  for (uint32_t position = 0; position < request.blocks.size(); ++position) {
    Block* block = Find(request.blocks[position]);
    if (block == nullptr) {
      reply.errors.push_back({position, ErrorCode::kStaleHandle, "stale_handle"});
      continue;
    }
    --block->references;
    if (!block->is_private) continue;
    block->is_private = false;
    ++block->generation;
  }
  return reply;
}

ResumeOutcome FakeCache::OutcomeOf(const BlockHandle& handle) {
  const Block* const block = Find(handle);
  if (block == nullptr) return ResumeOutcome::kLost;
  return block->is_private ? ResumeOutcome::kPrivate : ResumeOutcome::kReferenced;
}

void FakeCache::Lose(uint32_t block) {
  blocks_.at(block).references = 0;
  ++blocks_.at(block).generation;
}

void FakeCache::Sink(uint32_t block) {
  Block& record = blocks_.at(block);
  KVT_CHECK(record.hash && record.references == 0);
  PutBelow(*record.hash, Tier::kHost, record.tokens, Bytes(block)[0]);
  committed_.erase(*record.hash);
  record = {.generation = record.generation + 1};
}

void FakeCache::LoseLoad() {
  for (const auto& [block, fill] : loads_[LoadId{last_load_}]) {
    if (!fill) continue;
    committed_.erase(*blocks_[block].hash);
    blocks_[block] = {.generation = blocks_[block].generation + 1};
  }
}

FakeCache::Block* FakeCache::Find(const BlockHandle& handle) {
  if (handle.index.value >= blocks_.size()) return nullptr;
  Block& block = blocks_[handle.index.value];
  const bool valid = block.generation == handle.generation && block.references > 0;
  return valid ? &block : nullptr;
}

std::span<std::byte> FakeCache::Bytes(uint32_t block) {
  return {base_ + block * block_bytes_, block_bytes_};
}

uint32_t FakeCache::references() const {
  uint32_t sum = 0;
  for (const Block& block : blocks_) sum += block.references;
  return sum;
}

}  // namespace kvtier::client
