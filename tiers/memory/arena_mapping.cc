// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/arena_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "base/memory_file.h"
#include "tiers/memory/record_word.h"

namespace kvtier {
namespace {

tl::unexpected<Error> Failed(const char* what) {
  const ErrorCode code = errno == ENOSYS ? ErrorCode::kUnsupported : ErrorCode::kResourceExhausted;
  return tl::unexpected<Error>(ErrnoError(code, errno, what));
}

// Huge pages of shared memory are off unless an administrator has allowed them: for this size, or
// for all, from which newer kernels have each size inherit.
bool SharedHugePagesAllowed() {
  for (const char* setting : {"hugepages-2048kB/shmem_enabled", "shmem_enabled"}) {
    std::string text;
    std::ifstream file(std::string("/sys/kernel/mm/transparent_hugepage/") + setting);
    std::getline(file, text);
    if (text.empty() || text.find("[inherit]") != std::string::npos) continue;
    return text.find("[never]") == std::string::npos && text.find("[deny]") == std::string::npos;
  }
  return false;
}

}  // namespace

ArenaMapping::ArenaMapping(ArenaMapping&& other) noexcept
    : reserved_(std::exchange(other.reserved_, {})),
      arena_(std::exchange(other.arena_, {})),
      table_memory_(std::exchange(other.table_memory_, {})),
      arena_fd_(std::move(other.arena_fd_)),
      table_fd_(std::move(other.table_fd_)),
      table_(std::move(other.table_)),
      adoption_(std::move(other.adoption_)),
      huge_pages_(other.huge_pages_) {}

ArenaMapping::~ArenaMapping() {
  table_.reset();
  if (!table_memory_.empty()) ::munmap(table_memory_.data(), table_memory_.size());
  if (!reserved_.empty()) ::munmap(reserved_.data(), reserved_.size());
}

void ArenaMapping::LeaveMapped() {
  table_memory_ = {};
  reserved_ = {};
}

Status ArenaMapping::Reserve(uint64_t bytes) {
  const uint64_t reserved_bytes = bytes + kHugePageBytes;
  void* address = ::mmap(nullptr, reserved_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return Failed("address space for the host arena");
  }
  reserved_ = {static_cast<std::byte*>(address), reserved_bytes};
  const auto start = reinterpret_cast<uintptr_t>(address);
  arena_ = reserved_.subspan((kHugePageBytes - start % kHugePageBytes) % kHugePageBytes, bytes);
  return {};
}

void ArenaMapping::AdviseKernel() {
  // Worth having, not needed: without it the pages are small.
  ::madvise(arena_.data(), arena_.size(), MADV_HUGEPAGE);
  // A child must not share the pages that the kernel does I/O on.
  ::madvise(arena_.data(), arena_.size(), MADV_DONTFORK);
}

Result<ArenaMapping> ArenaMapping::MapAnonymous(uint64_t bytes) {
  ArenaMapping mapping;
  KVT_RETURN_IF_ERROR(mapping.Reserve(bytes));
  mapping.AdviseKernel();
  return mapping;
}

Status ArenaMapping::MapFiles(uint64_t slab_bytes, bool format) {
  const HostTableShape shape{arena_.size(), slab_bytes, FileNumber(arena_fd_.get()), ReadBootId()};
  const uint64_t table_bytes = HostTable::BytesFor(shape);
  void* table =
      ::mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd_.get(), 0);
  if (table == MAP_FAILED) return Failed("mmap of the host table");
  table_memory_ = {static_cast<std::byte*>(table), table_bytes};
  if (format) HostTable::Format(shape, table_memory_);
  KVT_RETURN_IF_ERROR(HostTable::Check(shape, table_memory_));
  table_ = std::make_unique<HostTable>(shape, table_memory_);
  if (table_->unfinished_adoptions() >= kMaxUnfinishedAdoptions) {
    return MakeError(ErrorCode::kCorrupt, "adoption_unfinished");
  }
  if (::mmap(arena_.data(), arena_.size(), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, arena_fd_.get(), 0) == MAP_FAILED) {
    return Failed("mmap of the host arena");
  }
  AdviseKernel();
  if (!format) table_->BeginAdoption();
  return {};
}

Result<ArenaMapping> ArenaMapping::MapKept(uint64_t bytes, uint64_t slab_bytes, UniqueFd arena,
                                           UniqueFd table) {
  const uint64_t table_bytes = HostTable::BytesFor({bytes, slab_bytes, 0, {}});
  std::string reason = "none";
  if (arena.valid() != table.valid()) reason = "incomplete";
  if (arena.valid() && table.valid()) {
    std::optional<std::string> refusal = MemoryFileRefusal(arena.get(), bytes);
    if (!refusal) refusal = MemoryFileRefusal(table.get(), table_bytes);
    if (!refusal) {
      ArenaMapping kept;
      KVT_RETURN_IF_ERROR(kept.Reserve(bytes));
      kept.arena_fd_ = std::move(arena);
      kept.table_fd_ = std::move(table);
      const Status mapped = kept.MapFiles(slab_bytes, false);
      kept.adoption_ = "adopted";
      if (mapped) {
        kept.huge_pages_ = SharedHugePagesAllowed();
        return kept;
      }
      refusal = mapped.error().reason;
    }
    reason = *refusal;
  }
  // Memory that cannot be adopted is given back before as much is taken anew.
  arena.Reset();
  table.Reset();
  ArenaMapping mapping;
  KVT_RETURN_IF_ERROR(mapping.Reserve(bytes));
  KVT_ASSIGN_OR_RETURN(mapping.arena_fd_, MakeMemoryFile("kvtier-host-arena", bytes));
  KVT_ASSIGN_OR_RETURN(mapping.table_fd_, MakeMemoryFile("kvtier-host-table", table_bytes));
  KVT_RETURN_IF_ERROR(mapping.MapFiles(slab_bytes, true));
  mapping.adoption_ = std::move(reason);
  mapping.huge_pages_ = SharedHugePagesAllowed();
  return mapping;
}

}  // namespace kvtier
