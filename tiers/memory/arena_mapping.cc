// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/arena_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "base/memory_file.h"
#include "tiers/memory/adoption_count.h"

namespace kvtier {
namespace {

tl::unexpected<Error> Failed(const char* what) {
  const ErrorCode code = errno == ENOSYS ? ErrorCode::kUnsupported : ErrorCode::kResourceExhausted;
  return tl::unexpected<Error>(ErrnoError(code, errno, what));
}

// The files are as long as for so many slabs, if the arena has no more: then the next process's may
// have another size, and still no holder of a descriptor can cut the memory of another. Memory is
// taken only for pages that were touched.
constexpr uint64_t kSlabsInFiles = uint64_t{1} << 20;

// The lengths of an arena's two files.
struct FileLengths {
  uint64_t arena = 0;
  uint64_t table = 0;
};

FileLengths LengthsFor(uint64_t arena_bytes, uint64_t slab_bytes) {
  return {arena_bytes, HostTable::BytesFor({arena_bytes, slab_bytes, 0, {}})};
}

FileLengths LongestLengths(uint64_t arena_bytes, uint64_t slab_bytes) {
  return LengthsFor(std::max(arena_bytes, slab_bytes * kSlabsInFiles), slab_bytes);
}

std::optional<std::string> FilesRefusal(int arena, int table, const FileLengths& lengths) {
  std::optional<std::string> refusal = MemoryFileRefusal(arena, lengths.arena);
  return refusal ? refusal : MemoryFileRefusal(table, lengths.table);
}

// The pages from `begin` on go back to the kernel.
void CutPages(int file, uint64_t begin) {
  const uint64_t length = FileBytes(file);
  if (begin >= length) return;
  (void)::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                    static_cast<off_t>(length - begin));
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
      left_bytes_(other.left_bytes_),
      huge_pages_(other.huge_pages_) {}

ArenaMapping::~ArenaMapping() {
  if (table_ != nullptr) table_->TakeBackAdoption();
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

Status ArenaMapping::Reserve(const Sizes& sizes) {
  const Status reserved = Reserve(sizes.limit_bytes);
  return reserved || sizes.limit_bytes == sizes.bytes ? reserved : Reserve(sizes.bytes);
}

void ArenaMapping::FreePages(std::span<std::byte> part) {
  if (!arena_fd_.valid()) {
    ::madvise(part.data(), part.size(), MADV_DONTNEED);
    return;
  }
  (void)::fallocate(arena_fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    part.data() - arena_.data(), static_cast<off_t>(part.size()));
}

void ArenaMapping::AdviseKernel() {
  // Worth having, not needed: without it the pages are small.
  ::madvise(arena_.data(), arena_.size(), MADV_HUGEPAGE);
  // A child must not share the pages that the kernel does I/O on.
  ::madvise(arena_.data(), arena_.size(), MADV_DONTFORK);
}

Result<ArenaMapping> ArenaMapping::MapAnonymous(const Sizes& sizes) {
  ArenaMapping mapping;
  KVT_RETURN_IF_ERROR(mapping.Reserve(sizes));
  mapping.AdviseKernel();
  return mapping;
}

Status ArenaMapping::MakeFiles(uint64_t arena_bytes, uint64_t table_bytes) {
  KVT_ASSIGN_OR_RETURN(arena_fd_, MakeMemoryFile("kvtier-host-arena", arena_bytes));
  KVT_ASSIGN_OR_RETURN(table_fd_, MakeMemoryFile("kvtier-host-table", table_bytes));
  return {};
}

Status ArenaMapping::MapFiles(const Sizes& sizes, bool format) {
  const HostTableShape shape{sizes.bytes, sizes.slab_bytes, FileNumber(arena_fd_.get()),
                             ReadBootId()};
  // No larger than its file, nor than the table's has room for.
  const uint64_t in_file = FileBytes(arena_fd_.get()) / sizes.slab_bytes * sizes.slab_bytes;
  arena_ = arena_.first(std::min<uint64_t>(arena_.size(), in_file));
  const uint64_t table_bytes = HostTable::BytesFor({arena_.size(), sizes.slab_bytes, 0, {}});
  void* table =
      ::mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd_.get(), 0);
  if (table == MAP_FAILED) return Failed("mmap of the host table");
  table_memory_ = {static_cast<std::byte*>(table), table_bytes};
  if (format) HostTable::Format(shape, table_memory_);
  KVT_RETURN_IF_ERROR(HostTable::Check(shape, table_memory_));
  table_ = std::make_unique<HostTable>(shape, table_memory_);
  if (!format) KVT_RETURN_IF_ERROR(TakeOtherSize(sizes));
  if (table_->unfinished_adoptions() >= kMaxUnfinishedAdoptions) {
    return MakeError(ErrorCode::kCorrupt, "adoption_unfinished");
  }
  if (::mmap(arena_.data(), arena_.size(), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, arena_fd_.get(), 0) == MAP_FAILED) {
    return Failed("mmap of the host arena");
  }
  AdviseKernel();
  return {};
}

// The table is cut first, so that a process that dies half-way leaves no record without its bytes.
// The size that it leaves is then too large for its records, as it is in an arena that never
// filled up.
Status ArenaMapping::TakeOtherSize(const Sizes& sizes) {
  left_bytes_ = table_->arena_bytes();
  if (left_bytes_ == 0 || left_bytes_ % sizes.slab_bytes != 0) {
    return MakeError(ErrorCode::kCorrupt, "damaged");
  }
  // Also when the sizes are equal: a daemon that died may not have given back all of a larger one.
  CutPages(table_fd_.get(), table_->bytes());
  CutPages(arena_fd_.get(), sizes.bytes);
  table_->Resize(sizes.bytes);
  return {};
}

Result<ArenaMapping> ArenaMapping::MapKept(const Sizes& sizes, UniqueFd arena, UniqueFd table) {
  const FileLengths longest = LongestLengths(sizes.bytes, sizes.slab_bytes);
  const FileLengths exact = LengthsFor(sizes.bytes, sizes.slab_bytes);
  std::string reason = "none";
  if (arena.valid() != table.valid()) reason = "incomplete";
  if (arena.valid() && table.valid()) {
    std::optional<std::string> refusal = FilesRefusal(arena.get(), table.get(), longest);
    if (refusal && !FilesRefusal(arena.get(), table.get(), exact)) refusal.reset();
    if (!refusal) {
      ArenaMapping kept;
      KVT_RETURN_IF_ERROR(kept.Reserve(sizes));
      kept.arena_fd_ = std::move(arena);
      kept.table_fd_ = std::move(table);
      const Status mapped = kept.MapFiles(sizes, false);
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
  KVT_RETURN_IF_ERROR(mapping.Reserve(sizes));
  // A limit of the process on the size of files may forbid long ones.
  Status made = mapping.MakeFiles(longest.arena, longest.table);
  if (!made) made = mapping.MakeFiles(exact.arena, exact.table);
  KVT_RETURN_IF_ERROR(made);
  KVT_RETURN_IF_ERROR(mapping.MapFiles(sizes, true));
  mapping.adoption_ = std::move(reason);
  mapping.huge_pages_ = SharedHugePagesAllowed();
  return mapping;
}

}  // namespace kvtier
