// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/kept_memories.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "base/digest.h"
#include "base/units.h"
#include "daemon/config/config.h"
#include "daemon/net/connection.h"
#include "daemon/runtime/log.h"
#include "protocol/session_messages.h"

namespace kvtier {
namespace {

// Only memory files answer the first question, which never blocks: a file of a user's file system
// could hold up fstat for as long as its maker likes.
Status CheckFile(const ForeignFd& file, uint64_t bytes, const char* what) {
  struct stat status {};
  if (::fcntl(file.get(), F_GET_SEALS) < 0 || ::fstat(file.get(), &status) != 0 ||
      !S_ISREG(status.st_mode)) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_memory",
                     fmt::format("the {} is no memory file", what));
  }
  if (static_cast<uint64_t>(status.st_size) >= bytes) return {};
  return MakeError(
      ErrorCode::kInvalidArgument, "bad_memory",
      fmt::format("the {} has {} bytes, {} are said to be there", what, status.st_size, bytes));
}

UniqueFd Duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

std::string ShortName(const wire::KeptMemoryName& name) {
  return Digest256{name}.Hex().substr(0, 16);
}

}  // namespace

KeptMemories::KeptMemories(Environment environment)
    : env_(std::move(environment)),
      watched_(
          env_.loop, env_.log, [this](SessionId session) { OnProcessEnded(session); },
          env_.kernels_remain) {}

Status KeptMemories::CheckOwner(const Kept& kept, const KeptMemoryClient& client) {
  if (!kept.owner || kept.owner->session == client.session ||
      IsSameProcess(kept.owner->process, client.process)) {
    return {};
  }
  return MakeError(ErrorCode::kWrongState, "memory_in_use",
                   fmt::format("process {} owns it", kept.owner->process.pid));
}

Status KeptMemories::CheckLimits(const KeptMemoryClient& client, const wire::KeepMemory& request,
                                 const Kept* replaced) const {
  uint64_t total = request.bytes + request.table_bytes;
  uint32_t of_tenant = 1;
  for (const auto& [key, kept] : kept_) {
    if (&kept == replaced) continue;
    total += kept.bytes + kept.table_bytes;
    if (key.first == client.tenant) ++of_tenant;
  }
  if (of_tenant > wire::kMaxKeptMemories) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_kept_memories",
                     fmt::format("{} are allowed", wire::kMaxKeptMemories));
  }
  const uint64_t max_bytes = env_.config->kept_memory.max_bytes;
  if (max_bytes == 0 || total <= max_bytes) return {};
  return MakeError(ErrorCode::kLimitExceeded, "kept_bytes",
                   fmt::format("{} with this, {} are allowed", FormatByteSize(total),
                               FormatByteSize(max_bytes)));
}

Status KeptMemories::CheckDevice(const wire::KeepMemory& request) const {
  if (request.memory != wire::RegionMemory::kVmm) return {};
  const auto& devices = env_.devices->devices;
  if (request.device < devices.size() && devices[request.device].kind == wire::DeviceKind::kCuda) {
    return {};
  }
  return MakeError(ErrorCode::kNotFound, "unknown_device",
                   fmt::format("{} is no GPU of this daemon; its pool.device says which it serves",
                               request.device));
}

Result<std::shared_ptr<const KeptMemories::Owner>> KeptMemories::OwnerOf(
    const KeptMemoryClient& client) {
  for (const auto& [key, kept] : kept_) {
    if (kept.owner && kept.owner->session == client.session) return kept.owner;
  }
  // The session's own descriptor goes with the session.
  UniqueFd pidfd = Duplicate(client.process.pidfd);
  if (!pidfd.valid()) {
    return MakeError(ErrorCode::kResourceExhausted, "descriptors", "the process is not watched");
  }
  return std::make_shared<const Owner>(
      client.session,
      Peer{client.process.pid, client.process.uid, client.process.gid, std::move(pidfd)},
      &watched_);
}

Status KeptMemories::Keep(const KeptMemoryClient& client, const wire::KeepMemory& request,
                          UniqueFd memory, UniqueFd table) {
  // First, so that every way out of here closes them where closing may block.
  DescriptorCloser* const closer = env_.closer;
  const auto descriptors = std::make_shared<const Descriptors>(Descriptors{
      {std::move(memory), closer, client.tenant}, {std::move(table), closer, client.tenant}});
  const auto checked = [&]() -> Result<std::shared_ptr<const Owner>> {
    KVT_RETURN_IF_ERROR(CheckDevice(request));
    if (request.memory == wire::RegionMemory::kSharedMemory) {
      KVT_RETURN_IF_ERROR(CheckFile(descriptors->memory, request.bytes, "memory"));
    } else if (descriptors->memory.get() < 0) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_memory", "it is no memory of a GPU");
    }
    KVT_RETURN_IF_ERROR(CheckFile(descriptors->table, request.table_bytes, "table"));
    const auto found = kept_.find({client.tenant, request.name});
    if (found != kept_.end()) KVT_RETURN_IF_ERROR(CheckOwner(found->second, client));
    KVT_RETURN_IF_ERROR(
        CheckLimits(client, request, found == kept_.end() ? nullptr : &found->second));
    return OwnerOf(client);
  }();
  if (!checked) {
    ++counters_.refused;
    return tl::unexpected(checked.error());
  }
  // Only memory that waits for an owner is lost by this. An owner's memory under the name is the
  // same memory, or its own affair.
  const auto replaced = kept_.find({client.tenant, request.name});
  if (replaced != kept_.end() && !replaced->second.owner) {
    GiveBack(replaced, "kept_memory.released", "other memory takes its place", &counters_.released);
  }
  ++counters_.kept;
  kept_.insert_or_assign({client.tenant, request.name}, Kept{.memory = request.memory,
                                                             .device = request.device,
                                                             .bytes = request.bytes,
                                                             .table_bytes = request.table_bytes,
                                                             .descriptors = descriptors,
                                                             .owner = *checked});
  env_.log->Info("kept_memory.kept", "{} of pid {}, tenant {}, under the name {}",
                 FormatByteSize(request.bytes), client.process.pid, client.tenant,
                 ShortName(request.name));
  return {};
}

Result<KeptMemories::Taken> KeptMemories::Take(const KeptMemoryClient& client,
                                               const wire::TakeMemory& request) {
  const auto found = kept_.find({client.tenant, request.name});
  if (found == kept_.end()) return Taken{};
  Kept& kept = found->second;
  Taken taken{{.found = true,
               .memory = kept.memory,
               .device = kept.device,
               .bytes = request.table_only ? 0 : kept.bytes,
               .table_bytes = kept.table_bytes},
              kept.descriptors};
  if (request.table_only) return taken;
  const Status allowed = CheckOwner(kept, client);
  const auto owner = allowed ? OwnerOf(client) : tl::unexpected(allowed.error());
  if (!owner) {
    ++counters_.refused;
    return tl::unexpected(owner.error());
  }
  if (!kept.owner) {
    ++counters_.adopted;
    env_.log->Info("kept_memory.adopted", "{} under the name {}: pid {} has it after {} ms",
                   FormatByteSize(kept.bytes), ShortName(request.name), client.process.pid,
                   env_.clock->MonotonicMs() - kept.waits_since_ms);
  }
  kept.owner = *owner;
  return taken;
}

UniqueFd KeptMemories::TableOf(const KeptMemoryClient& client,
                               const wire::KeptMemoryName& name) const {
  const auto found = kept_.find({client.tenant, name});
  const bool is_owner =
      found != kept_.end() && found->second.owner && CheckOwner(found->second, client).has_value();
  if (!is_owner) return UniqueFd();
  return UniqueFd(::fcntl(found->second.descriptors->table.get(), F_DUPFD_CLOEXEC, 0));
}

// Host memory is on the devices that are host memory themselves.
bool KeptMemories::IsOn(const Kept& kept, uint32_t device) const {
  if (device == wire::ReleaseMemory::kAnyDevice) return true;
  if (kept.memory == wire::RegionMemory::kVmm) return kept.device == device;
  const auto& devices = env_.devices->devices;
  return device < devices.size() && devices[device].kind == wire::DeviceKind::kHost;
}

Result<wire::ReleaseMemoryReply> KeptMemories::Release(const KeptMemoryClient& client,
                                                       const wire::ReleaseMemory& request) {
  wire::ReleaseMemoryReply reply;
  for (auto place = kept_.begin(); place != kept_.end();) {
    const Kept& kept = place->second;
    const bool named = request.name && place->first.second == *request.name;
    const bool swept = !request.name && !kept.owner && IsOn(kept, request.device);
    if (place->first.first != client.tenant || (!named && !swept)) {
      ++place;
      continue;
    }
    if (named) KVT_RETURN_IF_ERROR(CheckOwner(kept, client));
    ++reply.released;
    reply.released_bytes += kept.bytes;
    place = GiveBack(place, "kept_memory.released", "released by a client", &counters_.released);
  }
  return reply;
}

wire::ReleaseMemoryReply KeptMemories::ReleaseAll(bool owned) {
  wire::ReleaseMemoryReply reply;
  for (auto place = kept_.begin(); place != kept_.end();) {
    if (place->second.owner && !owned) {
      ++place;
      continue;
    }
    ++reply.released;
    reply.released_bytes += place->second.bytes;
    place =
        GiveBack(place, "kept_memory.released", "released by the operator", &counters_.released);
  }
  return reply;
}

void KeptMemories::OnSessionEnded(SessionId session) {
  const auto owned = std::ranges::find_if(kept_, [&](const auto& item) {
    return item.second.owner && item.second.owner->session == session;
  });
  if (owned == kept_.end()) return;
  const Peer& process = owned->second.owner->process;
  UniqueFd pidfd = Duplicate(process.pidfd);
  if (pidfd.valid()) {
    return watched_.Add(session, {process.pid, process.uid, process.gid, std::move(pidfd)});
  }
  // When the process stops writing cannot be known, so that no other may have the memory.
  for (auto place = kept_.begin(); place != kept_.end();) {
    const bool is_owned = place->second.owner && place->second.owner->session == session;
    place = is_owned ? GiveBack(place, "kept_memory.released", "its process cannot be watched",
                                &counters_.released)
                     : std::next(place);
  }
}

// Another session of the process may have become the owner since: then its end is waited for.
void KeptMemories::OnProcessEnded(SessionId session) {
  for (auto& [key, kept] : kept_) {
    if (!kept.owner || kept.owner->session != session) continue;
    env_.log->Info("kept_memory.waits", "{} under the name {}: pid {} has ended",
                   FormatByteSize(kept.bytes), ShortName(key.second), kept.owner->process.pid);
    kept.owner.reset();
    kept.waits_since_ms = env_.clock->MonotonicMs();
  }
  Tick();
}

void KeptMemories::Tick() {
  const int64_t since_ms = env_.clock->MonotonicMs() - env_.config->kept_memory.keep_for_ms;
  for (auto place = kept_.begin(); place != kept_.end();) {
    const bool expired = !place->second.owner && place->second.waits_since_ms <= since_ms;
    place = expired
                ? GiveBack(place, "kept_memory.expired", "not taken in time", &counters_.expired)
                : std::next(place);
  }
}

KeptMemories::Place KeptMemories::GiveBack(Place place, const char* id, const char* why,
                                           uint64_t* counter) {
  ++*counter;
  env_.log->Info(id, "{} of tenant {} under the name {}: {}", FormatByteSize(place->second.bytes),
                 place->first.first, ShortName(place->first.second), why);
  return kept_.erase(place);
}

std::vector<KeptMemories::Entry> KeptMemories::entries() const {
  std::vector<Entry> entries;
  const int64_t now_ms = env_.clock->MonotonicMs();
  for (const auto& [key, kept] : kept_) {
    entries.push_back({.tenant = key.first,
                       .name = key.second,
                       .memory = kept.memory,
                       .device = kept.device,
                       .bytes = kept.bytes,
                       .owner_pid = kept.owner ? kept.owner->process.pid : 0,
                       .waiting = !kept.owner,
                       .waiting_ms = kept.owner ? 0 : now_ms - kept.waits_since_ms});
  }
  return entries;
}

}  // namespace kvtier
