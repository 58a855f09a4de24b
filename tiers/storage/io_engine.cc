// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/io_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/posix.h"
#include "base/result.h"
#include "base/units.h"

namespace kvtier {
namespace {

// While reads wait, writes have one place of so many.
constexpr uint32_t kWriteShare = 8;
// So much is read at once however little waits.
constexpr uint64_t kLeastReadBytes = 16 * kMiB;

std::string_view KindName(IoKind kind) {
  switch (kind) {
    case IoKind::kRead:
      return "read";
    case IoKind::kWrite:
      return "write";
    case IoKind::kSync:
      return "sync";
  }
  return "";
}

// A file as seen by the cache: checks the request and hands it to the engine. The methods are
// called on the event loop, which also runs `done`.
class EngineBlockFile final : public BlockFile {
 public:
  EngineBlockFile(std::shared_ptr<IoEngine> engine, uint32_t number, uint64_t bytes)
      : engine_(std::move(engine)), number_(number), bytes_(bytes) {}

  [[nodiscard]] uint64_t bytes() const override { return bytes_; }
  void SetBytes(uint64_t bytes) override { bytes_ = bytes; }
  [[nodiscard]] std::string_view engine() const override { return engine_->name(); }

  void ReadAndCheck(uint64_t offset, std::span<std::byte> buffer, IoCheck check,
                    IoDone done) override {
    Transfer({.kind = IoKind::kRead,
              .offset = offset,
              .data = buffer.data(),
              .bytes = buffer.size(),
              .check = std::move(check),
              .done = std::move(done)});
  }
  void Write(uint64_t offset, std::span<const std::byte> buffer, IoDone done) override {
    Transfer({.kind = IoKind::kWrite,
              .offset = offset,
              // A request has one pointer for both directions; engines only read through that of a
              // write.
              .data = const_cast<std::byte*>(buffer.data()),
              .bytes = buffer.size(),
              .done = std::move(done)});
  }
  void Sync(IoDone done) override {
    engine_->Submit({.kind = IoKind::kSync, .file = number_, .done = std::move(done)});
  }
  void RegisterMemory(std::span<std::byte> memory) override { engine_->RegisterMemory(memory); }
  void UnregisterFrom(std::byte* from, std::function<void()> done) override {
    engine_->UnregisterFrom(from, std::move(done));
  }

 private:
  void Transfer(IoRequest request) {
    const uint64_t bytes = request.bytes;
    // Checked and not returned: offsets have passed the allocator, which hands out aligned slots
    // within the files and checks those that an index claims.
    KVT_CHECK(bytes > 0 && bytes <= bytes_ && request.offset <= bytes_ - bytes);
    KVT_CHECK(request.offset % kIoAlignment == 0 && bytes % kIoAlignment == 0);
    KVT_CHECK(reinterpret_cast<uintptr_t>(request.data) % kIoAlignment == 0);
    request.file = number_;
    engine_->Submit(std::move(request));
  }

  const std::shared_ptr<IoEngine> engine_;
  const uint32_t number_;
  uint64_t bytes_;
};

}  // namespace

// An interrupted or short transfer is gone on with once (`continued`), so that a file system that
// keeps moving a few bytes at a time cannot hold a place of the queue for ever. Transfers that
// moved all that was asked go on until the whole request is done.
bool IoRequest::Advance(int64_t outcome, uint64_t asked, Status* status) {
  if (outcome == -EINTR && !continued) {
    continued = true;
    return false;
  }
  if (outcome < 0) {
    *status = tl::unexpected<Error>(
        ErrnoError(ErrorCode::kIoError, static_cast<int>(-outcome), Describe()));
    return true;
  }
  const auto moved = static_cast<uint64_t>(outcome);
  moved_bytes += moved;
  if (moved_bytes >= bytes) {
    *status = {};
    return true;
  }
  if (moved == asked) return false;
  // Direct I/O can go on only from an aligned place; a second short transfer is the end of it.
  if (!continued && moved > 0 && moved % kIoAlignment == 0) {
    continued = true;
    return false;
  }
  *status = MakeError(ErrorCode::kIoError, "short_io",
                      fmt::format("{}: {} bytes moved", Describe(), moved_bytes));
  return true;
}

std::string IoRequest::Describe() const {
  if (kind == IoKind::kSync) return fmt::format("sync of file {}", file);
  return fmt::format("{} of {} bytes at {} in file {}", KindName(kind), bytes, offset, file);
}

void IoQueue::Push(IoRequest request) {
  if (IsRead(request.kind)) read_bytes_waiting_ += request.bytes;
  (IsRead(request.kind) ? reads_ : writes_).push_back(std::move(request));
}

bool IoQueue::MayRead() const {
  if (reads_.empty()) return false;
  return read_bytes_in_flight_ < kLeastReadBytes || read_bytes_in_flight_ < read_bytes_waiting_;
}

IoRequest IoQueue::Take() {
  const uint32_t least_writes = std::max<uint32_t>(places_ / kWriteShare, 1);
  const bool write_next = !MayRead() || (!writes_.empty() && writes_in_flight_ < least_writes);
  std::deque<IoRequest>& from = write_next ? writes_ : reads_;
  IoRequest request = std::move(from.front());
  from.pop_front();
  ++InFlight(request.kind);
  if (IsRead(request.kind)) {
    read_bytes_in_flight_ += request.bytes;
    read_bytes_waiting_ -= request.bytes;
  }
  return request;
}

// Only requests that no call has begun: the buffers of the others still belong to the kernel.
std::vector<IoCompletion> IoQueue::CancelWaiting() {
  std::vector<IoCompletion> cancelled;
  for (std::deque<IoRequest>* queue : {&reads_, &writes_}) {
    for (IoRequest& request : *queue) {
      cancelled.push_back(
          request.End(MakeError(ErrorCode::kCancelled, "closed", request.Describe())));
    }
    queue->clear();
  }
  read_bytes_waiting_ = 0;
  return cancelled;
}

std::vector<std::unique_ptr<BlockFile>> MakeBlockFiles(std::shared_ptr<IoEngine> engine,
                                                       const std::vector<uint64_t>& file_bytes) {
  std::vector<std::unique_ptr<BlockFile>> files;
  for (size_t i = 0; i < file_bytes.size(); ++i) {
    files.push_back(
        std::make_unique<EngineBlockFile>(engine, static_cast<uint32_t>(i), file_bytes[i]));
  }
  return files;
}

std::vector<RegisteredMemory::Entry> RegisteredMemory::Plan(std::span<std::byte> memory) {
  std::vector<Entry> plan;
  while (!memory.empty()) {
    const uint64_t bytes = std::min<uint64_t>(memory.size(), kMaxRegisteredBytes);
    const auto slice = memory.first(bytes);
    memory = memory.subspan(bytes);
    if (Find(slice.data(), slice.size()) != kNotRegistered) continue;
    const std::optional<int> number = TakeNumber();
    if (!number) break;
    plan.push_back({slice, *number});
  }
  return plan;
}

std::optional<int> RegisteredMemory::TakeNumber() {
  if (free_numbers_.empty()) {
    if (next_number_ == kMaxRegisteredEntries) return std::nullopt;
    return next_number_++;
  }
  const int number = free_numbers_.back();
  free_numbers_.pop_back();
  return number;
}

std::vector<RegisteredMemory::Entry> RegisteredMemory::CutFrom(std::byte* from) {
  std::vector<Entry> changed;
  while (!entries_.empty()) {
    Entry& last = entries_.back();
    if (last.memory.data() + last.memory.size() <= from) break;
    const auto kept = static_cast<size_t>(from - std::min(from, last.memory.data()));
    last.memory = last.memory.first(kept);
    changed.push_back(last);
    if (kept > 0) break;
    free_numbers_.push_back(last.number);
    entries_.pop_back();
  }
  return changed;
}

void RegisteredMemory::Add(const Entry& entry) {
  const auto after = std::upper_bound(
      entries_.begin(), entries_.end(), entry,
      [](const Entry& a, const Entry& b) { return a.memory.data() < b.memory.data(); });
  entries_.insert(after, entry);
}

// The buffer must lie in one entry as a whole: the kernel refuses a fixed buffer that runs over the
// end of its registration.
int RegisteredMemory::Find(const std::byte* data, uint64_t bytes) const {
  const auto after = std::upper_bound(
      entries_.begin(), entries_.end(), data,
      [](const std::byte* address, const Entry& entry) { return address < entry.memory.data(); });
  if (after == entries_.begin()) return kNotRegistered;
  const Entry& entry = *std::prev(after);
  if (data + bytes > entry.memory.data() + entry.memory.size()) return kNotRegistered;
  return entry.number;
}

}  // namespace kvtier
