// SPDX-License-Identifier: Apache-2.0
// The machine's limits: the same bytes moved by the shortest program, for comparison with the
// tiers' rates.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace kvtier {

struct CopyWork {
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint32_t threads = 1;
};

// Copies blocks from huge-page anonymous memory into shared memory, both touched before, by plain
// memcpy. Keeps its memory between runs, so that one object is measured many times.
class MemcpyCeiling {
 public:
  // Errors: kResourceExhausted.
  [[nodiscard]] static Result<MemcpyCeiling> Create(const CopyWork& work);
  MemcpyCeiling(MemcpyCeiling&& other) noexcept;
  MemcpyCeiling& operator=(MemcpyCeiling&&) = delete;
  ~MemcpyCeiling();

  // Copies every block once; returns the seconds it took.
  [[nodiscard]] double Run();

 private:
  explicit MemcpyCeiling(const CopyWork& work) : work_(work) {}
  [[nodiscard]] uint64_t bytes() const { return work_.block_bytes * work_.blocks; }

  CopyWork work_;
  std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
};

struct ReadWork {
  std::string path;
  uint64_t offset = 0;         // of the first request; a multiple of 4 KiB
  uint64_t request_bytes = 0;  // a multiple of 4 KiB
  uint64_t requests = 0;       // one after the other in the file
  uint64_t queue_bytes = 0;    // under way at once
  // The memory into which reads land, round and round; no less than queue_bytes, at most 1 GiB.
  uint64_t memory_bytes = 0;
};

// Reads a stretch of the file in order, past the page cache, with io_uring and registered buffers
// and file. Returns the seconds it took. Errors: kIoError, kUnsupported where io_uring is
// forbidden.
[[nodiscard]] Result<double> ReadWithIoUring(const ReadWork& work);

}  // namespace kvtier
