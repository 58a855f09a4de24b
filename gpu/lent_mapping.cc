// SPDX-License-Identifier: Apache-2.0
#include "gpu/lent_mapping.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "gpu/guarded_copy.h"

namespace kvtier {
namespace {

// As many as process_vm_writev takes at once (UIO_MAXIOV) are more than fit the stack; these
// amortise the call.
constexpr size_t kPiecesPerCall = 256;

// One owner may have so much mapped, in terms of the machine's memory. Memory that is there is less
// than all of it; an owner may lend the same several times over, and files may have holes.
constexpr uint64_t kMappedPerMemory = 4;

uint64_t MachineBytes() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

UniqueFd OpenFaults() {
  return UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
}

// Lets no access to the mapping make pages that the file does not have, for as long as the result
// is open: they fail there (SIGBUS). Invalid where the system cannot. Faults in the kernel
// fail because this one may only wait for the process's own; all others, by the feature.
UniqueFd ForbidNewPages(void* address, uint64_t bytes) {
  UniqueFd faults = OpenFaults();
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uffdio_api api{.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
  uffdio_register pages{.range = {.start = reinterpret_cast<uintptr_t>(address),
                                  .len = (bytes + page - 1) / page * page},
                        .mode = UFFDIO_REGISTER_MODE_MISSING};
  if (!faults.valid() || ::ioctl(faults.get(), UFFDIO_API, &api) != 0 ||
      ::ioctl(faults.get(), UFFDIO_REGISTER, &pages) != 0) {
    return {};
  }
  return faults;
}

// Where no process may write to the memory of any, not even to its own (a container's filter).
bool WriteFile(int descriptor, const LentMapping::Piece& piece) {
  for (uint64_t done = 0; done < piece.bytes;) {
    const ssize_t written = ::pwrite(descriptor, piece.host + done, piece.bytes - done,
                                     static_cast<off_t>(piece.offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<uint64_t>(written);
  }
  return true;
}

}  // namespace

Status CheckNoNewPages() {
  if (OpenFaults().valid()) return {};
  return tl::unexpected(ErrnoError(ErrorCode::kUnsupported, errno, "userfaultfd"));
}

LentMapping::LentMapping(LentDescriptor descriptor, uint64_t bytes,
                         std::shared_ptr<MappedBytes> mapped)
    : descriptor_(std::move(descriptor)), bytes_(bytes), mapped_(std::move(mapped)) {}

LentMapping::~LentMapping() {
  if (mapping_.empty()) return;
  ::munmap(mapping_.data(), mapping_.size());
  *mapped_ -= bytes_;
}

std::span<std::byte> LentMapping::Mapped() {
  std::call_once(tried_, [this] {
    const uint64_t most = kMappedPerMemory * MachineBytes();
    const uint64_t before = mapped_->fetch_add(bytes_);
    void* address = MAP_FAILED;
    if (before <= most && bytes_ <= most - before) {
      address = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
    }
    if (address == MAP_FAILED) {
      *mapped_ -= bytes_;
      return;
    }
    ::madvise(address, bytes_, MADV_DONTDUMP);
    no_new_pages_ = ForbidNewPages(address, bytes_);
    mapping_ = {static_cast<std::byte*>(address), bytes_};
  });
  return mapping_;
}

bool LentMapping::Read(const Piece& piece) {
  const std::span<std::byte> mapping = Mapped();
  return (no_new_pages_.valid() &&
          GuardedCopy(piece.host, mapping.data() + piece.offset, piece.bytes, mapping)) ||
         ReadFile(piece);
}

bool LentMapping::Write(std::span<const Piece> pieces) {
  const std::span<std::byte> mapping = Mapped();
  if (mapping.empty()) return false;
  if (!no_new_pages_.valid()) return WriteByKernel(mapping.data(), pieces);
  return std::ranges::all_of(pieces, [mapping](const Piece& piece) {
    return GuardedCopy(mapping.data() + piece.offset, piece.host, piece.bytes, mapping);
  });
}

bool LentMapping::ReadFile(const Piece& piece) const {
  for (uint64_t done = 0; done < piece.bytes;) {
    const ssize_t copied = ::pread(descriptor_.get(), piece.host + done, piece.bytes - done,
                                   static_cast<off_t>(piece.offset + done));
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0) return false;
    done += static_cast<uint64_t>(copied);
  }
  return true;
}

bool LentMapping::WriteByKernel(std::byte* mapping, std::span<const Piece> pieces) const {
  std::array<iovec, kPiecesPerCall> from;
  std::array<iovec, kPiecesPerCall> to;
  while (!pieces.empty()) {
    const std::span<const Piece> some = pieces.first(std::min(pieces.size(), kPiecesPerCall));
    ssize_t bytes = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      from[i] = {some[i].host, some[i].bytes};
      to[i] = {mapping + some[i].offset, some[i].bytes};
      bytes += static_cast<ssize_t>(some[i].bytes);
    }
    const ssize_t written =
        ::process_vm_writev(::getpid(), from.data(), some.size(), to.data(), some.size(), 0);
    if (written < 0 && (errno == EPERM || errno == ENOSYS)) {
      return std::ranges::all_of(
          pieces, [this](const Piece& piece) { return WriteFile(descriptor_.get(), piece); });
    }
    if (written != bytes) return false;
    pieces = pieces.subspan(some.size());
  }
  return true;
}

}  // namespace kvtier
