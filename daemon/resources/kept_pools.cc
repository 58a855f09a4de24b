// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/kept_pools.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/memory_file.h"
#include "base/units.h"
#include "daemon/keeper/keeper_link.h"
#include "daemon/net/peer.h"
#include "daemon/resources/device_opening.h"

namespace kvtier {
namespace {

std::string MemoryName(uint32_t number) { return fmt::format("pool-{}", number); }
std::string TableName(uint32_t number) { return fmt::format("pool-{}-table", number); }

// The part of a pool's blocks that may wait for clients of an earlier daemon: a half. Most of them
// come back for it. But a client that lives and does not come keeps its part for as long as it
// lives, and a pool of which new clients get less than half serves them worse than one that is made
// anew, as if nothing had been kept.
constexpr uint32_t kMostWithheld = 2;

bool MayLive(const ProcessIdentity& process) {
  const ProcessIdentity now = IdentityOf(process.pid);
  if (now.birth == 0) return ::kill(process.pid, 0) == 0 || errno != ESRCH;
  return process.birth == 0 || now.birth == process.birth;
}

// Whether processes that live may still write to too much of the pool.
bool TooMuchWithheld(const PoolTable& table, uint32_t blocks) {
  const Result<std::vector<PoolTable::Session>> sessions = table.Sessions();
  const auto lives = [](const PoolTable::Session& each) { return MayLive(each.identity.process); };
  if (!sessions || std::ranges::none_of(*sessions, lives)) return false;
  uint32_t held = 0;
  for (uint32_t i = 0; i < blocks; ++i) {
    const PoolEntryState state = table.StateOf(BlockIndex(i));
    held += state != PoolEntryState::kFree && !table.Whole(BlockIndex(i));
  }
  return held > blocks / kMostWithheld;
}

bool IsOn(const PoolDescription& pool, const DeviceInfo& device) {
  return pool.device_uuid == device.uuid;
}

}  // namespace

// One pool's descriptors, as far as they are here, and the mapping of its table.
struct KeptPools::Pool {
  explicit Pool(uint32_t its_number) : number(its_number) {}
  ~Pool() {
    if (table) table->TakeBackAdoption();
    table.reset();
    if (!mapped.empty()) ::munmap(mapped.data(), mapped.size());
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Errors: kResourceExhausted with the errno's name.
  [[nodiscard]] Status Map(uint64_t bytes) {
    void* const address =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd.get(), 0);
    if (address == MAP_FAILED) {
      return tl::unexpected<Error>(
          ErrnoError(ErrorCode::kResourceExhausted, errno, "mapping a pool's table"));
    }
    mapped = {static_cast<std::byte*>(address), bytes};
    return {};
  }
  // Maps the table and reads it. Errors: of Map and PoolTable::Read; kCorrupt.
  [[nodiscard]] Status OpenTable(const Digest128& boot_id) {
    const uint64_t bytes = FileBytes(table_fd.get());
    if (const auto refusal = MemoryFileRefusal(table_fd.get(), bytes)) {
      return MakeError(ErrorCode::kCorrupt, *refusal);
    }
    if (bytes == 0) return MakeError(ErrorCode::kCorrupt, "damaged");
    KVT_RETURN_IF_ERROR(Map(bytes));
    KVT_ASSIGN_OR_RETURN(description, PoolTable::Read(mapped, boot_id));
    table = std::make_unique<PoolTable>(mapped);
    return {};
  }

  const uint32_t number;
  UniqueFd memory_fd;  // until the pool has it
  UniqueFd table_fd;
  std::span<std::byte> mapped;
  PoolDescription description;
  std::unique_ptr<PoolTable> table;
};

KeptPools::KeptPools(DescriptorStore* store, Log* log)
    : store_(*store), log_(*log), boot_id_(ReadBootId()), keep_(store->keeps()) {
  for (uint32_t number = 0; number < kMaxKeptPools; ++number) {
    if (keep_) free_numbers_.insert(number);
    Look(number);
  }
}

KeptPools::~KeptPools() = default;

void KeptPools::Look(uint32_t number) {
  auto pool = std::make_unique<Pool>(number);
  pool->memory_fd = store_.Take(MemoryName(number)).value_or(UniqueFd());
  pool->table_fd = store_.Take(TableName(number)).value_or(UniqueFd());
  if (!pool->memory_fd.valid() && !pool->table_fd.valid()) return;
  const auto look = [&]() -> Status {
    if (!pool->memory_fd.valid() || !pool->table_fd.valid()) {
      return MakeError(ErrorCode::kCorrupt, "incomplete");
    }
    return pool->OpenTable(boot_id_);
  };
  if (const Status looked = look(); !looked) return Refuse(*pool, looked.error().reason);
  free_numbers_.erase(number);
  left_.push_back(std::move(pool));
}

void KeptPools::Refuse(const Pool& pool, const std::string& reason) {
  outcomes_.push_back({pool.description.identity.tenant, pool.description.memory_bytes, reason});
  log_.Info("pool.not_adopted", "a pool of an earlier daemon ({}) is given back: {}",
            FormatByteSize(pool.description.memory_bytes), reason);
  Forget(pool.number);
}

void KeptPools::Forget(uint32_t number) {
  store_.Release(MemoryName(number));
  store_.Release(TableName(number));
}

uint64_t KeptPools::BytesOn(const DeviceInfo& device) const {
  uint64_t bytes = 0;
  for (const auto& pool : left_) {
    if (IsOn(pool->description, device)) bytes += pool->description.memory_bytes;
  }
  return bytes;
}

uint64_t KeptPools::HostCap(KeeperLink* keeper) {
  const Digest128 boot_id = ReadBootId();
  uint64_t bytes = 0;
  for (uint32_t number = 0; number < kMaxKeptPools; ++number) {
    Pool pool(number);
    Result<std::optional<UniqueFd>> table = keeper->Take(TableName(number));
    if (!table || !*table) continue;
    pool.table_fd = **std::move(table);
    if (pool.OpenTable(boot_id) && pool.description.device_uuid == DeviceInfo{}.uuid) {
      bytes = std::max(bytes, pool.description.device_bytes);
    }
  }
  return bytes;
}

Result<LeftPool> KeptPools::Open(Pool* pool) {
  const auto refuse = [](const char* reason) { return MakeError(ErrorCode::kCorrupt, reason); };
  const PoolDescription& description = pool->description;
  // A table or a driver that ends the process here must not do so for ever.
  pool->table->BeginAdoption();
  const auto device = std::ranges::find_if(*devices_, [&](const OpenedDevice& opened) {
    return IsOn(description, opened.device->info());
  });
  if (device == devices_->end()) return refuse("no_device");
  if (device->device->info().driver_version != description.driver_version) {
    return refuse("other_driver");
  }
  if (description.memory_id != 0 && FileNumber(pool->memory_fd.get()) != description.memory_id) {
    return refuse("other_memory");
  }
  if (TooMuchWithheld(*pool->table, description.blocks)) return refuse("held_by_clients");
  LeftPool left{.device = DeviceIndex(static_cast<uint32_t>(device - devices_->begin())),
                .description = description,
                .memory = nullptr,
                .table = pool->table.get()};
  KVT_ASSIGN_OR_RETURN(
      left.memory, device->device->AdoptPool(std::move(pool->memory_fd), description.memory_bytes));
  if (left.memory->bytes() != description.memory_bytes) return refuse("size_changed");
  return left;
}

std::vector<LeftPool> KeptPools::TakeLeft() {
  std::vector<LeftPool> taken;
  for (std::unique_ptr<Pool>& pool : std::exchange(left_, {})) {
    Result<LeftPool> left = Open(pool.get());
    if (!left) {
      Refuse(*pool, left.error().reason);
      free_numbers_.insert(pool->number);
      continue;
    }
    // Descriptors that the holder has already are kept anew: this process's list of them names the
    // kept ones.
    (void)store_.Keep(TableName(pool->number), pool->table_fd.get());
    (void)store_.Keep(MemoryName(pool->number), left->memory->shareable_fd(),
                      left->memory->bytes());
    outcomes_.push_back({pool->description.identity.tenant, left->memory->bytes(), "adopted"});
    log_.Info("pool.adopted", "{} of an earlier daemon's pool are there again, {} blocks",
              FormatByteSize(left->memory->bytes()), pool->description.blocks);
    taken.push_back(*std::move(left));
    places_.Take(pool->description.identity.tenant, 1);
    pools_.push_back(std::move(pool));
  }
  return taken;
}

PoolTable* KeptPools::Keep(DeviceIndex device, const PoolDescription& description,
                           const DevicePool& memory) {
  if (!keep_) return nullptr;
  const std::string& tenant = description.identity.tenant;
  const auto leave = [&](const std::string& why) {
    log_.Warning("keeper.none", "a pool of {} of tenant {} is not kept over a restart: {}",
                 FormatByteSize(memory.bytes()), tenant, why);
    return nullptr;
  };
  if (free_numbers_.empty() || !places_.MayTake(tenant, 1)) {
    return leave(fmt::format("the tenant has {} of {} places, and the others are kept for others",
                             places_.taken(tenant), kMaxKeptPools));
  }
  const uint32_t number = *free_numbers_.begin();
  const DeviceInfo info = (*devices_)[device.value].device->info();
  auto pool = std::make_unique<Pool>(number);
  pool->description = description;
  pool->description.device_uuid = info.uuid;
  pool->description.driver_version = info.driver_version;
  pool->description.boot_id = boot_id_;
  // For host memory alone: a driver's descriptors all have one number.
  if (info.driver_version == 0) pool->description.memory_id = FileNumber(memory.shareable_fd());
  const auto keep = [&]() -> Status {
    const uint64_t table_bytes = PoolTable::BytesFor(description.blocks);
    KVT_ASSIGN_OR_RETURN(pool->table_fd, MakeMemoryFile("kvtier-pool-table", table_bytes));
    KVT_RETURN_IF_ERROR(pool->Map(table_bytes));
    PoolTable::Format(pool->description, pool->mapped);
    pool->table = std::make_unique<PoolTable>(pool->mapped);
    // The table is kept first: memory without its table would be held for nothing.
    KVT_RETURN_IF_ERROR(store_.Keep(TableName(number), pool->table_fd.get()));
    return store_.Keep(MemoryName(number), memory.shareable_fd(), memory.bytes());
  };
  if (const Status kept = keep(); !kept) {
    Forget(number);
    return leave(kept.error().ToString());
  }
  free_numbers_.erase(number);
  places_.Take(tenant, 1);
  return pools_.emplace_back(std::move(pool))->table.get();
}

void KeptPools::Release(PoolTable* table, const std::string& refused) {
  const auto pool =
      std::ranges::find_if(pools_, [&](const auto& known) { return known->table.get() == table; });
  KVT_CHECK(pool != pools_.end());
  const uint32_t number = (*pool)->number;
  if (!refused.empty()) {
    // The pool was counted as adopted when the cache was given it.
    const auto outcome = std::ranges::find_if(outcomes_, [&](const Outcome& each) {
      return each.adoption == "adopted" && each.bytes == (*pool)->description.memory_bytes;
    });
    if (outcome != outcomes_.end()) outcome->adoption = refused;
    log_.Info("pool.not_adopted", "the pool of an earlier daemon is given back after all: {}",
              refused);
  }
  Forget(number);
  free_numbers_.insert(number);
  places_.GiveBack((*pool)->description.identity.tenant, 1);
  pools_.erase(pool);
}

}  // namespace kvtier
