// SPDX-License-Identifier: Apache-2.0
// How the handlers of one session answer its requests: within the call, in steps, or from a later
// event.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "base/ids.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/net/connection.h"
#include "daemon/runtime/log.h"
#include "daemon/session/request_trace.h"
#include "protocol/message_type.h"
#include "protocol/session_messages.h"

namespace kvtier {

// The request that is being answered. Request id 0 means that the client expects no answer to
// match; `want_reply` asks for an answer where success is otherwise silent.
struct Call {
  uint64_t request_id = 0;
  bool want_reply = false;
};

// A request that names many items is worked on in steps, as large as the turn at the loop allows,
// and its reply grows with them.
template <typename ItemType, typename ReplyMessage>
struct Steps {
  using Item = ItemType;

  Call call;
  PoolId pool;
  std::span<const Item> items;  // those of the frame, which is valid during the call, or `kept`
  ReplyMessage reply;
  uint32_t done = 0;
  std::vector<Item> kept;
};

// Event loop only. One object belongs to one session, whose handlers share it. It queues on the
// session's connection and records each request's end; after the session has ended, it sends
// nothing.
class Replies {
 public:
  // Everything is borrowed and outlives this. `tracer` may be null: nothing is recorded.
  Replies(SessionId session, Connection* connection, Log* log, ServerCounters* counters,
          Tracer* tracer)
      : session_(session),
        connection_(*connection),
        log_(*log),
        counters_(*counters),
        trace_(tracer, session) {}

  [[nodiscard]] Connection& connection() { return connection_; }
  [[nodiscard]] RequestTrace& trace() { return trace_; }
  // Answers that come from now on are dropped.
  void NoteEnd() { ended_ = true; }
  [[nodiscard]] bool ended() const { return ended_; }

  template <typename Message>
  void Send(const Call& call, const Message& message) {
    if (!ended_) connection_.Send(call.request_id, message);
  }
  // Answers with an ERROR. One that answers no request ends the session.
  void Refuse(const Call& call, const Error& error);
  // Counts an item that was refused while its request goes on.
  void CountRefusal(const Error& error) { counters_.CountRefusal(error); }
  // The request is answered, from an event of its own: its trace ends.
  void End(wire::MessageType type, const Call& call) {
    trace_.End(type, call.request_id, /*failed=*/false);
  }
  // Such a request has failed.
  void Fail(wire::MessageType type, const Call& call, const Error& error);

  // Does what a request asks for once `when` has called back, which may be within this call; the
  // client's next request waits for that. Errors: those of `when` and of the work, within this call
  // or as the reply.
  [[nodiscard]] Status After(const std::function<void(std::function<void(Status)>)>& when,
                             wire::MessageType type, const Call& call,
                             std::function<Status()> work);

  // Takes the first step, and sees to it that the others follow. Each call of `some` works on the
  // next items and returns whether there are more; if not, it has answered. `some` may be called
  // for as long as the connection is open.
  template <typename SomeSteps>
  void WorkInSteps(SomeSteps first, std::function<bool(SomeSteps*)> some) {
    if (!some(&first)) return;
    // The frame is only valid during the call, so that what remains is copied. This happens only to
    // requests that are too long for one turn.
    const auto steps = std::make_shared<SomeSteps>(std::move(first));
    steps->kept.assign(steps->items.begin(), steps->items.end());
    steps->items = steps->kept;
    connection_.WorkInSteps([steps, some = std::move(some)] { return some(steps.get()); });
  }
  // The items that the next step works on, `done` of them being done; pays for them. As many as the
  // turn's budget, which is never 0, so that every step makes progress.
  template <typename Item>
  [[nodiscard]] std::span<const Item> NextItems(std::span<const Item> items, size_t done) {
    const std::span<const Item> part =
        items.subspan(done, std::min<size_t>(items.size() - done, connection_.budget()));
    connection_.Spend(part.size());
    return part;
  }
  // Likewise, for requests that begin at the end: the last `done` items are.
  template <typename Item>
  [[nodiscard]] std::span<const Item> LastItems(std::span<const Item> items, size_t done) {
    const std::span<const Item> rest = items.first(items.size() - done);
    const std::span<const Item> part =
        rest.last(std::min<size_t>(rest.size(), connection_.budget()));
    connection_.Spend(part.size());
    return part;
  }

 private:
  const SessionId session_;
  Connection& connection_;
  Log& log_;
  ServerCounters& counters_;
  RequestTrace trace_;
  bool ended_ = false;
  Gate gate_;
};

// A request that names no block is a client's mistake; answering it with nothing would hide that.
[[nodiscard]] Error EmptyRequest();
// Errors: kLimitExceeded with `reason` if one call may not name so many.
[[nodiscard]] Status CheckCount(const ServerConfig& config, size_t count, const char* reason);
// Errors: kInvalidArgument "empty_request"; kLimitExceeded "too_many_hashes".
[[nodiscard]] Status CheckHashes(const ServerConfig& config, std::span<const BlockHash> hashes);

}  // namespace kvtier
