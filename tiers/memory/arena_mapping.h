// SPDX-License-Identifier: Apache-2.0
// The address space of the host arena: anonymous memory that ends with the process, or two memory
// files (the arena and the table beside it) that stay as they are for as long as any process holds
// their descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/posix.h"
#include "base/result.h"
#include "tiers/memory/host_table.h"

namespace kvtier {

// Huge pages, and the unit in which an arena's address is aligned.
inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Owns the mappings and the descriptors.
class ArenaMapping {
 public:
  // The sizes of an arena now, and the highest that it may be given: so much address space is
  // reserved, or as much as now where the process may not have more.
  struct Sizes {
    uint64_t bytes = 0;
    uint64_t limit_bytes = 0;
    uint64_t slab_bytes = 0;
  };
  // Address space without a claim on memory. Errors: kResourceExhausted with the errno's name.
  [[nodiscard]] static Result<ArenaMapping> MapAnonymous(const Sizes& sizes);
  // The memory that `arena` and `table` describe, if it matches: what an earlier process left in it
  // is there. Otherwise new memory; adoption() says which, and why. Both descriptors are taken over
  // and may hold anything. Errors: kResourceExhausted or kUnsupported with the errno's name.
  [[nodiscard]] static Result<ArenaMapping> MapKept(const Sizes& sizes, UniqueFd arena,
                                                    UniqueFd table);
  ArenaMapping(ArenaMapping&& other) noexcept;
  ArenaMapping& operator=(ArenaMapping&&) = delete;
  ~ArenaMapping();

  // From here on the memory stays mapped until the process ends, also when this is destroyed.
  void LeaveMapped();

  // The pages of this part go back to the kernel, and are zeros when they are touched again.
  void FreePages(std::span<std::byte> part);

  // Aligned to huge pages; of the highest size that the arena may be given.
  [[nodiscard]] std::span<std::byte> arena() const { return arena_; }
  // Null for anonymous memory.
  [[nodiscard]] HostTable* table() const { return table_.get(); }
  // "adopted", or why the memory is new: "off" (not to be kept), "none" (no descriptors), or
  // "incomplete" (one of two), "not_sealed", "size_changed", "version", "other_boot",
  // "other_arena", "damaged", "adoption_unfinished" (daemon after daemon has died before it had
  // looked at all of it), or the errno's name with which the kernel refused to map it.
  [[nodiscard]] const std::string& adoption() const { return adoption_; }
  // The size of the arena that was adopted; 0 if none was. Slabs that both sizes have are there.
  [[nodiscard]] uint64_t left_bytes() const { return left_bytes_; }
  // Owned here; -1 for anonymous memory. Its file may be longer than the arena.
  [[nodiscard]] int arena_descriptor() const { return arena_fd_.get(); }
  [[nodiscard]] int table_descriptor() const { return table_fd_.get(); }
  // Whether the kernel gives huge pages to this memory where it has some.
  [[nodiscard]] bool huge_pages() const { return huge_pages_; }

 private:
  ArenaMapping() = default;
  // Reserves the address space of the arena, and one huge page for its alignment.
  [[nodiscard]] Status Reserve(uint64_t bytes);
  [[nodiscard]] Status Reserve(const Sizes& sizes);
  // Errors: as MakeMemoryFile.
  [[nodiscard]] Status MakeFiles(uint64_t arena_bytes, uint64_t table_bytes);
  // `format`: the files are new. Errors: those of HostTable::Check; kResourceExhausted or
  // kUnsupported with the errno's name.
  [[nodiscard]] Status MapFiles(const Sizes& sizes, bool format);
  // The files, which an arena of another size has left, become those of one of this size. Errors:
  // kCorrupt "damaged".
  [[nodiscard]] Status TakeOtherSize(const Sizes& sizes);
  void AdviseKernel();

  std::span<std::byte> reserved_;  // holds arena_
  std::span<std::byte> arena_;
  std::span<std::byte> table_memory_;
  UniqueFd arena_fd_;
  UniqueFd table_fd_;
  std::unique_ptr<HostTable> table_;
  std::string adoption_ = "off";
  uint64_t left_bytes_ = 0;
  bool huge_pages_ = true;
};

}  // namespace kvtier
