// SPDX-License-Identifier: Apache-2.0
// Tells routers which blocks the tiers hold: publishes the events that the cache's sink hears, as
// batches, over the sockets that `[events]` names. docs/EVENTS.md describes them for routers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/gate.h"
#include "base/posix.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/config/endpoints.h"
#include "daemon/events/event_report.h"
#include "daemon/events/event_stream.h"
#include "daemon/net/acceptor.h"
#include "daemon/net/fair_turns.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"

namespace kvtier {

class EventPeer;
enum class EventPeerRole : uint8_t;

// How many snapshots the subscribers of one owner may have: each takes numbers, for which all other
// subscribers read empty batches, so that one who subscribes again and again would keep them busy.
// Event loop only.
class SnapshotShares {
 public:
  // So many at once, which is an owner's share of connections, and then one in this time.
  static constexpr int64_t kAtOnce = 16;
  static constexpr int64_t kEachMs = 1000;

  // Whether the owner may have one more now; counts it then.
  [[nodiscard]] bool Take(const std::string& owner, int64_t now_ms) {
    // Its earlier ones use up the time until then.
    const auto used = used_until_ms_.try_emplace(owner, now_ms).first;
    const int64_t until_ms = std::max(used->second, now_ms) + kEachMs;
    if (until_ms > now_ms + kAtOnce * kEachMs) return false;
    used->second = until_ms;
    return true;
  }
  // Forgets owners that have their whole share again. Call a few times a second.
  void Forget(int64_t now_ms) {
    std::erase_if(used_until_ms_, [now_ms](const auto& owner) { return owner.second <= now_ms; });
  }

 private:
  std::map<std::string, int64_t, std::less<>> used_until_ms_;
};

// Event loop only; the loop and the log are borrowed. It outlives the cache, which it hears before
// Listen and may be asked of after it.
class EventService final : public EventReportSource {
 public:
  // Connections at once, for each of the two sockets. One more takes the place of one that nothing
  // is sent to, or that does not read, or of the youngest of an owner with more than a share; it is
  // closed where there is none. One of an owner that has a share takes none from other owners.
  static constexpr size_t kMaxPeers = 64;
  static constexpr size_t kShare = kMaxPeers / 4;
  // So long without reading, a router gives up its place to another.
  static constexpr int64_t kUnreadMs = 10'000;

  // Tells the owner of connections over TCP from a literal address.
  using OwnerOf = std::function<std::string(const std::string& address)>;

  EventService(const EventsConfig& config, EventLoop* loop, const Clock* clock, Log* log,
               EventStream::NameOf name_of, OwnerOf owner_of);
  ~EventService() override;
  EventService(const EventService&) = delete;
  EventService& operator=(const EventService&) = delete;

  // For the cache's environment.
  [[nodiscard]] BlockEventSink* sink() { return &stream_; }
  // Binds the sockets and begins to publish. `cache` is borrowed. Errors: those of
  // ParseEventEndpoint and of what listens there.
  [[nodiscard]] Status Listen(const Cache* cache);
  // Looks for models that have got their names, and ends connections that never said what they
  // want. Call a few times a second. REQUIRES: listening.
  void Tick();

  [[nodiscard]] EventReport Report() const override;

 private:
  struct Connected {
    std::unique_ptr<EventPeer> peer;
    std::string owner;  // a process of this machine, or that of an address
    int64_t since_ms = 0;
  };
  // One listening socket and those who connected to it.
  struct Socket {
    EventPeerRole role;
    std::string endpoint;
    std::unique_ptr<Acceptor> acceptor;
    std::list<Connected> peers;
  };

  [[nodiscard]] Status Open(const std::string& endpoint, Socket* socket);
  void Accept(Socket* socket, UniqueFd connection);
  // Ends a connection so that another one, of this owner, fits. Returns whether there was one.
  [[nodiscard]] bool MakeRoom(Socket* socket, const std::string& owner);
  void RemoveEnded();
  // Publishes, and has peers send what there is.
  void Work();
  // The same soon.
  void WorkSoon();

  const EventsConfig config_;
  EventLoop* const loop_;
  const Clock& clock_;
  Log* const log_;
  EventPeerCounters counters_;
  Timer soon_;
  EventStream stream_;
  const OwnerOf owner_of_;
  SnapshotShares snapshots_;
  FairTurns turns_;
  Socket subscribers_;
  Socket replays_;
  bool removing_ = false;
  bool listening_ = false;
  // Last, so that no posted event outlives the members that it uses.
  Gate gate_;
};

}  // namespace kvtier
