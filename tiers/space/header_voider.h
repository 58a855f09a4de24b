// SPDX-License-Identifier: Apache-2.0
// Voids headers of slots: zeros replace them, durably, so that a rebuild of the index from the
// headers does not find the blocks again.
//
// A header that the disk refuses is tried again, alone, with a later tick. There is an end to it: a
// place on a drive may be bad for good, a drive may take nothing any more, and neither may keep a
// drain or an operator's command from ending. A slot that is given up is not used again, and those
// who wait are told, since its header is still there. On an encrypted disk it cannot be read once
// its key is gone; elsewhere a rebuild may find the block until its time to live has passed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "tiers/types/block_key.h"

namespace kvtier {

class CacheState;

// Takes back slots of the disk whose blocks are gone from the index, and hears how commits end.
// Event loop only; DiskSlots implements it.
class SlotOwner {
 public:
  // The slot may be used again.
  virtual void FreeSlot(DiskLocation location) = 0;
  // The slot must never be used again: its header is there, and the disk refuses to void it.
  virtual void KeepSlot(DiskLocation location) = 0;
  // A batch of the index is durable, with the slots that it names, or has failed.
  virtual void OnCommitted(const Status& status) = 0;
  // Calls `done` when all that was written is durable.
  virtual void Sync(std::function<void(const Status&)> done) = 0;

 protected:
  ~SlotOwner() = default;
};

// Event loop only. No callback comes after the files have been destroyed.
class HeaderVoider {
 public:
  // Both are borrowed. `owner` hears of each slot when its header is void and that is durable, or
  // when the disk has refused for good.
  HeaderVoider(CacheState* state, SlotOwner* owner);

  // A header is to be voided once the index entry of its block is gone, so that no crash leaves an
  // entry whose slot is empty. Every WhenVoided from now on waits for it, too.
  void Expect() { ++left_; }
  // The entry is gone. REQUIRES: Expect() was called for it.
  void Void(DiskLocation location) { waiting_.push_back({.location = location}); }

  // Calls `done` when no header is left to be voided: at once if none is. With an error if one was
  // given up meanwhile, or if the index refuses to forget a block.
  void WhenVoided(std::function<void(Status)> done);
  void OnIndexFailed(const Status& status);

  // Starts what can be started. True if anything was.
  bool Pump();
  // Retries refused writes: on each disk so many as may hold it up for milliseconds.
  void Tick();

  [[nodiscard]] bool Idle() const { return left_ == 0; }

 private:
  struct Header {
    DiskLocation location;
    uint32_t refusals = 0;
    bool written = false;
  };
  void OnWritten(size_t number, const Status& status);
  void Finish(const Status& synced);
  void OnRefused(Header header);
  void AnswerWaiters();

  CacheState& state_;
  SlotOwner& owner_;
  size_t left_ = 0;              // to be voided, their entries gone or not
  std::vector<Header> waiting_;  // to be written
  std::vector<Header> under_way_;
  std::vector<Header> refused_;  // until a tick
  size_t writes_left_ = 0;
  // By file: since when it has refused every header; -1 if it took the last.
  std::vector<int64_t> refusing_since_ms_;
  Status last_error_;
  // Called with an error, or with success unless a header was given up meanwhile.
  std::vector<std::function<void(Status)>> waiters_;
  AlignedBuffer zeros_;
};

}  // namespace kvtier
