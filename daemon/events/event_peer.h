// SPDX-License-Identifier: Apache-2.0
// One connection of a router: its subscriptions or requests, and the batches that go out to it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/posix.h"
#include "base/result.h"
#include "daemon/events/event_stream.h"
#include "daemon/events/zmtp.h"
#include "daemon/net/fair_turns.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Which batches one router gets next: a snapshot if it needs one, then all that was published
// since, each once and in order. A connection pulls batches as fast as its peer reads, so that a
// slow peer costs no memory: a snapshot makes good the batches that have left the ring meanwhile.
// Event loop only.
class EventFeed {
 public:
  // Begins with a snapshot, behind the last batch published. `stream` and `counters` are borrowed.
  static EventFeed Live(EventStream* stream, EventPeerCounters* counters);
  // Begins with this number, with a snapshot first if the ring no longer has it, or never had. Ends
  // with the last batch that is published when it comes there.
  static EventFeed Replay(EventStream* stream, EventPeerCounters* counters, uint64_t first);

  // The next batch, or nothing: a live feed has more later, a replay is at its end. Parts of
  // a snapshot take time, so that the caller bounds how many it takes in one event.
  [[nodiscard]] std::optional<PublishedBatch> Next();

 private:
  EventFeed(EventStream* stream, EventPeerCounters* counters, uint64_t next)
      : stream_(stream), counters_(counters), next_(next) {}
  void BeginSnapshot(EventStream::Numbers numbers);

  EventStream* stream_;
  EventPeerCounters* counters_;
  uint64_t next_;  // of the ring, behind the snapshot
  std::optional<EventStream::Snapshot> snapshot_;
  std::deque<PublishedBatch> ready_;  // of the snapshot
};

// Whom the socket that a peer connected to is for: subscribers (it is a PUB socket), or those who
// ask for batches that they missed (ROUTER).
enum class EventPeerRole : uint8_t { kSubscriber, kReplay };

// Event loop only. It owns its socket. A peer is not trusted: memory and time that it can make the
// daemon spend are bounded, and a breach of the protocol ends the connection.
class EventPeer {
 public:
  struct Environment {
    EventLoop* loop = nullptr;
    FairTurns* turns = nullptr;  // that all peers take
    std::string owner = {};      // who pays for them
    const Clock* clock = nullptr;
    EventStream* stream = nullptr;
    EventPeerCounters* counters = nullptr;
    // Whether a subscriber may have a snapshot now; takes it into account. Asked again at each turn
    // while it may not.
    std::function<bool()> may_snapshot = {};
  };

  // `ended` is called once, when the connection is over; the peer is then to be destroyed, in a
  // later event.
  EventPeer(const Environment& environment, EventPeerRole role, UniqueFd socket,
            std::function<void()> ended);
  EventPeer(const EventPeer&) = delete;
  EventPeer& operator=(const EventPeer&) = delete;

  // Greets, and goes on by itself. Call once.
  void Start();
  // There may be more to send, which is done in a turn.
  void Pump() { turn_.Ready(); }
  // Greeting and READY have come.
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] bool subscribed() const { return !topics_.empty(); }
  // Nothing is to be sent to it: it has subscribed to nothing, or asked for nothing.
  [[nodiscard]] bool idle() const {
    return role_ == EventPeerRole::kSubscriber ? !subscribed() : !feed_;
  }
  // Since when it has read nothing of what waits for it; none if nothing waits.
  [[nodiscard]] std::optional<int64_t> unread_since_ms() const { return unread_since_ms_; }
  // Ends the connection.
  void End();

 private:
  void WaitForMore();
  void Receive();
  [[nodiscard]] Status HandleAll();
  [[nodiscard]] Status Handle(const ZmtpFrame& frame);
  [[nodiscard]] Status HandleCommand(const ZmtpCommand& command);
  [[nodiscard]] Status HandleReady(std::string_view socket_type);
  [[nodiscard]] Status HandleSubscription(const ZmtpFrame& frame);
  [[nodiscard]] Status HandleRequestPart(const ZmtpFrame& frame);
  [[nodiscard]] Status Subscribe(std::string_view topic);
  // Begins the snapshot that its subscriptions of one event have asked for, if it may have one.
  void BeginAwaited();
  // Returns the price.
  [[nodiscard]] uint32_t TakeTurn(uint32_t quantum);
  // Fills the outbox from the feed in so many steps at most, and counts them; true if there may be
  // more.
  [[nodiscard]] bool Fill(uint32_t most, uint32_t* steps);
  void NextRequest();
  [[nodiscard]] bool Wanted(const std::string& topic) const;
  void Append(std::string_view topic, uint64_t sequence, std::string_view payload);
  void Flush();
  [[nodiscard]] size_t unsent() const { return out_.size() - sent_; }

  const Environment environment_;
  const EventPeerRole role_;
  const UniqueFd socket_;
  const std::function<void()> ended_;
  ZmtpDecoder decoder_;
  bool ready_ = false;
  bool over_ = false;
  std::set<std::string, std::less<>> topics_;  // prefixes
  bool awaits_snapshot_ = false;               // since it subscribed
  size_t request_parts_ = 0;                   // of the request that is coming in
  std::deque<uint64_t> requests_;              // first numbers, not yet begun
  std::optional<EventFeed> feed_;
  std::string out_;
  size_t sent_ = 0;  // of `out_`
  std::optional<int64_t> unread_since_ms_;
  FairTurns::Member turn_;
  FdWatch watch_;
};

}  // namespace kvtier
