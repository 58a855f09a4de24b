// SPDX-License-Identifier: Apache-2.0
// A file of slots in memory that can fail in every way a disk does, and that survives a crash as a
// disk does: synced data stays, other data may stay or not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/disk_faults.h"
#include "tests/fakes/fake_loop.h"
#include "tests/fakes/seeded_random.h"
#include "tiers/storage/block_file.h"

namespace kvtier {

// Reads fill their buffer with garbage at once and with the bytes when they complete. A write's
// buffer that changes before it completes is a broken promise of the caller and aborts, as do
// misaligned and out-of-bounds requests.
class FakeBlockFile final : public BlockFile {
 public:
  FakeBlockFile(FakeLoop* loop, uint64_t bytes, uint64_t seed);

  [[nodiscard]] uint64_t bytes() const override { return bytes_; }
  void SetBytes(uint64_t bytes) override { bytes_ = bytes; }
  // The file was cut there, and may have been made longer again.
  void Wipe(uint64_t from);
  [[nodiscard]] std::string_view engine() const override { return "fake"; }
  void ReadAndCheck(uint64_t offset, std::span<std::byte> buffer, IoCheck check,
                    IoDone done) override;
  void Write(uint64_t offset, std::span<const std::byte> buffer, IoDone done) override;
  void Sync(IoDone done) override;
  void RegisterMemory(std::span<std::byte>) override {}
  void UnregisterFrom(std::byte*, std::function<void()> done) override {
    loop_->Post(std::move(done));
  }

  // From now on all reads that gather before the loop turns to them complete in one event, as the
  // real engines' do when they come in a burst.
  void CompleteReadsTogether() { together_ = true; }
  // From now on writes end only when they are let go, in the order they came.
  void HoldWrites() { hold_writes_ = true; }
  void LetWritesGo(size_t most);
  // Faults drawn by seed from now on.
  void SetFaultRates(const DiskFaultRates& rates) { rates_ = rates; }
  // The next requests of their kind have these faults, one each, before any drawn by seed. kNone
  // lets one request through.
  void ScriptWrites(std::vector<WriteFault> faults);
  void ScriptReads(std::vector<ReadFault> faults);
  void FailNextSyncs(int count, std::string reason = "EIO") {
    fail_syncs_ = count;
    sync_reason_ = std::move(reason);
  }

  // The machine lost power: of every sector not synced, either the new or the synced contents stay,
  // and requests under way may have been carried out in part. The loop's events must be dropped by
  // the caller.
  void Crash();

  // The bytes at rest, for tests that damage or inspect them.
  [[nodiscard]] std::span<std::byte> contents() { return contents_.Slice(0, contents_.size()); }

  [[nodiscard]] EventSource source() const { return source_; }
  [[nodiscard]] uint64_t reads() const { return reads_; }
  [[nodiscard]] uint64_t writes() const { return writes_; }
  [[nodiscard]] uint64_t syncs() const { return syncs_; }

 private:
  using Sector = std::array<std::byte, kIoAlignment>;
  struct UnsyncedSector {
    Sector synced;                // the content on stable storage
    uint64_t synced_version = 0;  // which write made that
    uint64_t version = 0;         // which write made the present contents
  };
  struct PendingWrite {
    uint64_t offset = 0;
    // A copy, because at a crash the caller's memory may be gone already.
    std::vector<std::byte> buffer;
  };
  // A sector that a Sync call has to make durable, as it was at the call.
  struct SectorVersion {
    uint64_t sector = 0;
    uint64_t version = 0;
    Sector contents;
  };

  struct PendingRead {
    uint64_t offset = 0;
    std::span<std::byte> buffer;
    IoCheck check;
    IoDone done;
  };
  void Complete(const PendingRead& read);
  [[nodiscard]] WriteFault DrawWriteFault();
  [[nodiscard]] ReadFault DrawReadFault();
  [[nodiscard]] Status CarryOut(const PendingWrite& write, WriteFault fault);
  [[nodiscard]] Status CarryOutRead(uint64_t offset, std::span<std::byte> buffer, ReadFault fault);
  void WriteSectors(uint64_t offset, std::span<const std::byte> bytes);
  void FlipBit(std::span<std::byte> bytes);
  [[nodiscard]] uint64_t SomePrefix(uint64_t bytes);
  [[nodiscard]] std::vector<SectorVersion> UnsyncedNow();
  void MakeDurable(const std::vector<SectorVersion>& sectors);

  FakeLoop* const loop_;
  const EventSource source_;
  const AlignedBytes contents_;
  uint64_t bytes_ = contents_.size();
  SeededRandom random_;
  DiskFaultRates rates_;
  std::deque<WriteFault> scripted_writes_;
  std::deque<ReadFault> scripted_reads_;
  int fail_syncs_ = 0;
  std::string sync_reason_ = "EIO";
  bool together_ = false;
  bool hold_writes_ = false;
  std::deque<std::function<void()>> held_writes_;
  std::vector<PendingRead> gathered_;
  std::map<uint64_t, PendingWrite> pending_writes_;  // by request number
  std::map<uint64_t, UnsyncedSector> unsynced_;      // by sector number
  uint64_t next_request_ = 0;
  uint64_t next_version_ = 1;
  uint64_t reads_ = 0, writes_ = 0, syncs_ = 0;
};

}  // namespace kvtier
