// SPDX-License-Identifier: Apache-2.0
#include "gpu/host_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "base/memory_file.h"
#include "base/populate_steps.h"
#include "base/posix.h"
#include "base/units.h"
#include "gpu/device.h"

namespace kvtier {
namespace {

// A chunk takes a millisecond.
constexpr auto kLentPatience = std::chrono::seconds(1);

}  // namespace

std::optional<uint64_t> AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (meminfo >> name >> kib) {
    if (name == "MemAvailable:") return kib * kKiB;
    std::getline(meminfo, unit);
  }
  return std::nullopt;
}

Result<std::unique_ptr<HostPool>> HostPool::Create(uint64_t bytes) {
  if (bytes == 0) return MakeError(ErrorCode::kInvalidArgument, "empty_pool", "0 bytes asked for");
  const std::optional<uint64_t> available = AvailableMemoryBytes();
  if (available && bytes > *available) {
    return MakeError(ErrorCode::kResourceExhausted, "pool_exceeds_memory",
                     fmt::format("{} asked for, {} available", FormatByteSize(bytes),
                                 FormatByteSize(*available)));
  }
  KVT_ASSIGN_OR_RETURN(UniqueFd fd, MakeMemoryFile("kvtier-pool", bytes));
  return Map(std::move(fd), bytes);
}

// Pages that the earlier process had are not touched again, so that this costs no time.
Result<std::unique_ptr<HostPool>> HostPool::Adopt(UniqueFd fd, uint64_t bytes) {
  if (const std::optional<std::string> refusal = MemoryFileRefusal(fd.get(), bytes)) {
    return MakeError(ErrorCode::kCorrupt, *refusal);
  }
  return Map(std::move(fd), bytes);
}

Result<std::unique_ptr<HostPool>> HostPool::Map(UniqueFd fd, uint64_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    return tl::unexpected(ErrnoError(ErrorCode::kResourceExhausted, errno,
                                     fmt::format("mmap of {} for a pool", FormatByteSize(bytes))));
  }
  // Heeded where the machine allows huge pages for shared memory; many do not.
  ::madvise(address, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<HostPool>(
      new HostPool(std::move(fd), {static_cast<std::byte*>(address), bytes}));
}

// Pages come with first use where no thread is left to fill them in ahead.
HostPool::HostPool(UniqueFd fd, std::span<std::byte> memory) : fd_(std::move(fd)), memory_(memory) {
  try {
    filler_ = std::thread([this] { FillIn(); });
    pthread_setname_np(filler_.native_handle(), "pool-fill");
  } catch (const std::system_error&) {
  }
}

HostPool::~HostPool() {
  StopFilling();
  ::munmap(memory_.data(), memory_.size());
}

void HostPool::StopFilling() {
  stopping_ = true;
  if (filler_.joinable()) filler_.join();
}

void HostPool::Discard() {
  StopFilling();
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(memory_.size()));
}

void HostPool::FillIn() {
  PopulateSteps steps;
  for (uint64_t begin = 0; begin < memory_.size() && !stopping_;) {
    const uint64_t bytes = std::min(steps.next_bytes(), memory_.size() - begin);
    // Neither system call touches what a client has written. The second is for kernels before 5.14.
    // If both fail, pages come with first use.
    const bool filled = steps.Time([&] {
      return ::madvise(memory_.data() + begin, bytes, MADV_POPULATE_WRITE) == 0 ||
             ::fallocate(fd_.get(), 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0;
    });
    if (!filled) return;
    begin += bytes;
  }
}

LentOwner::LentOwner(EventQueue* loop, int copy_threads)
    : threads("lent", copy_threads, loop, kLentPatience) {}

Result<std::unique_ptr<LentFile>> LentFile::Open(LentMemory* memory,
                                                 std::shared_ptr<LentOwner> owner) {
  const auto bad = [](std::string_view why) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_region_memory", std::string(why));
  };
  const int fd = memory->descriptor.get();
  // Asked first: only files in memory have an answer. Any other file's system may keep fstat
  // waiting for as long as it likes.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat file {};
  struct statfs file_system {};
  if (seals < 0 || ::fstat(fd, &file) != 0 || ::fstatfs(fd, &file_system) != 0 ||
      file_system.f_type != TMPFS_MAGIC) {
    return bad("not memory: a memfd or a file in /dev/shm is wanted");
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR || (flags & O_APPEND) != 0 ||
      (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return bad("not open for reading and writing");
  }
  if (memory->bytes == 0 || static_cast<uint64_t>(file.st_size) < memory->bytes) {
    return bad(fmt::format("{} bytes long, {} are said to be there", file.st_size, memory->bytes));
  }
  return std::unique_ptr<LentFile>(new LentFile(memory, std::move(owner)));
}

LentFile::LentFile(LentMemory* memory, std::shared_ptr<LentOwner> owner)
    : owner_(std::move(owner)),
      mapping_(std::make_shared<LentMapping>(std::move(memory->descriptor), memory->bytes,
                                             owner_->mapped)) {}

LentFile::~LentFile() { owner_->threads.Drop(std::move(mapping_)); }

void LentFile::Copy(CopyRequest request) {
  owner_->threads.Start(std::move(request), nullptr, mapping_);
}

int DefaultCopyThreads() {
  constexpr unsigned kMost = 12;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 2u, kMost));
}

HostDevice::HostDevice(EventQueue* loop, int copy_threads)
    : loop_(loop), copy_threads_(copy_threads), copier_("copy", copy_threads, loop) {}

HostDevice::~HostDevice() {
  for (const auto& [name, owner] : owners_) {
    if (const std::shared_ptr<LentOwner> lives = owner.lock()) lives->threads.Stop();
  }
}

DeviceInfo HostDevice::info() const {
  return {.kind = "host",
          .name = "host memory (memfd)",
          .ordinal = 0,
          .total_bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)),
          .free_bytes = AvailableMemoryBytes().value_or(0)};
}

Result<std::unique_ptr<DevicePool>> HostDevice::CreatePool(uint64_t bytes) {
  return HostPool::Create(bytes);
}

Result<std::unique_ptr<DevicePool>> HostDevice::AdoptPool(UniqueFd fd, uint64_t bytes) {
  return HostPool::Adopt(std::move(fd), bytes);
}

Result<std::unique_ptr<DevicePool>> HostDevice::Borrow(LentMemory* memory) {
  if (memory->kind != LentMemory::Kind::kShared) return Device::Borrow(memory);
  KVT_ASSIGN_OR_RETURN(std::shared_ptr<LentOwner> owner, OwnerOf(*memory));
  return LentFile::Open(memory, std::move(owner));
}

Result<std::shared_ptr<LentOwner>> HostDevice::OwnerOf(const LentMemory& memory) {
  std::erase_if(owners_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<LentOwner>& known = owners_[memory.owner];
  std::shared_ptr<LentOwner> owner = known.lock();
  if (owner) return owner;
  try {
    owner = std::make_shared<LentOwner>(loop_, copy_threads_);
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kResourceExhausted, "threads", error.what());
  }
  known = owner;
  return owner;
}

void HostDevice::Copy(CopyRequest request) {
  if (const Status bounds = CheckCopyBounds(request); !bounds) {
    loop_->Post([done = std::move(request.done), bounds] { done(bounds); });
    return;
  }
  std::byte* const mapping = request.pool->data();
  if (mapping != nullptr) return copier_.Start(std::move(request), mapping);
  // Only lent memory has no address.
  auto* const lent = static_cast<LentFile*>(request.pool);
  lent->Copy(std::move(request));
}

}  // namespace kvtier
