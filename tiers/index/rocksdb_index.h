// SPDX-License-Identifier: Apache-2.0
// The persistent index on RocksDB, in a directory of its own beside (or away from) the disk files.
//
// The index is a cache of the slot headers. Whenever its truth is in doubt it is not repaired but
// built anew from them: see index_start.h.
//
// Epochs tell a good index from an old backup. The disk files count their starts: this one is E.
// The index says in which start it was last opened, I, and so does a mark beside the files, M
// (epoch_mark.h). Open() takes an index with M <= I < E, durably makes I = E and then M = E, before
// any slot is written. A crash between the steps leaves them in order. An index older than the
// files has I < M, files older than the index have E <= I; either is stale.
//
// Each of several drives has a mark and an epoch of its own, since it may be away in some starts:
// the index says of each in which start it last had it, and the same order must hold. A drive of
// which it knows nothing must be new. Records on drives that are away stay.
#pragma once

#include <array>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/enum_names.h"
#include "base/executor.h"
#include "base/result.h"
#include "tiers/index/index.h"
#include "tiers/index/index_codec.h"
#include "tiers/storage/superblock.h"

namespace kvtier {

// The state in which an index was found.
#define KVT_INDEX_STATES(X)                                                                \
  X(kGood, "good", "it is used as it is")                                                  \
  X(kMissing, "missing", "there is none")                                                  \
  X(kDamaged, "damaged", "something in it does not hold: checksums, structure, version")   \
  X(kStaleEpoch, "stale_epoch", "the files were used without it, or it without the files") \
  X(kOtherFiles, "other_files", "it describes another file set")
KVT_NAMED_ENUM(IndexState, KVT_INDEX_STATES)

// The contents of an index, or why it must be rebuilt.
struct IndexContents {
  IndexState state = IndexState::kMissing;
  std::string detail;                         // for a person; empty if good
  IndexSnapshot snapshot;                     // empty unless good
  std::array<uint64_t, kMaxDrives> covers{};  // see IndexMeta
};

// A drive that a start has.
struct IndexedDrive {
  uint32_t number = 0;
  uint64_t found_epoch = 0;  // of its last start; 0: there was nothing on it
  std::filesystem::path directory;
};

// Where an index and the files it speaks of are.
struct IndexPlace {
  std::filesystem::path index;            // a directory of the index's own
  std::filesystem::path files;            // the directory of the disk file beside it
  std::vector<IndexedDrive> drives = {};  // all drives that the start has
};

class RocksdbIndex;

struct OpenedIndex {
  IndexContents contents;
  std::unique_ptr<RocksdbIndex> index;  // null unless good
};

// Apply() may be called on the event loop's thread only. One thread of the index's own writes
// queued batches, many at a time with one sync.
class RocksdbIndex final : public Index {
 public:
  // Blocks while everything is read and checked. `start` comes from the disk files: their set and
  // the epoch that they have just begun. `loop` is borrowed and outlives the index. A bad index is
  // left for Replace. Errors, none of which a rebuild would cure: kPermissionDenied
  // "index_permission", kUnavailable "index_locked", kIoError "index_open" (no space) and
  // "epoch_mark".
  [[nodiscard]] static Result<OpenedIndex> Open(const IndexPlace& place, const IndexMeta& start,
                                                EventQueue* loop);

  // Makes `place` an index of exactly `snapshot`, good for Open with `start` or a later one: writes
  // it durably beside, then puts it in the old index's place. A crash on the way leaves the old
  // index, the new one, or none (which is rebuilt again). REQUIRES: no process has the index open.
  // Errors: kIoError "index_replace", "epoch_mark".
  [[nodiscard]] static Status Replace(const IndexPlace& place, const IndexMeta& start,
                                      const IndexSnapshot& snapshot);

  // Removes an index that is not good, which takes room from the one that replaces it. REQUIRES and
  // errors: as Replace.
  [[nodiscard]] static Status Remove(const IndexPlace& place);

  // An index of `snapshot` at a place where there is none and Replace has failed, for want of room
  // for one. Batches fail until there is room: each tries, now and then, to write the whole index
  // first, and so does an empty one. `loop` as for Open.
  [[nodiscard]] static std::unique_ptr<RocksdbIndex> MakeLater(const IndexPlace& place,
                                                               const IndexMeta& start,
                                                               IndexSnapshot snapshot,
                                                               EventQueue* loop);

  // Writes queued batches and joins; the `done`s are still posted.
  ~RocksdbIndex() override;
  RocksdbIndex(const RocksdbIndex&) = delete;
  RocksdbIndex& operator=(const RocksdbIndex&) = delete;

  void Apply(IndexBatch batch, std::function<void(Status)> done) override;

 private:
  class Database;
  struct Queued {
    IndexBatch batch;
    std::function<void(Status)> done;
  };

  RocksdbIndex(std::unique_ptr<Database> database, EventQueue* loop);
  void Work();
  // The next batches to commit together; empty when stopping and nothing is left.
  [[nodiscard]] std::vector<Queued> TakeGroup();

  const std::unique_ptr<Database> database_;
  EventQueue* const loop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Queued> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvtier
