// SPDX-License-Identifier: Apache-2.0
// What the engines behind BlockFile have in common: requests on their way, the queue of those that
// wait, the delivery of completions, and the record of memory registered with the kernel. Internal
// to tiers/storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/units.h"
#include "tiers/storage/block_file.h"

namespace kvtier {

// No system call moves more than this; larger requests take several.
inline constexpr uint64_t kMaxTransferBytes = 1 * kGiB;

enum class IoKind : uint8_t { kRead, kWrite, kSync };

// One request on its way through an engine.
struct IoRequest {
  IoKind kind = IoKind::kSync;
  uint32_t file = 0;
  uint64_t offset = 0;
  std::byte* data = nullptr;  // never written through by kWrite
  uint64_t bytes = 0;
  IoDone done;

  // Progress, for the engine: a transfer that ends short is tried once more for its rest.
  uint64_t moved_bytes = 0;
  bool continued = false;

  // Takes in the outcome of a system call that was to move `asked` bytes: bytes moved, or a
  // negative errno. Returns true when the request has ended, with `*status` saying how.
  [[nodiscard]] bool Advance(int64_t outcome, uint64_t asked, Status* status);
  // "read of 4096 bytes at 1048576 in file 0".
  [[nodiscard]] std::string Describe() const;
};

struct IoCompletion {
  IoDone done;
  Status status;
};

// Brings completions to the event loop: one event for all that gather before it runs.
class IoCompletionQueue {
 public:
  explicit IoCompletionQueue(EventQueue* loop);
  // Any thread. Events posted stay valid after this object has gone.
  void Deliver(std::vector<IoCompletion> batch);

 private:
  struct Gathered {
    std::mutex mutex;
    std::vector<IoCompletion> completions;
  };
  EventQueue* const loop_;
  const std::shared_ptr<Gathered> gathered_ = std::make_shared<Gathered>();
};

// Serves the requests of a set of files. Submit and RegisterMemory are called on the event loop.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  virtual void Submit(IoRequest request) = 0;
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
};

// One BlockFile for each of the engine's files, all keeping it alive.
[[nodiscard]] std::vector<std::unique_ptr<BlockFile>> MakeBlockFiles(
    std::shared_ptr<IoEngine> engine, const std::vector<uint64_t>& file_bytes);

// The requests of an engine that wait for their turn, and the bound on the bytes in flight. First
// come, first served: a request that does not fit holds back the smaller ones behind it, so
// that it cannot starve. One thread at a time.
class IoQueue {
 public:
  explicit IoQueue(uint64_t depth_bytes) : depth_bytes_(depth_bytes) {}

  void Push(IoRequest request) { waiting_.push_back(std::move(request)); }

  // Whether the next request may start: within the bound, or alone.
  [[nodiscard]] bool CanTake() const {
    if (waiting_.empty()) return false;
    return bytes_under_way_ == 0 || bytes_under_way_ + waiting_.front().bytes <= depth_bytes_;
  }
  // REQUIRES: CanTake().
  [[nodiscard]] IoRequest Take() {
    IoRequest request = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_under_way_ += request.bytes;
    return request;
  }
  // A request that was taken, of this many bytes, has ended.
  void Finish(uint64_t bytes) { bytes_under_way_ -= bytes; }

  // Empties the queue.
  [[nodiscard]] std::vector<IoCompletion> CancelWaiting() {
    std::vector<IoCompletion> cancelled;
    for (IoRequest& request : waiting_) {
      cancelled.push_back({std::move(request.done),
                           MakeError(ErrorCode::kCancelled, "closed", request.Describe())});
    }
    waiting_.clear();
    return cancelled;
  }

  [[nodiscard]] uint64_t bytes_under_way() const { return bytes_under_way_; }

 private:
  const uint64_t depth_bytes_;
  std::deque<IoRequest> waiting_;
  uint64_t bytes_under_way_ = 0;
};

// The kernel's bound on one registered buffer.
inline constexpr uint64_t kMaxRegisteredBytes = 1 * kGiB;
// The table's size: 2 TiB of arena in full entries.
inline constexpr int kMaxRegisteredEntries = 2048;

inline constexpr int kNotRegistered = -1;

// Which memory the ring knows, and under which numbers. Used by one thread.
class RegisteredMemory {
 public:
  struct Entry {
    std::span<std::byte> memory;
    int number = 0;
  };

  // Cuts `memory` into new entries, leaving out what is registered already. Numbers are given once
  // and never come back.
  [[nodiscard]] std::vector<Entry> Plan(std::span<std::byte> memory);
  // The entry is known to the kernel from now on.
  void Add(const Entry& entry);
  // The number of the entry that holds all of [data, data + bytes), or kNotRegistered.
  [[nodiscard]] int Find(const std::byte* data, uint64_t bytes) const;

 private:
  int next_number_ = 0;
  std::vector<Entry> entries_;  // by address
};

}  // namespace kvtier
