// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/index_reader.h"

#include <fmt/format.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "tiers/index/index_codec.h"
#include "tiers/storage/disk_directory.h"

namespace kvtier {
namespace {

constexpr size_t kScanReadaheadBytes = 4 * kMiB;
// Reserved on the index's own word only up to here.
constexpr uint64_t kMaxReservedRecords = 8'000'000;

std::span<const std::byte> AsBytes(const rocksdb::Slice& slice) {
  return std::as_bytes(std::span(slice.data(), slice.size()));
}

// Reads the whole database in order of keys, which is: meta, budget, spaces, records, erasures,
// tokens.
// Any fault rejects the index as a whole, and its records with it: half an index would free the
// slots of the other half, and the headers can replace all of it.
class Reader {
 public:
  Reader(const IndexPlace& place, const IndexMeta& start)
      : place_(place), start_(start), mark_(EpochMark::Read(place.files)) {}

  IndexContents Read(rocksdb::DB* db) {
    uint64_t estimated_records = 0;
    db->GetIntProperty(rocksdb::DB::Properties::kEstimateNumKeys, &estimated_records);
    contents_.snapshot.records.reserve(std::min(estimated_records, kMaxReservedRecords));
    contents_.state = IndexState::kGood;

    rocksdb::ReadOptions options;
    options.readahead_size = kScanReadaheadBytes;
    options.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> entry(db->NewIterator(options));
    for (entry->SeekToFirst(); entry->Valid() && good(); entry->Next()) {
      const Status taken = Take(AsBytes(entry->key()), AsBytes(entry->value()));
      if (!taken) Reject(IndexState::kDamaged, taken.error().ToString());
    }
    if (good() && !entry->status().ok()) Reject(IndexState::kDamaged, entry->status().ToString());
    if (good() && !meta_seen_) Reject(IndexState::kDamaged, "the index does not say whose it is");
    if (!good()) contents_.snapshot = {};
    return std::move(contents_);
  }

 private:
  [[nodiscard]] bool good() const { return contents_.state == IndexState::kGood; }

  void Reject(IndexState state, std::string detail) {
    contents_.state = state;
    contents_.detail = std::move(detail);
  }

  Status Take(std::span<const std::byte> key, std::span<const std::byte> value) {
    KVT_ASSIGN_OR_RETURN(const IndexKeyKind kind, DecodeKeyKind(key));
    switch (kind) {
      case IndexKeyKind::kMeta:
        return TakeMeta(key, value);
      case IndexKeyKind::kBudget:
        return TakeBudget(key, value);
      case IndexKeyKind::kNamespace:
        return TakeTo(DecodeNamespace(key, value), &contents_.snapshot.namespaces);
      case IndexKeyKind::kRecord:
        return TakeRecord(key, value);
      case IndexKeyKind::kErasure:
        return TakeTo(DecodeErasure(key, value), &contents_.snapshot.erasures);
      case IndexKeyKind::kTokens:
        // Whether the block has a record is for the cache to find out: ids without one are of no
        // use.
        return TakeTo(DecodeTokens(key, value), &contents_.snapshot.tokens);
      case IndexKeyKind::kDistrust:
        return TakeTo(DecodeDistrust(key, value), &contents_.snapshot.distrusted);
    }
    return {};
  }

  Status TakeMeta(std::span<const std::byte> key, std::span<const std::byte> value) {
    if (key.size() != kMetaKey.size()) return MakeError(ErrorCode::kCorrupt, "index_key");
    KVT_ASSIGN_OR_RETURN(const IndexMeta meta, DecodeMeta(value));
    meta_seen_ = true;
    if (meta.file_set != start_.file_set) {
      Reject(IndexState::kOtherFiles, fmt::format("index of file set {}, the disk files are {}",
                                                  meta.file_set.Hex(), start_.file_set.Hex()));
    } else if (meta.epoch < mark_ || meta.epoch >= start_.epoch) {
      Reject(IndexState::kStaleEpoch,
             fmt::format("index last opened in start {}, the files with an index in {}, now is {}",
                         meta.epoch, mark_, start_.epoch));
    } else {
      CheckDrives(meta);
    }
    contents_.covers = meta.covers;
    return {};
  }

  // As the set's epochs tell a good index from an old one, each drive's own do: it may have been
  // away, used with another index meanwhile, replaced, or put back from an old copy.
  void CheckDrives(const IndexMeta& meta) {
    for (const IndexedDrive& drive : place_.drives) {
      const uint64_t covered = meta.covers[drive.number];
      const uint64_t mark = drive.found_epoch == 0 ? 0 : EpochMark::Read(drive.directory);
      const bool known = drive.found_epoch == 0 || covered > 0;
      if (known && mark <= covered && covered <= drive.found_epoch) continue;
      Reject(IndexState::kStaleEpoch,
             fmt::format("the index knows drive {} of start {}; it was used with an index in {}, "
                         "and last in {}",
                         drive.number, covered, mark, drive.found_epoch));
      return;
    }
  }

  Status TakeBudget(std::span<const std::byte> key, std::span<const std::byte> value) {
    if (key.size() != kBudgetKey.size()) return MakeError(ErrorCode::kCorrupt, "index_key");
    KVT_ASSIGN_OR_RETURN(contents_.snapshot.budget, DecodeBudget(value));
    return {};
  }

  // Records come by space, so that each space is looked up once.
  Status TakeRecord(std::span<const std::byte> key, std::span<const std::byte> value) {
    KVT_ASSIGN_OR_RETURN(const IndexRecord record, DecodeRecord(key, value));
    const auto& namespaces = contents_.snapshot.namespaces;
    while (namespace_id_ < namespaces.size() &&
           namespaces[namespace_id_].first < record.key.namespace_id)
      ++namespace_id_;
    if (namespace_id_ == namespaces.size() ||
        namespaces[namespace_id_].first != record.key.namespace_id) {
      return MakeError(ErrorCode::kCorrupt, "index_namespace",
                       fmt::format("record of unknown space {}", record.key.namespace_id.value));
    }
    contents_.snapshot.records.push_back(record);
    return {};
  }

  template <typename Record>
  static Status TakeTo(Result<Record> decoded, std::vector<Record>* records) {
    if (!decoded) return tl::unexpected(std::move(decoded).error());
    records->push_back(*std::move(decoded));
    return {};
  }

  const IndexPlace& place_;
  const IndexMeta start_;
  const uint64_t mark_;
  IndexContents contents_;
  bool meta_seen_ = false;
  size_t namespace_id_ = 0;  // position in the snapshot's spaces
};

}  // namespace

IndexContents ReadIndex(rocksdb::DB* db, const IndexPlace& place, const IndexMeta& start) {
  return Reader(place, start).Read(db);
}

}  // namespace kvtier
