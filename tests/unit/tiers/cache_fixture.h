// SPDX-License-Identifier: Apache-2.0
// A cache over fake devices, with the verbs that its tests speak in.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/fake_machine.h"
#include "tiers/cache.h"

namespace kvtier {

using Hashes = std::vector<BlockHash>;
using Handles = std::vector<BlockHandle>;

// Sizes in blocks of the fixture's first model, so that tests can count.
struct CacheSetup {
  uint32_t devices = 1;
  bool neighbours = false;    // each can read the pools of the others
  uint32_t pool_blocks = 16;  // on each device
  uint32_t host_slots = 16;   // a multiple of CacheTest::kSlotsPerSlab
  uint32_t host_slots_ready = UINT32_MAX;
  bool keep_host = false;    // host memory stays when the process dies
  bool keep_pools = false;   // and so do pools
  uint32_t disk_slots = 32;  // as host_slots; 0: no disk tier
  uint32_t disk_files = 1;
  CacheOptions options = Options();
  Tracer* tracer = nullptr;
  BlockEventSink* events = nullptr;

  // A quarter of pool and host kept clean, the disk filled to the last slot, no writes but those
  // that demotion or a drain asks for.
  [[nodiscard]] static CacheOptions Options();
};

// An acquire whose answer may not have come yet. Copies share it.
struct PendingAcquire {
  std::shared_ptr<std::optional<Result<AcquireReply>>> answer =
      std::make_shared<std::optional<Result<AcquireReply>>>();

  [[nodiscard]] bool answered() const { return answer->has_value(); }
  [[nodiscard]] bool succeeded() const { return answered() && (*answer)->has_value(); }
  // REQUIRES: answered(), succeeded().
  [[nodiscard]] const Result<AcquireReply>& result() const { return answer->value(); }
  [[nodiscard]] const AcquireReply& reply() const { return result().value(); }
};

class CacheTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBlockBytes = 4 * kKiB;
  static constexpr uint16_t kBlockTokens = 16;
  static constexpr uint32_t kSlotsPerSlab = 8;
  // Eight slots (header and payload) and the disk's slab header.
  static constexpr uint64_t kSlabBytes = kSlotsPerSlab * 2 * kBlockBytes + 4 * kKiB;
  static constexpr SessionId kAlice{1};
  static constexpr SessionId kBob{2};

  ~CacheTest() override;

  // Makes machine and cache, opens both sessions, attaches the pool.
  void Start(const CacheSetup& setup = {});
  // From now on all verbs speak of this device's pool.
  void UseDevice(uint32_t device);
  // The process dies without warning and starts again; the index's blocks are served.
  void CrashAndRestart();
  // The process dies and starts again, and host memory has been kept meanwhile. Its blocks have
  // been checked when this returns.
  void DieAndAdopt();
  // As CrashAndRestart, after a Drain that ran to its end.
  void DrainAndRestart();
  // As CrashAndRestart, but the index is lost and rebuilt from the headers on disk.
  void LoseIndexAndRestart();

  // Runs every event, then checks the invariants.
  void Settle();
  void AdvanceAndTick(int64_t ms);

  // --- calls, each with the outcome that tests nearly always expect ---
  // Expects an answer without the clock moving.
  Result<AcquireReply> TryAcquire(SessionId session, Hashes hashes, uint32_t new_blocks = 0,
                                  Hashes partial_blocks = {});
  // Expects success and, at its end, finished loads.
  AcquireReply Acquire(SessionId session, Hashes hashes, uint32_t new_blocks = 0,
                       Hashes partial_blocks = {});
  PendingAcquire BeginAcquire(SessionId session, Hashes hashes, uint32_t new_blocks = 0);
  // The same with a counter and, unless `layers` is 0, layer by layer.
  PendingAcquire BeginCounted(SessionId session, Hashes hashes, uint32_t layers = 0);
  // Fills the private block with the hash's bytes and commits it.
  Result<CommitReply> TryCommit(SessionId session, BlockHandle block, const CommitRequest& request);
  void Commit(SessionId session, BlockHandle block, const BlockHash& hash, uint32_t depth = 0,
              RetentionClass retention = RetentionClass::kExtended);
  void Release(SessionId session, const Handles& blocks);
  // The error of releasing one block, if any.
  std::optional<Error> TryRelease(SessionId session, BlockHandle block);

  // Acquires the missing blocks of `hashes`, commits them; the session then references all of them.
  Handles Store(SessionId session, const Hashes& hashes,
                RetentionClass retention = RetentionClass::kExtended);
  // The same, then releases deepest first and settles.
  void Put(const Hashes& hashes, RetentionClass retention = RetentionClass::kExtended);
  // Acquires (expecting a hit of all), releases, settles.
  void Use(const Hashes& hashes);
  // Fills the pool with blocks that no test asks for again, so that all others leave it. Clean
  // blocks sink; expects that to be possible.
  void EvictFromPool();
  void Drain();

  // The tiers in which the hits of a reply were found.
  [[nodiscard]] static std::vector<Tier> TiersOf(const AcquireReply& reply);
  [[nodiscard]] static Handles HandlesOf(const AcquireReply& reply);

  // --- looking ---
  [[nodiscard]] BlockPresence Presence(const BlockHash& hash) const;
  [[nodiscard]] std::span<std::byte> Bytes(BlockHandle block) const;
  [[nodiscard]] const LoadProgress& LastProgress(LoadId load) const;
  // A client's reading of the counter: the steps done, more than there are when the load has ended.
  [[nodiscard]] uint32_t Counted(const AcquireReply& reply) const;
  [[nodiscard]] uint64_t Drops(Tier tier, DropReason reason) const;
  [[nodiscard]] uint64_t Misses(MissReason reason) const;
  [[nodiscard]] PoolGauges PoolGaugesNow() const;
  [[nodiscard]] FakeBlockFile& file(size_t i = 0) { return *machine_->files[i]; }

  // Blocks 0 to count-1 of sequence `stream`.
  [[nodiscard]] static Hashes Sequence(uint64_t stream, uint32_t count);
  [[nodiscard]] static NamespaceIdentity Identity(const std::string& tenant, uint8_t model,
                                                  uint64_t block_bytes = kBlockBytes);

  CacheSetup setup_;
  std::function<bool(PoolId)> pool_read_;  // see CacheOwner
  // May put its own between the machine and the next cache, and see what that begins with.
  std::function<void(CacheEnvironment*, IndexSnapshot*)> change_environment_;
  std::unique_ptr<FakeMachine> machine_;
  std::unique_ptr<Cache> cache_;
  uint32_t device_ = 0;
  PoolInfo pool_;  // on that device
  // Every report, in the order received.
  std::vector<LoadProgress> progress_;
  std::map<LoadId, SessionId> session_of_load_;  // that was told of it
  std::shared_ptr<CounterPage> counters_ = CounterPage::Create().value();

 private:
  void StartCache(IndexSnapshot snapshot);
};

MATCHER_P2(IsErrorOf, code, reason, "") {
  return !arg.has_value() && arg.error().code == code && arg.error().reason == reason;
}

}  // namespace kvtier
