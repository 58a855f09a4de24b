// Back up to the pool: disk -> host (read, checked) -> pool, in the order asked for.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "tiers/cache_state.h"
#include "tiers/disk_slots.h"
#include "tiers/host_slots.h"
#include "tiers/lane_queues.h"
#include "tiers/load_table.h"
#include "tiers/slot_check.h"

namespace kvtier {

// Event loop only.
class Loader {
 public:
  Loader(CacheState* state, HostSlots* host, DiskSlots* disk, LoadTable* loads);

  // Brings the block into its pool block. REQUIRES: it is in host or on disk, and has just been
  // given a pool block that awaits it (motion.loading is set here).
  void Start(EntryIndex entry);
  // Takes its place in host's order; once for each block started, deepest first. Does nothing for a
  // block that is not being loaded.
  void FreshenLoading(EntryIndex entry);
  // A block that will be loaded soon: young in host, if it is there.
  void FreshenBelow(EntryIndex entry);
  // Starts what can be started. True if anything was.
  bool Pump();
  // Gives up reads that have waited too long for a host slot.
  void Tick();

  [[nodiscard]] bool Idle() const {
    return read_queues_.empty() && copy_queue_.empty() && read_bytes_ == 0 && copy_bytes_ == 0;
  }
  [[nodiscard]] uint64_t reads_in_flight() const { return reads_in_flight_; }
  [[nodiscard]] uint64_t in_flight() const { return loading_; }
  [[nodiscard]] uint64_t reads_queued() const { return read_queues_.size(); }
  [[nodiscard]] uint64_t copies_queued() const { return copy_queue_.size(); }

 private:
  struct QueuedRead {
    EntryIndex entry;
    int64_t since_ms = 0;
  };
  // One block on its way from disk.
  struct Read {
    EntryIndex entry;
    int attempt = 1;
    SlotExpectation expected;
    std::span<std::byte> slot;
    SlotVerdict verdict = SlotVerdict::kGood;
  };
  struct CopyBatch {
    CachePool* pool = nullptr;
    std::vector<EntryIndex> entries;
    uint64_t bytes = 0;
  };

  bool PumpReads();
  // One step of a line of reads; false if its first has to wait.
  [[nodiscard]] bool TryRead(std::deque<QueuedRead>* line);
  void StartRead(EntryIndex entry);
  void IssueRead(const std::shared_ptr<Read>& read);
  void OnRead(const std::shared_ptr<Read>& read, const Status& status);
  void OnChecked(const std::shared_ptr<Read>& read);
  void ReadFailed(const std::shared_ptr<Read>& read, MissReason miss, DropReason drop);
  void EndRead(const Read& read);

  void QueueCopy(EntryIndex entry);
  bool PumpCopies();
  [[nodiscard]] std::shared_ptr<CopyBatch> NextCopyBatch();
  void OnCopied(const std::shared_ptr<CopyBatch>& batch, const Status& status);
  void Arrived(CachePool* pool, EntryIndex entry);

  // Nobody waits for the block any more.
  [[nodiscard]] bool Abandoned(const BlockEntry& entry);
  void Fail(EntryIndex entry, MissReason reason);
  void StopLoading(EntryIndex entry);

  CacheState& state_;
  HostSlots& host_;
  DiskSlots& disk_;
  LoadTable& loads_;
  LaneQueues<QueuedRead> read_queues_;
  std::deque<EntryIndex> copy_queue_;  // each pins its host slot
  uint64_t read_bytes_ = 0;
  uint64_t reads_in_flight_ = 0;
  uint64_t copy_bytes_ = 0;
  uint64_t loading_ = 0;
};

}  // namespace kvtier
