// SPDX-License-Identifier: Apache-2.0
// A daemon's memory of blocks, in the simplest form that the client can be tested against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/posix.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Not thread-safe.
class FakeCache {
 public:
  FakeCache(uint64_t block_bytes, uint32_t blocks);
  ~FakeCache();
  FakeCache(const FakeCache&) = delete;
  FakeCache& operator=(const FakeCache&) = delete;

  // A block that is committed but below the pool: an acquire of it starts a load.
  void PutBelow(const BlockHash& hash, Tier tier, uint16_t tokens, std::byte fill);

  // Acquires blocks of one group. Answers with an ERROR "pool_full" if the private blocks cannot be
  // had.
  [[nodiscard]] Result<wire::AcquireReply::Part> Acquire(
      const wire::Acquire::Part& request, const std::optional<LoadWish>& wish = std::nullopt);
  // Fills the blocks of a load up to `ready` with their bytes.
  void Load(LoadId load, uint32_t ready);
  [[nodiscard]] wire::CommitReply Commit(const wire::Commit& request);
  [[nodiscard]] wire::ReleaseReply Release(const wire::Release& request);

  [[nodiscard]] ResumeOutcome OutcomeOf(const BlockHandle& block);
  // The client does not hold the block any more.
  void Lose(uint32_t block);
  // A committed block that is not held is below the pool from now on.
  void Sink(uint32_t block);
  // The blocks that the last load was to bring are lost with it.
  void LoseLoad();

  [[nodiscard]] uint64_t block_bytes() const { return block_bytes_; }
  [[nodiscard]] uint32_t blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool Holds(const BlockHash& hash) const { return committed_.contains(hash); }
  [[nodiscard]] std::span<std::byte> Bytes(uint32_t block);
  // Over all blocks, private ones counting one.
  [[nodiscard]] uint32_t references() const;

 private:
  struct Block {
    uint32_t generation = 1;
    uint32_t references = 0;
    bool is_private = false;
    uint16_t tokens = 0;
    std::optional<BlockHash> hash;
  };
  struct Below {
    Tier tier = Tier::kHost;
    uint16_t tokens = 0;
    std::byte fill{};
  };

  [[nodiscard]] std::optional<AcquiredBlock> AcquireOne(const BlockHash& hash);
  [[nodiscard]] std::optional<uint32_t> Allocate();
  [[nodiscard]] Block* Find(const BlockHandle& handle);

  const uint64_t block_bytes_;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::vector<Block> blocks_;
  std::map<BlockHash, uint32_t> committed_;
  std::map<BlockHash, Below> below_;
  // By load, the block of each hit and the byte that is to fill it.
  std::map<LoadId, std::vector<std::pair<uint32_t, std::optional<std::byte>>>> loads_;
  uint64_t last_load_ = 0;
};

}  // namespace kvtier::client
