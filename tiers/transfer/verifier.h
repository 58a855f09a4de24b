// SPDX-License-Identifier: Apache-2.0
// Reads blocks back from disk, and from the cold store, and checks them, beside the normal traffic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/bytes.h"
#include "base/gate.h"
#include "tiers/cold/cold_object.h"
#include "tiers/space/disk_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/storage/slot_header.h"
#include "tiers/transfer/cold_deletions.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// Event loop only.
class Verifier {
 public:
  Verifier(CacheState* state, DiskSlots* disk) : state_(*state), disk_(*disk) {}

  // See Cache::VerifyStep.
  void Step(uint64_t cursor, uint32_t max_blocks, std::function<void(VerifyResult)> done);
  [[nodiscard]] bool Idle() const { return steps_ == 0; }

 private:
  struct StepState {
    VerifyResult result;
    uint32_t left = 0;
    std::function<void(VerifyResult)> done;
  };
  struct Read {
    EntryIndex entry;
    SlotExpectation expected;
    AlignedBuffer buffer;
    SlotVerdict verdict = SlotVerdict::kGood;
    bool again = false;
    std::shared_ptr<StepState> step;
  };
  using ReadPointer = std::shared_ptr<Read>;

  void StartRead(EntryIndex entry, const std::shared_ptr<StepState>& step);
  void Issue(const ReadPointer& read);
  void OnRead(const ReadPointer& read, const Status& status);
  void OnFailed(const ReadPointer& read, const Status& status);
  void Finish(const ReadPointer& read, const Status& status);

  CacheState& state_;
  DiskSlots& disk_;
  uint64_t steps_ = 0;
};

// Event loop only. Used only if there is a cold store.
class ColdVerifier {
 public:
  // Both are borrowed.
  ColdVerifier(CacheState* state, ColdDeletions* deletions)
      : state_(*state), deletions_(*deletions) {}

  // See Cache::VerifyStep.
  void Step(uint64_t cursor, uint32_t max_blocks, std::function<void(VerifyResult)> done);

 private:
  struct StepState {
    VerifyResult result;
    uint32_t left = 0;
    std::function<void(VerifyResult)> done;
    // The block that is being read.
    BlockKey key;
    SlotExpectation expected;
    ColdVerdict verdict;
  };
  using StepPointer = std::shared_ptr<StepState>;

  // One block after the other: the store's answers are for acquires first.
  void Next(const StepPointer& step);
  void Read(EntryIndex entry, const StepPointer& step);
  void OnGot(const StepPointer& step, const Result<ColdBytes>& got);
  void Judge(const StepPointer& step, bool good);

  CacheState& state_;
  ColdDeletions& deletions_;
  Gate gate_;
};

}  // namespace kvtier
