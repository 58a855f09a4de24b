// SPDX-License-Identifier: Apache-2.0
// One preallocated file of slots, read and written asynchronously and past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "base/units.h"

namespace kvtier {

// Direct I/O: offsets, lengths and addresses are multiples of this.
inline constexpr uint64_t kIoAlignment = 4096;

// Called once, on the event loop. Errors: kIoError with the errno's name as reason ("ENOSPC",
// "EIO"), or "short_io" when fewer bytes were moved than asked for.
using IoDone = std::function<void(Status)>;
// The reason of a write that was refused before it reached the drive, for lack of a key.
inline constexpr std::string_view kNotEncrypted = "not_encrypted";
// Looks at bytes that have been read. Called on any thread.
using IoCheck = std::function<void()>;

// All calls are made on the event loop's thread and return at once; buffers stay valid and (writes)
// unchanged until `done`. The caller bounds its requests in flight: more than the engine can hand
// to the kernel wait inside it, reads before writes. Completions come in any order. Requests that
// are out of bounds or misaligned are programmer errors.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  [[nodiscard]] virtual uint64_t bytes() const = 0;
  // The file has another size from now on. REQUIRES: no request beyond it is under way.
  virtual void SetBytes(uint64_t bytes) = 0;
  // "io_uring", "pread" or a test's own.
  [[nodiscard]] virtual std::string_view engine() const = 0;
  void Read(uint64_t offset, std::span<std::byte> buffer, IoDone done) {
    ReadAndCheck(offset, buffer, nullptr, std::move(done));
  }
  // Calls `check`, unless it is empty or the read failed, when the bytes are there and before
  // `done`: the loop is not entered between the read and the check.
  virtual void ReadAndCheck(uint64_t offset, std::span<std::byte> buffer, IoCheck check,
                            IoDone done) = 0;
  virtual void Write(uint64_t offset, std::span<const std::byte> buffer, IoDone done) = 0;
  // Everything written (and reported done) before this call is on stable storage at `done`.
  virtual void Sync(IoDone done) = 0;
  // A hint: `memory` will be the target of many I/Os for the file's whole life (io_uring registers
  // it with the kernel). I/O outside any registered memory works all the same.
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
  // From `done` on, which may be called within the call, no memory from `from` on is registered by
  // any file of the engine: its pages may be given back. REQUIRES: no I/O to or from it is under
  // way.
  virtual void UnregisterFrom(std::byte* from, std::function<void()> done) = 0;
};

struct IoEngineOptions {
  // Threads of the pread engine; the io_uring engine always has one.
  int threads = 8;
  // Runs the checks of reads. Borrowed; outlives the files. Null: the engine's own threads do.
  Executor* executor = nullptr;
  // Called on the event loop with what an operator should know, for example that memory could not
  // be registered. May be empty.
  std::function<void(std::string)> log;
};

// An open file, handed to an engine.
struct EngineFile {
  UniqueFd fd;
  uint64_t bytes = 0;
};

// The returned files share one engine, in the order given. `loop` must outlive them. Destroying the
// last of them cancels requests that still wait (kCancelled "closed") and finishes those that have
// begun; every callback is posted before the destructor returns.
//
// On io_uring: one ring and one thread for all files, and registered memory. Files are not
// registered: the ring holds each, and a flock(2) on it, exactly as long as a request uses it, also
// after the process was killed (see LockDataFile). Takes `*files` only on success. Errors:
// kUnsupported "io_uring_refused" when the kernel or its policy denies a ring.
[[nodiscard]] Result<std::vector<std::unique_ptr<BlockFile>>> MakeUringBlockFiles(
    std::vector<EngineFile>* files, const IoEngineOptions& options, EventQueue* loop);
// On pread and pwrite by a small pool of threads, for where io_uring is not to be had.
[[nodiscard]] std::vector<std::unique_ptr<BlockFile>> MakePreadBlockFiles(
    std::vector<EngineFile> files, const IoEngineOptions& options, EventQueue* loop);

}  // namespace kvtier
