// SPDX-License-Identifier: Apache-2.0
// One preallocated file of slots, read and written asynchronously and past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace kvtier {

// Direct I/O: offsets, lengths and addresses are multiples of this.
inline constexpr uint64_t kIoAlignment = 4096;

// Called once, on the event loop. Errors: kIoError with the errno's name as reason ("ENOSPC",
// "EIO"), or "short_io" when fewer bytes were moved than asked for.
using IoDone = std::function<void(Status)>;

// All calls are made on the event loop's thread and return at once; buffers stay valid and (writes)
// unchanged until `done`. Requests beyond the engine's byte-bounded depth wait inside it, in order.
// Completions come in any order. Out-of-bounds or misaligned requests are programmer errors.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  [[nodiscard]] virtual uint64_t bytes() const = 0;
  // "io_uring", "pread" or a test's own.
  [[nodiscard]] virtual std::string_view engine() const = 0;
  virtual void Read(uint64_t offset, std::span<std::byte> buffer, IoDone done) = 0;
  virtual void Write(uint64_t offset, std::span<const std::byte> buffer, IoDone done) = 0;
  // Everything written (and reported done) before this call is on stable storage at `done`.
  virtual void Sync(IoDone done) = 0;
  // A hint: `memory` will be the target of many I/Os for the file's whole life (io_uring registers
  // it with the kernel). I/O outside any registered memory works all the same.
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
};

}  // namespace kvtier
