// SPDX-License-Identifier: Apache-2.0
// What the engines behind BlockFile have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "base/executor.h"
#include "base/unique_fd.h"
#include "tiers/storage/block_file.h"

namespace kvtier {

struct IoEngineOptions {
  // Bytes under way at once over all files of the engine; what exceeds it waits in order. A single
  // request larger than this runs alone.
  uint64_t depth_bytes = 32 * kMiB;
  // Threads of the pread engine; the io_uring engine always has one.
  int threads = 8;
  // If not -1, this open file stays open, and with it a flock(2) on it, until the engine's last I/O
  // has ended, even if the process is killed: the kernel finishes a dead process's requests on its
  // own time, and until then nobody else must write to the files. Borrowed.
  int held_fd = -1;
  // Called on the event loop with what an operator should know, for example that memory could not
  // be registered. May be empty.
  std::function<void(std::string)> log;
};

// An open file, handed to an engine.
struct EngineFile {
  UniqueFd fd;
  uint64_t bytes = 0;
};

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

}  // namespace kvtier
