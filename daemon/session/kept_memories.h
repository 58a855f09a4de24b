// SPDX-License-Identifier: Apache-2.0
// Memory of engines that outlives them: the daemon holds the descriptors of an engine's KV cache
// and of the table beside it, says which process owns them, and gives them back in time.
//
// While a descriptor of the memory is open anywhere the kernel, or a GPU's driver, keeps it as it
// is; that is all that this rests on. The memory is not mapped here; KeptTableReader reads the
// table.
//
// The owner is the process that kept or took the memory last. Its ownership ends when the process
// has ended and nothing of it remains on a GPU, not with its session: a process that has lost its
// connection still writes to the memory, and keeps it again over the next one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/posix.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/net/descriptor_closer.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/session/quarantine.h"
#include "protocol/kept_memory_messages.h"
#include "protocol/session_messages.h"

namespace kvtier {

// A session that asks, with the facts about its process. Valid during the call.
struct KeptMemoryClient {
  SessionId session;
  const Peer& process;
  const std::string& tenant;
};

// Event loop only. It owns the descriptors; they are closed by the closer, since closing what
// others have made may block. Tenants neither see nor change each other's memory.
class KeptMemories {
 public:
  // Open for as long as this is held: also on their way to a client.
  struct Descriptors {
    ForeignFd memory;
    ForeignFd table;
  };
  struct Taken {
    wire::TakeMemoryReply reply;
    std::shared_ptr<const Descriptors> descriptors;  // null: nothing was found
  };
  // For status and metrics.
  struct Entry {
    std::string tenant;
    wire::KeptMemoryName name{};
    wire::RegionMemory memory = wire::RegionMemory::kSharedMemory;
    uint32_t device = 0;  // of kVmm
    uint64_t bytes = 0;
    int32_t owner_pid = 0;
    bool waiting = false;    // it has no owner
    int64_t waiting_ms = 0;  // since when
  };
  // Since the start of the process; they never go down.
  struct Counters {
    uint64_t kept = 0;
    uint64_t adopted = 0;  // taken by a process after the owner's end
    uint64_t expired = 0;
    uint64_t released = 0;  // on request, replaced, or because its owner could not be watched
    uint64_t refused = 0;
  };

  // Everything is borrowed and outlives this.
  struct Environment {
    const Config* config = nullptr;  // in effect
    EventLoop* loop = nullptr;
    const Clock* clock = nullptr;
    Log* log = nullptr;
    DescriptorCloser* closer = nullptr;
    const wire::DevicesReply* devices = nullptr;
    Quarantine::KernelsRemain kernels_remain = {};
  };
  explicit KeptMemories(Environment environment);

  // Makes the client's process the owner of the memory that the descriptors name. Errors:
  // kInvalidArgument "bad_memory" (no memory file, or smaller than said; a GPU's memory is
  // believed); kNotFound "unknown_device"; kWrongState "memory_in_use" (a living process other than
  // this one owns the name); kLimitExceeded "too_many_kept_memories", "kept_bytes";
  // kResourceExhausted "descriptors" (the process cannot be watched).
  [[nodiscard]] Status Keep(const KeptMemoryClient& client, const wire::KeepMemory& request,
                            UniqueFd memory, UniqueFd table);
  // Errors, none of a request for the table alone: kWrongState "memory_in_use", as of Keep;
  // kResourceExhausted "descriptors".
  [[nodiscard]] Result<Taken> Take(const KeptMemoryClient& client, const wire::TakeMemory& request);
  // Another descriptor of the table of this name if the client's process owns it, else none.
  [[nodiscard]] UniqueFd TableOf(const KeptMemoryClient& client,
                                 const wire::KeptMemoryName& name) const;
  // Errors: kWrongState "memory_in_use".
  [[nodiscard]] Result<wire::ReleaseMemoryReply> Release(const KeptMemoryClient& client,
                                                         const wire::ReleaseMemory& request);
  // The same for all tenants: memory without an owner, with `owned` everything. An engine that
  // still runs goes on with its memory, which is then no longer kept.
  wire::ReleaseMemoryReply ReleaseAll(bool owned);

  // From here on the process's end is waited for. Adds nothing if the session owns nothing.
  void OnSessionEnded(SessionId session);
  // Gives back memory that has waited too long. To be called now and then.
  void Tick();

  [[nodiscard]] std::vector<Entry> entries() const;
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  // A process as the latest of its sessions that owns something; shared by all that this session
  // owns. Once it owns nothing, its process's end is not waited for any more.
  struct Owner {
    Owner(SessionId id, Peer peer, Quarantine* watched)
        : session(id), process(std::move(peer)), watched_by(watched) {}
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ~Owner() { watched_by->Forget(session); }

    const SessionId session;
    const Peer process;
    Quarantine* const watched_by;
  };
  struct Kept {
    wire::RegionMemory memory = wire::RegionMemory::kSharedMemory;
    uint32_t device = 0;
    uint64_t bytes = 0;
    uint64_t table_bytes = 0;
    std::shared_ptr<const Descriptors> descriptors;
    std::shared_ptr<const Owner> owner;  // null: it waits for one
    int64_t waits_since_ms = 0;
  };
  // The tenant, and the name.
  using Key = std::pair<std::string, wire::KeptMemoryName>;
  using Place = std::map<Key, Kept>::iterator;

  [[nodiscard]] static Status CheckOwner(const Kept& kept, const KeptMemoryClient& client);
  [[nodiscard]] Status CheckLimits(const KeptMemoryClient& client, const wire::KeepMemory& request,
                                   const Kept* replaced) const;
  [[nodiscard]] Status CheckDevice(const wire::KeepMemory& request) const;
  // Errors: kResourceExhausted "descriptors": the process could not be watched.
  [[nodiscard]] Result<std::shared_ptr<const Owner>> OwnerOf(const KeptMemoryClient& client);
  [[nodiscard]] bool IsOn(const Kept& kept, uint32_t device) const;
  // The process of the session has ended, and nothing of it remains.
  void OnProcessEnded(SessionId session);
  Place GiveBack(Place place, const char* id, const char* why, uint64_t* counter);

  const Environment env_;
  Counters counters_;
  // Owners whose sessions have ended. Owners tell it of their end, so that it outlives `kept_`.
  Quarantine watched_;
  std::map<Key, Kept> kept_;
};

}  // namespace kvtier
