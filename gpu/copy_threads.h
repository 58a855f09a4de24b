// SPDX-License-Identifier: Apache-2.0
// The threads that carry out the copies of a device that is host memory, in the order of CopyQueue,
// and the memory copy that they use.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "gpu/copy_queue.h"
#include "gpu/counter_page.h"
#include "gpu/device.h"

namespace kvtier {

// Does what memcpy does, past the caches where the machine can: for blocks that are larger in sum
// than any cache. Any thread. Large copies use non-temporal stores, which spare the memory bus the
// reading of lines that are about to be overwritten: 23 GB/s against 15 for blocks of 1 MiB on the
// 2-core AMD EPYC where it was measured, 18 against 13 for 64 KiB.
void FastCopy(void* destination, const void* source, size_t bytes);

// What a thread takes at a time: small enough that a demand request does not wait long behind a
// background one and that one request uses all threads.
inline constexpr uint64_t kCopyChunkBytes = 1024 * 1024;

class CopyThreads {
 public:
  // `loop` must outlive this object.
  CopyThreads(int threads, EventQueue* loop);
  // Finishes the chunks being copied, fails the rest; all `done`s are posted on return.
  ~CopyThreads();
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  // `pool` is the mapping of `request.pool`, in whose bounds all copies lie; or null, and the bytes
  // are read from and written to the file behind `descriptor`. Such copies fail, kIoError, if the
  // file has become shorter.
  void Start(CopyRequest request, std::byte* pool, int descriptor = -1);

 private:
  void Work();
  // Takes in that the chunk was copied. REQUIRES: mutex_ held.
  void Land(const CopyChunk& chunk, std::vector<std::shared_ptr<CopyJob>>* ended);
  // Sets the counters of a request that has ended. REQUIRES: mutex_ held.
  void Count(const CopyJob& job, bool succeeded);
  void PostDone(std::function<void(Status)> done, Status status);

  EventQueue* const loop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_, as are the jobs in the queue and in chunks, but for their requests, which
  // are constant.
  CopyQueue queue_;
  CountingOrder counting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtier
