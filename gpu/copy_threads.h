// SPDX-License-Identifier: Apache-2.0
// The threads that carry out the copies of a device that is host memory, in the order of CopyQueue,
// and the memory copy that they use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/executor.h"
#include "gpu/device.h"
#include "gpu/lent_mapping.h"

namespace kvtier {

// Does what memcpy does, past the caches where the machine can: for blocks that are larger in sum
// than any cache. Any thread. Large copies use non-temporal stores, which spare the memory bus the
// reading of lines that are about to be overwritten: 23 GB/s against 15 for blocks of 1 MiB on the
// 2-core AMD EPYC where it was measured, 18 against 13 for 64 KiB.
void FastCopy(void* destination, const void* source, size_t bytes);

// The piece that a thread takes at a time: small enough that a demand request does not wait long
// behind a background one and that one request uses all threads.
inline constexpr uint64_t kCopyChunkBytes = 1024 * 1024;

class CopyThreads {
 public:
  // How long the end waits for chunks that are being copied: of memory that another process lends,
  // they may take as long as that one likes.
  static constexpr auto kNoEnd = std::chrono::milliseconds::max();

  // `loop` must outlive this object. `name`, of at most 12 characters, shows in `top -H`. Throws
  // std::system_error if no thread can be started.
  CopyThreads(const std::string& name, int threads, EventQueue* loop,
              std::chrono::milliseconds patience = kNoEnd);
  // As Stop.
  ~CopyThreads();
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  // `pool` is the mapping of `request.pool`, in whose bounds all copies lie; or null, and the bytes
  // are read from and written to `lent`. Such copies fail, kIoError, if that has become shorter.
  void Start(CopyRequest request, std::byte* pool, std::shared_ptr<LentMapping> lent = nullptr);
  // Lets go of the memory on one of the threads, because that may take long.
  void Drop(std::shared_ptr<LentMapping> lent);
  // Finishes the chunks being copied, fails the rest; all `done`s are posted on return, and nothing
  // is begun any more. Chunks that take longer than the patience are given up: their requests fail,
  // and their threads end whenever they can.
  void Stop();

 private:
  struct State;
  const std::shared_ptr<State> state_;
  const std::chrono::milliseconds patience_;
};

}  // namespace kvtier
