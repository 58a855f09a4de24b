// SPDX-License-Identifier: Apache-2.0
// Host memory of another process, read and written so that nothing which that process does to it
// ends this one or holds a thread of it for good.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/device.h"

namespace kvtier {

// How many bytes one owner has had mapped here: addresses are not without end.
using MappedBytes = std::atomic<uint64_t>;

// Whether writes to lent memory can be kept from making pages. Errors: kUnsupported with the
// errno's name: the system forbids userfaultfd (a container's profile), or has none.
[[nodiscard]] Status CheckNoNewPages();

// A file in memory (tmpfs) behind a descriptor. Any thread, but for its construction.
//
// The file is mapped by the first copy, and bytes are read and written there. An access makes no
// pages: they would be charged to the control group of this process for as long as the owner keeps
// the file. It fails where there are none, or none any more: reads are then pread(), which tells
// holes, that are zeros, from the end.
//
// Where the system has no userfaultfd, an access would make pages. Reads are pread() there, and
// writes process_vm_writev(), which at least fails if no page can be had. Never pwrite() while that
// works: it would wait for the file's lock, which its owner can hold for as long as it likes, and a
// thread that waits there cannot even be killed.
class LentMapping {
 public:
  // `mapped` is shared with the other memory of the same owner.
  LentMapping(LentDescriptor descriptor, uint64_t bytes, std::shared_ptr<MappedBytes> mapped);
  // May take long: the memory may go with it.
  ~LentMapping();
  LentMapping(const LentMapping&) = delete;
  LentMapping& operator=(const LentMapping&) = delete;

  struct Piece {
    uint64_t offset = 0;  // in the file
    std::byte* host = nullptr;
    uint64_t bytes = 0;
  };
  // Copies to `host`. False if the file has become shorter.
  [[nodiscard]] bool Read(const Piece& piece);
  // Copies from `host`. False if the file has become shorter, has no pages there, or cannot be
  // mapped; some pieces may have been written then.
  [[nodiscard]] bool Write(std::span<const Piece> pieces);

  [[nodiscard]] int descriptor() const { return descriptor_.get(); }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  // The mapping, or nothing if there cannot be one.
  [[nodiscard]] std::span<std::byte> Mapped();
  [[nodiscard]] bool ReadFile(const Piece& piece) const;
  [[nodiscard]] bool WriteByKernel(std::byte* mapping, std::span<const Piece> pieces) const;

  const LentDescriptor descriptor_;
  const uint64_t bytes_;
  const std::shared_ptr<MappedBytes> mapped_;
  std::once_flag tried_;
  std::span<std::byte> mapping_;
  UniqueFd no_new_pages_;  // a userfaultfd, as long as the mapping; invalid where there is none
};

}  // namespace kvtier
