// SPDX-License-Identifier: Apache-2.0
#include "client/core/kept_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/memory_file.h"
#include "client/core/device_choice.h"

namespace kvtier::client {
namespace {

// The daemon learns of its owner's end within milliseconds. An engine that is started again at once
// should not miss the memory for being quicker.
constexpr int64_t kDyingOwnerMs = 1000;
constexpr std::chrono::milliseconds kAskAgain{20};
// How long VRAM may take to be free once the daemon has given it back.
constexpr int64_t kFreedWithinMs = 5000;

Status CheckOptions(const KeptMemoryOptions& options) {
  const auto bad = [](const char* field, uint64_t value) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_options",
                     fmt::format("{} is {}", field, value));
  };
  // Room is left for rounding up.
  if (options.bytes == 0 || options.bytes > wire::kMaxKeptMemoryBytes / 2) {
    return bad("bytes", options.bytes);
  }
  if (options.blocks == 0 || options.blocks > wire::kMaxRegionBlocks) {
    return bad("blocks", options.blocks);
  }
  return {};
}

// The bytes that are allocated: GPUs and the kernel hand out memory in whole pages.
Result<uint64_t> RoundedBytes(const KeptMemoryOptions& options) {
  if (options.cuda_device) return CudaMapping::RoundUp(*options.cuda_device, options.bytes);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return (options.bytes + page - 1) / page * page;
}

// Tries again with pauses, for so long at most, while the outcome is one that passes. Neither the
// end of another process nor the driver's work after it sends anything that could wake this one.
template <typename Try, typename Passes>
auto TryFor(int64_t at_most_ms, Try attempt, Passes passes) {
  const Deadline patience = DeadlineIn(at_most_ms);
  auto outcome = attempt();
  while (passes(outcome) && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(kAskAgain);
    outcome = attempt();
  }
  return outcome;
}

// Asks until the owner has gone.
Result<wire::TakeMemoryReply> Ask(const Connection& connection, DaemonSession* session,
                                  const wire::TakeMemory& request, std::span<UniqueFd> received) {
  return TryFor(
      kDyingOwnerMs,
      [&] {
        return session->channel().Call<wire::TakeMemoryReply>(request, connection.RequestDeadline(),
                                                              {}, received);
      },
      [](const auto& reply) { return !reply && reply.error().reason == "memory_in_use"; });
}

// Which memory of this process has a name: the daemon tells processes apart, and no more. A forked
// child has none of its parent's.
class NamesInUse {
 public:
  // Errors: kWrongState "memory_in_use". Does nothing if the owner has it.
  [[nodiscard]] Status Take(const wire::KeptMemoryName& name, const KeptMemory* owner) {
    const std::lock_guard lock(mutex_);
    if (owners_.try_emplace({::getpid(), name}, owner).first->second == owner) return {};
    return MakeError(ErrorCode::kWrongState, "memory_in_use", "by other memory of this process");
  }
  void GiveBack(const KeptMemory* owner) {
    const std::lock_guard lock(mutex_);
    std::erase_if(owners_, [owner](const auto& item) { return item.second == owner; });
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<pid_t, wire::KeptMemoryName>, const KeptMemory*> owners_;
};

NamesInUse& Names() {
  static NamesInUse& names = *new NamesInUse;  // memory may be closed however late
  return names;
}

bool IsFull(const Status& allocated) {
  return !allocated && allocated.error().code == ErrorCode::kResourceExhausted;
}

}  // namespace

Result<std::unique_ptr<KeptMemory>> KeptMemory::Open(Connection* connection,
                                                     const KeptMemoryOptions& options) {
  KVT_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<KeptMemory> memory(new KeptMemory(options));
  KVT_ASSIGN_OR_RETURN(memory->bytes_, RoundedBytes(options));
  if (connection != nullptr) {
    KVT_RETURN_IF_ERROR(Names().Take(options.name, memory.get()));
    const Result<bool> taken = [&]() -> Result<bool> {
      KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection->GetSession());
      // Said before anything is allocated that could not be kept.
      KVT_RETURN_IF_ERROR(memory->DeviceIn(*connection, session.get()));
      return memory->Take(*connection, session.get());
    }();
    // Only a daemon that is gone hands nothing over any more.
    if (!taken && taken.error().code != ErrorCode::kUnavailable) {
      return tl::unexpected(taken.error());
    }
    if (taken && *taken) return memory;
    if (!taken) connection = nullptr;
  }
  KVT_RETURN_IF_ERROR(memory->Allocate(connection));
  KVT_ASSIGN_OR_RETURN(memory->table_, KeptTable::Create(options.blocks));
  if (connection == nullptr) return memory;
  const Status kept = memory->Keep(connection);
  const bool may_keep_later = !kept && (kept.error().code == ErrorCode::kUnavailable ||
                                        kept.error().code == ErrorCode::kTimeout);
  if (!kept && !may_keep_later) return tl::unexpected(kept.error());
  return memory;
}

Result<bool> KeptMemory::Take(const Connection& connection, DaemonSession* session) {
  std::array<UniqueFd, 2> received;
  KVT_ASSIGN_OR_RETURN(const wire::TakeMemoryReply reply,
                       Ask(connection, session, {.name = options_.name}, received));
  if (!reply.found) return false;
  if (Use(reply, std::move(received[0]), std::move(received[1]))) {
    was_kept_ = true;
    return true;
  }
  // The memory is this process's now. If it is of no use, it is given back before other memory
  // takes its place.
  gpu_.reset();
  fd_.Reset();
  table_.reset();
  gave_back_ = true;
  KVT_RETURN_IF_ERROR(session->channel().Call<wire::ReleaseMemoryReply>(
      wire::ReleaseMemory{.name = options_.name}, connection.RequestDeadline()));
  return false;
}

Status KeptMemory::Use(const wire::TakeMemoryReply& reply, UniqueFd memory, UniqueFd table) {
  if (reply.memory != kind() || reply.bytes != bytes_) {
    return MakeError(ErrorCode::kCorrupt, "kept_memory",
                     fmt::format("{} bytes instead of {}", reply.bytes, bytes_));
  }
  KVT_ASSIGN_OR_RETURN(table_, KeptTable::Open(std::move(table), options_.blocks));
  if (!options_.cuda_device) return MapHostMemory(std::move(memory));
  KVT_ASSIGN_OR_RETURN(gpu_, CudaMapping::Map(memory.get(), bytes_));
  if (gpu_->ordinal() != *options_.cuda_device) {
    return MakeError(ErrorCode::kCorrupt, "kept_memory",
                     fmt::format("it is on GPU {}", gpu_->ordinal()));
  }
  fd_ = std::move(memory);
  return {};
}

Status KeptMemory::Allocate(Connection* connection) {
  if (!options_.cuda_device) {
    KVT_ASSIGN_OR_RETURN(UniqueFd fd, MakeMemoryFile("kvtier-kept-memory", bytes_));
    return MapHostMemory(std::move(fd));
  }
  const Status allocated = AllocateOnGpu();
  if (!IsFull(allocated) || connection == nullptr) return allocated;
  // Memory that waits for engines that may never come is worth less than this memory.
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection->GetSession());
  KVT_ASSIGN_OR_RETURN(const uint32_t device, DeviceIn(*connection, session.get()));
  KVT_ASSIGN_OR_RETURN(const wire::ReleaseMemoryReply released,
                       ReleaseKeptMemory(connection, {.device = device, .name = std::nullopt}));
  if (released.released == 0 && !gave_back_) return allocated;
  // The daemon closes descriptors on a thread of its own, and the driver takes its time.
  return TryFor(
      kFreedWithinMs, [this] { return AllocateOnGpu(); }, IsFull);
}

Status KeptMemory::AllocateOnGpu() {
  KVT_ASSIGN_OR_RETURN(gpu_, CudaMapping::Allocate(*options_.cuda_device, bytes_, &fd_));
  return {};
}

Status KeptMemory::MapHostMemory(UniqueFd fd) {
  KVT_RETURN_IF_ERROR(CheckMemoryFile(fd.get(), bytes_));
  void* const mapping =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (mapping == MAP_FAILED) {
    return tl::unexpected(
        ErrnoError(ErrorCode::kIoError, errno, fmt::format("mapping {} bytes", bytes_)));
  }
  host_ = static_cast<std::byte*>(mapping);
  fd_ = std::move(fd);
  return {};
}

KeptMemory::~KeptMemory() {
  if (host_ != nullptr) (void)::munmap(host_, bytes_);
  Names().GiveBack(this);
}

void* KeptMemory::data() const {
  // The driver gives addresses as numbers.
  return gpu_ ? reinterpret_cast<void*>(gpu_->address()) : static_cast<void*>(host_);
}

// The daemon's number of the GPU; for host memory the daemon does not look at the number.
Result<uint32_t> KeptMemory::DeviceIn(const Connection& connection, DaemonSession* session) const {
  if (!options_.cuda_device) return 0;
  KVT_ASSIGN_OR_RETURN(const DeviceUuid uuid, UuidOfDevice(*options_.cuda_device));
  KVT_ASSIGN_OR_RETURN(const auto devices, connection.DevicesOf(*session));
  return ChooseDevice(devices, uuid, CurrentDeviceUuid);
}

Status KeptMemory::Keep(Connection* connection) const {
  KVT_RETURN_IF_ERROR(Names().Take(options_.name, this));
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection->GetSession());
  KVT_ASSIGN_OR_RETURN(const uint32_t device, DeviceIn(*connection, session.get()));
  const wire::KeepMemory request{.name = options_.name,
                                 .device = device,
                                 .memory = kind(),
                                 .bytes = bytes_,
                                 .table_bytes = table_->bytes()};
  const std::array<int, 2> descriptors = {fd_.get(), table_->fd()};
  const auto kept = session->channel().Call<wire::KeepMemoryReply>(
      request, connection->RequestDeadline(), {}, {}, descriptors);
  return kept ? Status() : tl::unexpected(kept.error());
}

Result<std::optional<KeptTableContents>> ReadKeptTable(Connection* connection,
                                                       const wire::KeptMemoryName& name) {
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection->GetSession());
  UniqueFd table;
  KVT_ASSIGN_OR_RETURN(const wire::TakeMemoryReply reply,
                       session->channel().Call<wire::TakeMemoryReply>(
                           wire::TakeMemory{.name = name, .table_only = true},
                           connection->RequestDeadline(), {}, {&table, 1}));
  if (!reply.found || !table.valid()) return std::nullopt;
  Result<KeptTableContents> contents = KeptTable::Read(table.get());
  if (!contents) return std::nullopt;
  return *std::move(contents);
}

Result<wire::ReleaseMemoryReply> ReleaseKeptMemory(Connection* connection,
                                                   const wire::ReleaseMemory& request) {
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection->GetSession());
  return session->channel().Call<wire::ReleaseMemoryReply>(request, connection->RequestDeadline());
}

}  // namespace kvtier::client
