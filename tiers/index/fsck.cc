// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/fsck.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tiers/index/index_start.h"
#include "tiers/storage/offline_disk.h"
#include "tiers/storage/parallel_reader.h"

namespace kvtier {
namespace {

// All findings are counted, but only the first of each kind are kept: a damaged set may have
// millions, and the report is held in memory.
void AddFinding(FsckFault fault, std::string detail, FsckReport* report) {
  uint64_t& count = report->faults[static_cast<size_t>(fault)];
  if (count++ < FsckReport::kMaxFindingsPerFault) {
    report->findings.push_back({fault, std::move(detail)});
  }
}

// Walks the headers beside the index's records, both in the order of addresses.
class IndexComparison final : public HeaderVisitor {
 public:
  IndexComparison(const FsckOptions& options, const OfflineDisk& disk, IndexSnapshot index,
                  FsckReport* report)
      : options_(options), disk_(disk), records_(std::move(index.records)), report_(*report) {
    for (auto& [id, identity] : index.namespaces) namespaces_.emplace(id, std::move(identity));
    std::erase_if(records_, [&](const IndexRecord& record) {
      return (disk.drives_away >> disk.geometry.DriveOf(record.location) & 1) != 0;
    });
    std::ranges::sort(records_, {}, &IndexRecord::location);
    report_.entries = records_.size();
  }

  void OnSlab(const ScannedSlab& slab) override {
    if (slab.state == HeaderState::kEmpty) ++report_.slabs_uncut;
    if (slab.state == HeaderState::kEmpty || slab.state == HeaderState::kValid) return;
    AddFinding(FsckFault::kSlabHeader,
               fmt::format("slab {}, {}: header {}", slab.slab,
                           Where(disk_.geometry.SlabStart(slab.slab)), HeaderStateName(slab.state)),
               &report_);
  }

  // Slots come in the order of addresses, like the records, so that one pass over both finds
  // records without a slot, slots without a record, and several records of one slot.
  void OnSlot(const ScannedSlot& slot) override {
    ++report_.slots;
    if (slot.state == HeaderState::kEmpty) ++report_.slots_empty;
    const bool valid = IsBlock(slot);
    const bool expired = valid && IsExpired(slot.header, options_.rebuild);
    if (valid) ++report_.blocks;
    if (expired) ++report_.blocks_expired;

    PassEntriesBefore(slot.location);
    if (next_ == records_.size() || records_[next_].location != slot.location) {
      if (!expired) CheckUnnamedSlot(slot);
      return;
    }
    CheckEntry(records_[next_++], slot);
    for (; next_ < records_.size() && records_[next_].location == slot.location; ++next_) {
      AddFinding(FsckFault::kEntryCollision, Describe(records_[next_]), &report_);
    }
  }

  void Finish() { PassEntriesBefore(DiskLocation{}); }

  // The expected contents of the good entries' slots; empty unless payloads are to be verified.
  [[nodiscard]] std::vector<PayloadToCheck> TakePayloads() { return std::move(payloads_); }

 private:
  [[nodiscard]] bool IsBlock(const ScannedSlot& slot) const {
    return slot.state == (disk_.encrypted ? HeaderState::kEncrypted : HeaderState::kValid);
  }

  [[nodiscard]] std::string Where(DiskLocation location) const {
    return fmt::format("file {} at {}", disk_.geometry.FileOf(location),
                       disk_.geometry.OffsetInFile(location));
  }

  [[nodiscard]] std::string Describe(const IndexRecord& record) const {
    return fmt::format("block {}, {}", record.key.hash.Hex(),
                       disk_.geometry.Contains(record.location)
                           ? Where(record.location)
                           : fmt::format("beyond the files at {}", record.location.offset));
  }

  // Records before `location` that no slot matched: they point between the slots of their slab,
  // into a slab without a valid header, or beyond the files.
  void PassEntriesBefore(DiskLocation location) {
    for (; next_ < records_.size() && records_[next_].location < location; ++next_) {
      AddFinding(FsckFault::kEntryOutOfPlace, Describe(records_[next_]), &report_);
    }
  }

  // If the index cannot be used, no record names any slot; reporting each one would say nothing
  // new.
  void CheckUnnamedSlot(const ScannedSlot& slot) {
    if (slot.state == HeaderState::kEmpty) return;
    if (!IsBlock(slot)) {
      AddFinding(FsckFault::kSlotDamaged,
                 fmt::format("{}: header {}", Where(slot.location), HeaderStateName(slot.state)),
                 &report_);
    } else if (report_.index_state == IndexState::kGood) {
      AddFinding(FsckFault::kOrphanSlot,
                 fmt::format("block {}, {}", slot.header.hash.Hex(), Where(slot.location)),
                 &report_);
    }
  }

  void CheckEntry(const IndexRecord& record, const ScannedSlot& slot) {
    if (!IsBlock(slot)) {
      AddFinding(FsckFault::kEntryMissing,
                 fmt::format("{}: header {}", Describe(record), HeaderStateName(slot.state)),
                 &report_);
      return;
    }
    const SlotHeader& header = slot.header;
    const NamespaceIdentity found{header.tenant, header.model, header.payload_bytes};
    const bool other_hash = !disk_.encrypted && header.hash != record.key.hash;
    if (other_hash || found != namespaces_[record.key.namespace_id]) {
      AddFinding(FsckFault::kEntryMismatch,
                 fmt::format("{}: holds block {} of tenant {}", Describe(record), header.hash.Hex(),
                             header.tenant),
                 &report_);
    } else if (header.generation != record.generation) {
      AddFinding(FsckFault::kEntryStale,
                 fmt::format("{}: index has write {}, slot {}", Describe(record), record.generation,
                             header.generation),
                 &report_);
    } else {
      ++report_.entries_good;
      if (options_.verify_payloads && !disk_.encrypted) {
        payloads_.push_back({slot.location, header.payload_bytes, header.payload_checksum});
      }
    }
  }

  const FsckOptions& options_;
  const OfflineDisk& disk_;
  std::vector<IndexRecord> records_;
  std::map<NamespaceId, NamespaceIdentity> namespaces_;
  size_t next_ = 0;  // in records_
  std::vector<PayloadToCheck> payloads_;
  FsckReport& report_;
};

IndexPlace PlaceOf(const FsckOptions& options, const OfflineDisk& disk) {
  return IndexPlaceFor(options.directories, disk.drives);
}

// An index that cannot be used is one finding; the headers are scanned all the same, because they
// are what a rebuild would have to work with. Payloads come last, since only those of good entries
// are worth reading.
Status Check(const FsckOptions& options, const OfflineDisk& disk, const IndexMeta& next_start,
             const DiskReadFunction& read, FsckReport* report) {
  KVT_ASSIGN_OR_RETURN(IndexContents index, RocksdbIndex::Read(PlaceOf(options, disk), next_start));
  report->index_state = index.state;
  if (index.state != IndexState::kGood) {
    AddFinding(FsckFault::kIndexUnusable,
               fmt::format("{}: {}", IndexStateName(index.state), index.detail), report);
  }
  IndexComparison comparison(options, disk, std::move(index.snapshot), report);
  ScanHeaders(disk.geometry, read, &comparison, options.on_progress);
  comparison.Finish();
  CheckPayloads(disk.geometry, read, comparison.TakePayloads(),
                [&](const PayloadToCheck& payload, const Status& status) {
                  ++report->payloads_checked;
                  report->payload_bytes_checked += payload.payload_bytes;
                  if (status) return;
                  AddFinding(FsckFault::kPayloadCorrupt, status.error().ToString(), report);
                });
  return {};
}

// Runs after the check: the report names the faults from before the index was replaced.
Status Rebuild(const FsckOptions& options, const OfflineDisk& disk, const IndexMeta& next_start,
               const DiskReadFunction& read, FsckReport* report) {
  RebuiltIndex rebuilt = RebuildIndex(disk.geometry, read, options.rebuild, options.on_progress);
  KVT_RETURN_IF_ERROR(RocksdbIndex::Replace(PlaceOf(options, disk), next_start, rebuilt.snapshot));
  rebuilt.snapshot = {};
  report->rebuilt = std::move(rebuilt);
  return {};
}

}  // namespace

// These slots are named by no record: a start with a good index serves nothing from them and writes
// over them.
bool IsHarmless(FsckFault fault) {
  return fault == FsckFault::kOrphanSlot || fault == FsckFault::kSlotDamaged;
}

bool FsckReport::clean() const {
  for (int i = 0; i < kFsckFaultCount; ++i) {
    const auto fault = static_cast<FsckFault>(i);
    if (!IsHarmless(fault) && count(fault) > 0) return false;
  }
  return true;
}

Result<FsckReport> RunFsck(const FsckOptions& options) {
  KVT_ASSIGN_OR_RETURN(const OfflineDisk disk, OpenOfflineDisk(options.directories));
  FsckReport report{.set_uuid = disk.set_uuid,
                    .epoch = disk.epoch,
                    .encrypted = disk.encrypted,
                    .geometry = disk.geometry};
  for (const std::string& fault : disk.faults) AddFinding(FsckFault::kSuperblock, fault, &report);
  if (!disk.usable()) {
    if (!options.rebuild_index) return report;
    return MakeError(ErrorCode::kCorrupt, "no_superblock",
                     "the superblocks do not tell how the files are laid out: " +
                         (disk.faults.empty() ? std::string() : disk.faults.front()));
  }
  if (disk.encrypted && options.rebuild_index) {
    return MakeError(ErrorCode::kUnsupported, "encrypted",
                     "only a daemon has the keys; it rebuilds the index at its start if it must");
  }
  KVT_ASSIGN_OR_RETURN(const ParallelReader reader, ParallelReader::Open(disk.directories()));
  const DiskReadFunction read = [&](std::span<DiskRead> reads) { reader.Read(reads); };
  // The check takes the place of the daemon's next start, for which the index has to be good.
  const IndexMeta next_start{.file_set = disk.set_uuid, .epoch = disk.epoch + 1};
  KVT_RETURN_IF_ERROR(Check(options, disk, next_start, read, &report));
  if (options.rebuild_index) {
    KVT_RETURN_IF_ERROR(Rebuild(options, disk, next_start, read, &report));
  }
  return report;
}

}  // namespace kvtier
