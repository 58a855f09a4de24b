// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/index_start.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "tiers/index/encrypted_index.h"
#include "tiers/index/erasure_mark.h"
#include "tiers/index/process_lack.h"
#include "tiers/storage/parallel_reader.h"
#include "tiers/storage/slot_cipher.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// Whether a block with this header has outlived its time to live since last use, or its maximum
// age.
bool IsExpired(const SlotHeader& header, const RebuildOptions& options) {
  const auto age_ms = [&](uint32_t since_s) { return options.now_ms - int64_t{since_s} * 1000; };
  int64_t ttl_ms = options.extended_ttl_ms;
  int64_t max_age_ms = options.max_age_ms;
  const auto tenant = std::ranges::find(options.tenants, header.tenant, &TenantQuota::name);
  if (tenant != options.tenants.end()) {
    if (tenant->extended_ttl_ms > 0) ttl_ms = tenant->extended_ttl_ms;
    if (tenant->max_age_ms > 0) max_age_ms = tenant->max_age_ms;
  }
  if (age_ms(header.last_use_s) > ttl_ms) return true;
  return max_age_ms > 0 && age_ms(header.created_s) > max_age_ms;
}

// Builds the records of an index from the headers on disk, when the index is gone or not good.
class Collector final : public HeaderVisitor {
 public:
  explicit Collector(const RebuildOptions& options) : options_(options) {}

  void OnSlab(const ScannedSlab& slab) override {
    ++rebuilt_.slabs;
    if (slab.state != HeaderState::kEmpty && slab.state != HeaderState::kValid) {
      ++rebuilt_.slabs_bad;
    }
  }

  void OnSlot(const ScannedSlot& slot) override {
    switch (slot.state) {
      case HeaderState::kValid:
        return Consider(slot);
      case HeaderState::kEmpty:
        return;
      case HeaderState::kUnreadable:
        return Reject(RebuildReject::kUnreadable);
      case HeaderState::kDamaged:
        return Reject(RebuildReject::kDamaged);
      case HeaderState::kMisplaced:
        return Reject(RebuildReject::kMisplaced);
      case HeaderState::kMisfit:
        return Reject(RebuildReject::kMisfit);
      case HeaderState::kEncrypted:
        return Reject(RebuildReject::kErased);
    }
  }

  [[nodiscard]] RebuiltIndex Finish() {
    DropDuplicates();
    return std::move(rebuilt_);
  }

 private:
  void Reject(RebuildReject reject) { ++rebuilt_.rejected[static_cast<size_t>(reject)]; }

  void Consider(const ScannedSlot& slot) {
    const SlotHeader& header = slot.header;
    if (header.retention != RetentionClass::kExtended) return Reject(RebuildReject::kMemoryClass);
    if (IsExpired(header, options_)) return Reject(RebuildReject::kExpired);
    // A use later than now, after the clock was set back, would keep a block beyond its time to
    // live. Nothing is known of the payloads, which a rebuild does not read: the blocks are not
    // verified.
    const auto now_s = static_cast<uint32_t>(options_.now_ms / 1000);
    rebuilt_.snapshot.records.push_back({.key = {Intern(header), header.hash},
                                         .location = slot.location,
                                         .generation = header.generation,
                                         .depth = header.depth,
                                         .created_s = header.created_s,
                                         .last_use_s = std::min(header.last_use_s, now_s),
                                         .tokens = header.tokens,
                                         .retention = header.retention,
                                         .verified = false,
                                         .parent = header.parent});
  }

  NamespaceId Intern(const SlotHeader& header) {
    auto& namespaces = rebuilt_.snapshot.namespaces;
    const NamespaceId next(static_cast<uint32_t>(namespaces.size()));
    const auto [found, is_new] = namespace_ids_.try_emplace(
        {.tenant = header.tenant, .model = header.model, .block_bytes = header.payload_bytes},
        next);
    if (is_new) namespaces.emplace_back(next, found->first);
    return found->second;
  }

  // The latest write is kept. Times come before generations: an index that was lost before, or from
  // which every block had gone, has begun them anew, below those of headers that still lie around.
  // By sorting and not by a hash table: clients choose the hashes.
  void DropDuplicates() {
    auto& records = rebuilt_.snapshot.records;
    std::ranges::sort(records, [](const IndexRecord& a, const IndexRecord& b) {
      return std::tie(a.key.namespace_id, a.key.hash, b.last_use_s, b.generation) <
             std::tie(b.key.namespace_id, b.key.hash, a.last_use_s, a.generation);
    });
    const auto extra = std::ranges::unique(records, {}, &IndexRecord::key);
    rebuilt_.rejected[static_cast<size_t>(RebuildReject::kDuplicate)] += extra.size();
    records.erase(extra.begin(), extra.end());
  }

  const RebuildOptions options_;
  RebuiltIndex rebuilt_;
  std::map<NamespaceIdentity, NamespaceId> namespace_ids_;
};

// Headers whose keys are gone stay as they are, and the scan tells them; plain ones were not
// written by this tier.
void DecryptIfSlot(const SlotCipher& cipher, const DiskRead& read) {
  const auto page = read.into.first<kSlotHeaderBytes>();
  if (read.status && ClaimsSlot(page)) (void)cipher.DecryptHeader(page);
}

}  // namespace

RebuiltIndex RebuildIndex(const DiskGeometry& geometry, const DiskReadFunction& read,
                          const RebuildOptions& options,
                          const std::function<void(const ScanProgress&)>& on_progress) {
  Collector collector(options);
  const DiskReadFunction decrypted = [&](std::span<DiskRead> reads) {
    read(reads);
    for (const DiskRead& one : reads) DecryptIfSlot(*options.cipher, one);
  };
  ScanHeaders(geometry, options.cipher ? decrypted : read, &collector, on_progress);
  return collector.Finish();
}

namespace {

Result<RebuiltIndex> Rebuild(const DiskFiles& files, const RebuildOptions& options,
                             const std::function<void(const ScanProgress&)>& on_progress) {
  // New files hold no block: reading their headers would find nothing.
  if (files.created) return RebuiltIndex{};
  std::vector<std::filesystem::path> directories;
  for (const StartedDrive& drive : files.drives) directories.push_back(drive.directory);
  KVT_ASSIGN_OR_RETURN(const ParallelReader reader, ParallelReader::Open(directories));
  return RebuildIndex(
      files.geometry, [&](std::span<DiskRead> reads) { reader.Read(reads); }, options, on_progress);
}

// No header tells of distrust.
void AddDistrusted(const std::vector<NamespaceIdentity>& told, IndexSnapshot* snapshot) {
  auto& namespaces = snapshot->namespaces;
  std::map<NamespaceIdentity, NamespaceId> ids;
  for (const auto& [id, identity] : namespaces) ids.emplace(identity, id);
  std::set<NamespaceId> distrusted;
  for (const NamespaceIdentity& identity : told) {
    const NamespaceId next(static_cast<uint32_t>(namespaces.size()));
    const auto [known, is_new] = ids.try_emplace(identity, next);
    if (is_new) namespaces.emplace_back(next, identity);
    distrusted.insert(known->second);
  }
  snapshot->distrusted.assign(distrusted.begin(), distrusted.end());
}

// A good index whose hashes cannot be decrypted is no better than none.
Result<OpenedIndex> OpenIndex(const IndexPlace& place, const IndexMeta& start,
                              const SlotCipher* cipher, EventQueue* loop) {
  KVT_ASSIGN_OR_RETURN(OpenedIndex opened, RocksdbIndex::Open(place, start, loop));
  if (opened.contents.state != IndexState::kGood || cipher == nullptr) return opened;
  if (DecryptSnapshot(*cipher, &opened.contents.snapshot)) return opened;
  return OpenedIndex{
      .contents = {.state = IndexState::kDamaged, .detail = "the keys of its hashes are gone"}};
}

// The contents that the headers told are served, though the file system has no room for the index.
// `stored` is as the index will have it, with encrypted hashes.
Status ServeUnwritten(const IndexPlace& place, const IndexMeta& start, IndexSnapshot stored,
                      const SlotCipher* cipher, EventQueue* loop, OpenedIndex* opened) {
  opened->contents = {.state = IndexState::kGood, .snapshot = stored};
  if (cipher != nullptr && !DecryptSnapshot(*cipher, &opened->contents.snapshot)) {
    return MakeError(ErrorCode::kInternal, "index_rebuild", "its hashes cannot be decrypted");
  }
  opened->index = RocksdbIndex::MakeLater(place, start, std::move(stored), loop);
  return {};
}

// Writes the rebuilt index and opens it again, rather than using it as it is: the index that serves
// is one that has been read back. Returns why it could not be written.
Result<std::optional<Error>> ReplaceIndex(const IndexPlace& place, const IndexMeta& start,
                                          IndexSnapshot* rebuilt, const SlotCipher* cipher,
                                          EventQueue* loop, OpenedIndex* opened) {
  if (cipher != nullptr) KVT_RETURN_IF_ERROR(EncryptSnapshot(*cipher, rebuilt));
  Status replaced = RocksdbIndex::Remove(place);
  if (replaced) replaced = RocksdbIndex::Replace(place, start, *rebuilt);
  // The records are given up before others are read, so that memory holds them once.
  IndexSnapshot stored = std::exchange(*rebuilt, {});
  if (!replaced && IsLackOfProcess(replaced.error())) return tl::unexpected(replaced.error());
  if (!replaced) {
    KVT_RETURN_IF_ERROR(ServeUnwritten(place, start, std::move(stored), cipher, loop, opened));
    return std::optional(std::move(replaced).error());
  }
  stored = {};
  KVT_ASSIGN_OR_RETURN(*opened, OpenIndex(place, start, cipher, loop));
  return std::optional<Error>();
}

// An index that a start made while the drive with this one was away would only take room.
void RemoveOthers(const IndexPlace& place) {
  std::error_code ignored;
  for (const IndexedDrive& drive : place.drives) {
    if (drive.directory == place.files) continue;
    std::filesystem::remove_all(drive.directory / "index", ignored);
  }
}

}  // namespace

IndexPlace IndexPlaceFor(const std::vector<std::filesystem::path>& configured,
                         const std::vector<StartedDrive>& drives) {
  IndexPlace place;
  for (const StartedDrive& drive : drives) {
    place.drives.push_back({drive.number, drive.found_epoch, drive.directory});
  }
  std::vector<std::filesystem::path> there;
  for (const std::filesystem::path& directory : configured) {
    const auto is_it = [&](const StartedDrive& drive) { return drive.directory == directory; };
    if (std::ranges::any_of(drives, is_it)) there.push_back(directory);
  }
  std::error_code ignored;
  const auto has_index = [&](const std::filesystem::path& directory) {
    return std::filesystem::exists(directory / "index" / "CURRENT", ignored);
  };
  const auto found = std::ranges::find_if(there, has_index);
  place.files = found == there.end() ? there.front() : *found;
  place.index = place.files / "index";
  return place;
}

Result<StartedIndex> StartIndex(const std::vector<std::filesystem::path>& configured,
                                const DiskFiles& files, const RebuildOptions& options,
                                EventQueue* loop,
                                const std::function<void(const ScanProgress&)>& on_progress) {
  const IndexPlace place = IndexPlaceFor(configured, files.drives);
  const IndexMeta start{.file_set = files.set_uuid, .epoch = files.epoch};
  const SlotCipher* const cipher = options.cipher.get();
  KVT_ASSIGN_OR_RETURN(OpenedIndex opened, OpenIndex(place, start, cipher, loop));
  StartedIndex result{.found = opened.contents.state, .found_detail = opened.contents.detail};
  if (result.found != IndexState::kGood) {
    KVT_ASSIGN_OR_RETURN(result.rebuilt, Rebuild(files, options, on_progress));
    IndexSnapshot& snapshot = result.rebuilt->snapshot;
    std::vector<NamespaceIdentity> distrusted;
    for (const StartedDrive& drive : files.drives) {
      result.damaged_marks += DistrustMark::AddTo(&distrusted, drive.directory);
      result.damaged_marks += ErasureMark::AddTo(&snapshot.erasures, drive.directory);
    }
    AddDistrusted(distrusted, &snapshot);
    KVT_ASSIGN_OR_RETURN(result.unwritten,
                         ReplaceIndex(place, start, &snapshot, cipher, loop, &opened));
  }
  if (opened.index == nullptr) {
    return MakeError(ErrorCode::kInternal, "index_rebuild",
                     "the rebuilt index is not good either: " + opened.contents.detail);
  }
  RemoveOthers(place);
  result.directory = place.files;
  result.snapshot = std::move(opened.contents.snapshot);
  result.index = std::move(opened.index);
  if (options.cipher != nullptr) {
    result.index = std::make_unique<EncryptedIndex>(std::move(result.index), options.cipher,
                                                    result.snapshot, loop);
  }
  return result;
}

}  // namespace kvtier
