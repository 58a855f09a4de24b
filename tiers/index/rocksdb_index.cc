// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/rocksdb_index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/posix.h"
#include "base/result.h"
#include "base/units.h"
#include "tiers/index/erasure_mark.h"
#include "tiers/index/index_reader.h"
#include "tiers/index/rocksdb_status.h"
#include "tiers/storage/disk_directory.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// Also bounds the log that a start has to replay, to about twice this.
constexpr size_t kWriteBufferBytes = 4 * kMiB;
constexpr size_t kBlockCacheBytes = 8 * kMiB;
constexpr size_t kTableBlockBytes = 32 * kKiB;
// Puts and deletes committed with one sync, at most: about 1.5 MiB of log.
constexpr size_t kMaxGroupChanges = 16 * 1024;
constexpr int kNever = 1 << 30;  // as a number of files
// How long a commit waits for room in memory before it fails.
constexpr int kStallRetries = 500;
constexpr std::chrono::milliseconds kStallPause{10};
constexpr size_t kReplaceBatchRecords = 4 * 1024;
// The contents of an index that could not be written are tried again after so many times the time
// that the last try took.
constexpr int kPausePerTry = 10;

// Instead of RocksDB's own log file: whatever matters comes back as a status, and the file's writer
// ends the process when it is used again after the disk was full.
class NullLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Slice AsSlice(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// No compression: keys are digests. No filters: nothing is looked up by key while serving.
rocksdb::Options MakeOptions() {
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  table.block_size = kTableBlockBytes;
  rocksdb::Options options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;
  options.paranoid_checks = true;
  options.write_buffer_size = kWriteBufferBytes;
  options.max_write_buffer_number = 3;
  options.max_total_wal_size = 2 * kWriteBufferBytes;
  options.target_file_size_base = 8 * kWriteBufferBytes;
  // No writer waits for compaction: while the disk is full there is none, and waiting has no end.
  options.level0_slowdown_writes_trigger = kNever;
  options.level0_stop_writes_trigger = kNever;
  options.soft_pending_compaction_bytes_limit = 0;
  options.hard_pending_compaction_bytes_limit = 0;
  options.max_background_jobs = 2;
  options.max_open_files = 512;
  // A log cut short by a crash loses its tail and nothing else; the slots it spoke of are unknown
  // or their headers disagree, and both are misses.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.info_log = std::make_shared<NullLogger>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.skip_stats_update_on_db_open = true;
  return options;
}

rocksdb::WriteOptions SyncedWrite() {
  rocksdb::WriteOptions options;
  options.sync = true;
  options.no_slowdown = true;
  return options;
}

IndexContents Bad(IndexState state, std::string detail) {
  return IndexContents{.state = state, .detail = std::move(detail)};
}

// Sorts failures to open: a rebuild cures some (contents), others not (error).
Result<IndexContents> ClassifyOpenFailure(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  // Said by RocksDB's POSIX environment, which has no code of its own for it.
  if (status.IsIOError() && text.find("lock ") != std::string::npos) {
    return MakeError(ErrorCode::kUnavailable, "index_locked", text);
  }
  if (std::optional<std::string> lack = LackOf(status)) {
    return MakeError(ErrorCode::kIoError, *std::move(lack), text);
  }
  if (IsForWantOfRoom(status) || status.IsMemoryLimit()) {
    return MakeError(ErrorCode::kIoError, "index_open", text);
  }
  return Bad(IndexState::kDamaged, text);
}

// Nothing if the directory can be handed to RocksDB.
Result<std::optional<IndexContents>> CheckDirectory(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory / "CURRENT", error)) {
    if (!fs::exists(directory, error) || fs::is_empty(directory, error)) {
      return Bad(IndexState::kMissing, "no index in " + directory.string());
    }
    if (!error) return Bad(IndexState::kDamaged, "no CURRENT file in " + directory.string());
  }
  if (error || ::access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    return MakeError(ErrorCode::kPermissionDenied, "index_permission",
                     "cannot read and write " + directory.string());
  }
  return std::nullopt;
}

void AddNamespace(NamespaceId namespace_id, const NamespaceIdentity& identity,
                  rocksdb::WriteBatch* out) {
  out->Put(AsSlice(EncodeNamespaceKey(namespace_id)),
           AsSlice(EncodeNamespace(namespace_id, identity)));
}

void AddRecord(const IndexRecord& record, rocksdb::WriteBatch* out) {
  const RecordKey key = EncodeRecordKey(record.key);
  out->Put(AsSlice(key), AsSlice(EncodeRecord(key, record)));
}

void AddErasure(const ErasureRecord& erasure, rocksdb::WriteBatch* out) {
  out->Put(AsSlice(EncodeErasureKey(erasure.number)), AsSlice(EncodeErasure(erasure)));
}

void AddTokens(const TokensRecord& tokens, rocksdb::WriteBatch* out) {
  const RecordKey key = EncodeTokensKey(tokens.key);
  out->Put(AsSlice(key), AsSlice(EncodeTokens(key, tokens)));
}

void AddDistrust(NamespaceId id, rocksdb::WriteBatch* out) {
  out->Put(AsSlice(EncodeDistrustKey(id)), AsSlice(EncodeDistrust(id)));
}

void AddBatch(const IndexBatch& batch, rocksdb::WriteBatch* out) {
  for (const auto& [name_space, identity] : batch.namespaces)
    AddNamespace(name_space, identity, out);
  for (const BlockKey& key : batch.deletes) out->Delete(AsSlice(EncodeRecordKey(key)));
  for (const IndexRecord& record : batch.puts) AddRecord(record, out);
  if (batch.budget) out->Put(AsSlice(kBudgetKey), AsSlice(EncodeBudget(*batch.budget)));
  for (const ErasureRecord& erasure : batch.erasures) AddErasure(erasure, out);
  for (const uint32_t number : batch.ended_erasures) out->Delete(AsSlice(EncodeErasureKey(number)));
  for (const BlockKey& key : batch.token_deletes) out->Delete(AsSlice(EncodeTokensKey(key)));
  for (const TokensRecord& tokens : batch.token_puts) AddTokens(tokens, out);
  for (const NamespaceId id : batch.trusted) out->Delete(AsSlice(EncodeDistrustKey(id)));
  for (const NamespaceId id : batch.distrusted) AddDistrust(id, out);
}

tl::unexpected<Error> ReplaceError(std::string context) {
  return MakeError(ErrorCode::kIoError, "index_replace", std::move(context));
}

Status FromReplace(const rocksdb::Status& status) {
  if (status.ok()) return {};
  return MakeError(ErrorCode::kIoError, LackOf(status).value_or("index_replace"),
                   status.ToString());
}

Status SyncDirectory(const fs::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) {
    return ReplaceError("cannot sync directory " + directory.string());
  }
  return {};
}

// Writes in the order of keys, without a log: what counts is the flush at the end.
Status Fill(rocksdb::DB* db, const IndexMeta& meta, const IndexSnapshot& snapshot) {
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  rocksdb::WriteBatch batch;
  batch.Put(AsSlice(kMetaKey), AsSlice(EncodeMeta(meta)));
  batch.Put(AsSlice(kBudgetKey), AsSlice(EncodeBudget(snapshot.budget)));
  for (const auto& [name_space, identity] : snapshot.namespaces)
    AddNamespace(name_space, identity, &batch);
  for (const ErasureRecord& erasure : snapshot.erasures) AddErasure(erasure, &batch);
  for (const TokensRecord& tokens : snapshot.tokens) AddTokens(tokens, &batch);
  for (const NamespaceId id : snapshot.distrusted) AddDistrust(id, &batch);

  std::vector<uint32_t> order(snapshot.records.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](uint32_t i) {
    const BlockKey& key = snapshot.records[i].key;
    return std::tie(key.namespace_id, key.hash);
  });
  for (const uint32_t i : order) {
    AddRecord(snapshot.records[i], &batch);
    if (batch.Count() < kReplaceBatchRecords) continue;
    KVT_RETURN_IF_ERROR(FromReplace(db->Write(unlogged, &batch)));
    batch.Clear();
  }
  KVT_RETURN_IF_ERROR(FromReplace(db->Write(unlogged, &batch)));
  // Nothing of it was logged: only the flush makes the records durable.
  rocksdb::FlushOptions flush;
  flush.allow_write_stall = true;
  return FromReplace(db->Flush(flush));
}

Status WriteFresh(const fs::path& directory, const IndexMeta& meta, const IndexSnapshot& snapshot) {
  rocksdb::Options options = MakeOptions();
  options.create_if_missing = true;
  options.error_if_exists = true;
  rocksdb::DB* opened = nullptr;
  KVT_RETURN_IF_ERROR(FromReplace(rocksdb::DB::Open(options, directory.string(), &opened)));
  const std::unique_ptr<rocksdb::DB> db(opened);
  KVT_RETURN_IF_ERROR(Fill(db.get(), meta, snapshot));
  return FromReplace(db->Close());
}

Status RemoveAll(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return {};
  return ReplaceError(fmt::format("cannot remove {}: {}", path.string(), error.message()));
}

fs::path Unfinished(const fs::path& directory) { return directory.string() + ".new"; }

}  // namespace

// The open database; used by one thread at a time.
class RocksdbIndex::Database {
 public:
  // Where the file system has no room, the database is opened for reading alone: all that it holds
  // is served, and commits fail until there is room.
  [[nodiscard]] static rocksdb::Status Open(const IndexPlace& place,
                                            std::unique_ptr<Database>* database) {
    database->reset(new Database(place));
    const rocksdb::Status status = (*database)->Reopen();
    return IsForWantOfRoom(status) ? (*database)->OpenForReading() : status;
  }

  ~Database() { Close(); }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // REQUIRES: Open succeeded and no Commit has failed since.
  [[nodiscard]] rocksdb::DB* get() { return db_.get(); }

  // The contents tell which identities are distrusted, and which erasures have begun.
  void Know(const IndexSnapshot& contents) {
    names_.insert(contents.namespaces.begin(), contents.namespaces.end());
    distrusted_.insert(contents.distrusted.begin(), contents.distrusted.end());
    for (const ErasureRecord& begun : contents.erasures) erasures_[begun.number] = begun;
  }

  // The database of a rebuilt index that could not be written, see RocksdbIndex::MakeLater.
  [[nodiscard]] static std::unique_ptr<Database> Later(const IndexPlace& place,
                                                       const IndexMeta& start,
                                                       IndexSnapshot snapshot) {
    std::unique_ptr<Database> database(new Database(place));
    database->not_begun_ = start;
    database->Know(snapshot);
    database->unwritten_ = std::move(snapshot);
    return database;
  }

  // Tells the index of this start, and then the mark: a crash between leaves an index that is newer
  // than its mark, which is good. The other way round it would look stale. Without room the first
  // commit does it.
  Status Begin(const IndexMeta& start) {
    not_begun_ = start;
    const Status begun = TryBegin();
    return begun || !may_wait_ ? begun : Status();
  }

  // Writes out the log and all files that may hold deleted token ids anew.
  Status PurgeTokens() {
    const SingleKey first{static_cast<std::byte>(IndexKeyKind::kTokens)};
    const SingleKey end{static_cast<std::byte>(static_cast<int>(IndexKeyKind::kTokens) + 1)};
    const rocksdb::Slice range[] = {AsSlice(first), AsSlice(end)};
    rocksdb::CompactRangeOptions options;
    options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
    rocksdb::Status status = db_->Flush(rocksdb::FlushOptions());
    if (status.ok()) status = db_->CompactRange(options, &range[0], &range[1]);
    if (status.ok()) return {};
    return MakeError(ErrorCode::kIoError, "index_write", status.ToString());
  }

  // After a failed write the database is in no state to be written to, not even to be flushed. The
  // next commit opens it again, which keeps all acknowledged writes.
  Status Commit(rocksdb::WriteBatch* batch) {
    if (unwritten_) KVT_RETURN_IF_ERROR(WriteContents());
    if (not_begun_) KVT_RETURN_IF_ERROR(TryBegin());
    return Write(batch);
  }

  // The batches have been committed; a rebuild after them shall know of distrust and erasures, too.
  Status Mark(std::span<const Queued> group) {
    bool same = true;
    for (const auto& [batch, done] : group) {
      for (const auto& [id, identity] : batch.namespaces) names_.insert_or_assign(id, identity);
      for (const NamespaceId id : batch.trusted) distrusted_.erase(id);
      distrusted_.insert(batch.distrusted.begin(), batch.distrusted.end());
      for (const ErasureRecord& begun : batch.erasures) erasures_[begun.number] = begun;
      for (const uint32_t number : batch.ended_erasures) erasures_.erase(number);
      same = same && batch.trusted.empty() && batch.distrusted.empty() && batch.erasures.empty() &&
             batch.ended_erasures.empty();
    }
    return same ? Status() : MarkDrives();
  }

 private:
  explicit Database(IndexPlace place) : place_(std::move(place)) {}

  rocksdb::Status Reopen() {
    Close();
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(MakeOptions(), place_.index.string(), &opened);
    db_.reset(opened);
    return status;
  }

  rocksdb::Status OpenForReading() {
    Close();
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status =
        rocksdb::DB::OpenForReadOnly(MakeOptions(), place_.index.string(), &opened);
    db_.reset(opened);
    failed_ = true;
    return status;
  }

  // All contents at once. Without room that costs as much writing as there is room for: the pause
  // until the next try is in proportion to the time that it took.
  Status WriteContents() {
    const auto begun = std::chrono::steady_clock::now();
    if (begun < write_contents_at_) return MakeError(ErrorCode::kIoError, "index_write", "no room");
    const Status written = Replace(place_, *not_begun_, *unwritten_);
    if (!written) {
      const auto now = std::chrono::steady_clock::now();
      write_contents_at_ = now + kPausePerTry * (now - begun);
      return MakeError(ErrorCode::kIoError, "index_write", written.error().context);
    }
    unwritten_.reset();
    failed_ = true;  // the next write opens it
    return {};
  }

  Status TryBegin() {
    for (const IndexedDrive& drive : place_.drives) {
      not_begun_->covers[drive.number] = not_begun_->epoch;
    }
    rocksdb::WriteBatch batch;
    batch.Put(AsSlice(kMetaKey), AsSlice(EncodeMeta(*not_begun_)));
    KVT_RETURN_IF_ERROR(Write(&batch));
    Status marked = EpochMark::Write(place_.files, not_begun_->epoch);
    for (const IndexedDrive& drive : place_.drives) {
      if (!marked) break;
      if (drive.directory != place_.files) {
        marked = EpochMark::Write(drive.directory, not_begun_->epoch);
      }
    }
    if (marked) marked = MarkDrives();
    may_wait_ = !marked;
    KVT_RETURN_IF_ERROR(marked);
    not_begun_.reset();
    return {};
  }

  // One drive that takes it is enough: one that fails does not keep others from being written to.
  Status MarkDrives() {
    std::vector<NamespaceIdentity> distrusted;
    for (const NamespaceId id : distrusted_) distrusted.push_back(names_[id]);
    std::vector<ErasureRecord> erasures;
    for (const auto& [number, begun] : erasures_) erasures.push_back(begun);
    bool any = place_.drives.empty();
    Status last;
    for (const IndexedDrive& drive : place_.drives) {
      Status marked = DistrustMark::Write(drive.directory, distrusted);
      if (marked) marked = ErasureMark::Write(drive.directory, erasures);
      any |= marked.has_value();
      if (!marked) last = std::move(marked);
    }
    return any ? Status() : last;
  }

  Status Write(rocksdb::WriteBatch* batch) {
    rocksdb::Status status = failed_ ? Reopen() : rocksdb::Status::OK();
    if (status.ok()) status = WriteNow(batch);
    failed_ = !status.ok();
    may_wait_ = IsForWantOfRoom(status);
    if (!failed_) return {};
    return MakeError(ErrorCode::kIoError, "index_write", status.ToString());
  }

  // Left to itself RocksDB would block for ever while it cannot write out what memory holds.
  rocksdb::Status WriteNow(rocksdb::WriteBatch* batch) {
    rocksdb::Status status = db_->Write(SyncedWrite(), batch);
    for (int i = 0; i < kStallRetries && status.IsIncomplete(); ++i) {
      std::this_thread::sleep_for(kStallPause);
      status = db_->Write(SyncedWrite(), batch);
    }
    return status;
  }

  void Close() {
    if (db_) db_->Close().PermitUncheckedError();
    db_.reset();
  }

  const IndexPlace place_;
  std::map<NamespaceId, NamespaceIdentity> names_;
  std::set<NamespaceId> distrusted_;
  std::map<uint32_t, ErasureRecord> erasures_;  // by number
  std::unique_ptr<rocksdb::DB> db_;             // null if it could not be opened again
  std::optional<IndexMeta> not_begun_;          // the start that the index has not been told of
  // There is nothing on disk yet but these contents of it.
  std::optional<IndexSnapshot> unwritten_;
  std::chrono::steady_clock::time_point write_contents_at_{};
  bool failed_ = false;
  bool may_wait_ = false;  // the last write failed for a reason that passes by itself
};

Result<OpenedIndex> RocksdbIndex::Open(const IndexPlace& place, const IndexMeta& start,
                                       EventQueue* loop) {
  KVT_ASSIGN_OR_RETURN(std::optional<IndexContents> bad, CheckDirectory(place.index));
  if (bad) return OpenedIndex{.contents = *std::move(bad)};
  std::unique_ptr<Database> database;
  const rocksdb::Status status = Database::Open(place, &database);
  if (!status.ok()) {
    KVT_ASSIGN_OR_RETURN(IndexContents contents, ClassifyOpenFailure(status));
    return OpenedIndex{.contents = std::move(contents)};
  }
  OpenedIndex result{.contents = ReadIndex(database->get(), place, start)};
  if (result.contents.state != IndexState::kGood) return result;

  database->Know(result.contents.snapshot);
  IndexMeta meta = start;
  meta.covers = result.contents.covers;
  if (const Status begun = database->Begin(meta); !begun) {
    return MakeError(ErrorCode::kIoError, "index_open", begun.error().context);
  }
  result.index.reset(new RocksdbIndex(std::move(database), loop));
  return result;
}

Status RocksdbIndex::Replace(const IndexPlace& place, const IndexMeta& start,
                             const IndexSnapshot& snapshot) {
  // As if last opened in the start before, and with no mark to say otherwise.
  IndexMeta meta = start;
  if (meta.epoch > 0) --meta.epoch;
  meta.covers = {};
  for (const IndexedDrive& drive : place.drives) meta.covers[drive.number] = drive.found_epoch;
  const fs::path fresh = Unfinished(place.index);
  // The fresh index is whole and durable before the old one is removed. A crash from there to the
  // rename leaves no index, which the next start rebuilds from the headers.
  KVT_RETURN_IF_ERROR(RemoveAll(fresh));
  if (const Status written = WriteFresh(fresh, meta, snapshot); !written) {
    // Others need the room that it took, if there is none left.
    (void)RemoveAll(fresh);
    return written;
  }
  KVT_RETURN_IF_ERROR(SyncDirectory(fresh));
  KVT_RETURN_IF_ERROR(Remove(place));
  std::error_code error;
  fs::rename(fresh, place.index, error);
  if (error) return ReplaceError("cannot rename " + fresh.string() + ": " + error.message());
  return SyncDirectory(fs::absolute(place.index).parent_path());
}

Status RocksdbIndex::Remove(const IndexPlace& place) {
  KVT_RETURN_IF_ERROR(RemoveAll(place.index));
  for (const IndexedDrive& drive : place.drives) {
    KVT_RETURN_IF_ERROR(EpochMark::Remove(drive.directory));
  }
  return EpochMark::Remove(place.files);
}

std::unique_ptr<RocksdbIndex> RocksdbIndex::MakeLater(const IndexPlace& place,
                                                      const IndexMeta& start,
                                                      IndexSnapshot snapshot, EventQueue* loop) {
  return std::unique_ptr<RocksdbIndex>(
      new RocksdbIndex(Database::Later(place, start, std::move(snapshot)), loop));
}

RocksdbIndex::RocksdbIndex(std::unique_ptr<Database> database, EventQueue* loop)
    : database_(std::move(database)), loop_(loop), thread_([this] { Work(); }) {
  pthread_setname_np(thread_.native_handle(), "kvt-index");
}

// Queued batches are still written: the thread ends only when its queue is empty.
RocksdbIndex::~RocksdbIndex() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void RocksdbIndex::Apply(IndexBatch batch, std::function<void(Status)> done) {
  {
    const std::lock_guard lock(mutex_);
    KVT_CHECK(!stopping_);
    queue_.push_back({std::move(batch), std::move(done)});
  }
  wake_.notify_one();
}

// All batches that wait are committed with one sync, up to a bound, and at least one is taken. An
// empty group means that the thread shall end.
std::vector<RocksdbIndex::Queued> RocksdbIndex::TakeGroup() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
  size_t count = 0;
  for (size_t changes = 0; count < queue_.size() && changes < kMaxGroupChanges; ++count) {
    changes += queue_[count].batch.puts.size() + queue_[count].batch.deletes.size();
  }
  const auto end = queue_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<Queued> group(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  return group;
}

void RocksdbIndex::Work() {
  while (true) {
    std::vector<Queued> group = TakeGroup();
    if (group.empty()) return;
    rocksdb::WriteBatch batch;
    for (const Queued& queued : group) AddBatch(queued.batch, &batch);
    Status status = database_->Commit(&batch);
    const bool purge =
        std::ranges::any_of(group, [](const Queued& queued) { return queued.batch.purge_tokens; });
    if (status) status = database_->Mark(group);
    if (status && purge) status = database_->PurgeTokens();
    // One status for all: RocksDB applies the joined batch as a whole or not at all.
    std::vector<std::function<void(Status)>> callbacks;
    callbacks.reserve(group.size());
    for (Queued& queued : group) callbacks.push_back(std::move(queued.done));
    loop_->Post([callbacks = std::move(callbacks), status] {
      for (const auto& done : callbacks) done(status);
    });
  }
}

}  // namespace kvtier
