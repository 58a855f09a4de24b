// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/request_handlers.h"

#include <fmt/format.h>

#include <utility>

#include "daemon/session/request_trace.h"
#include "protocol/message_type.h"

namespace kvtier {
namespace {

// Requests that spend as they go, because they may name more items than one turn at the loop
// allows.
constexpr bool WorkedInSteps(wire::MessageType message) {
  return message == wire::MessageType::kCommit || message == wire::MessageType::kRelease ||
         message == wire::MessageType::kLookup || message == wire::MessageType::kPrefetch ||
         message == wire::MessageType::kPin || message == wire::MessageType::kHint ||
         message == wire::MessageType::kStore || message == wire::MessageType::kLoad;
}

// Whether the request is answered by an event of its own, where its trace ends as well.
constexpr bool AnsweredLater(wire::MessageType message) {
  return WorkedInSteps(message) || message == wire::MessageType::kAttach ||
         message == wire::MessageType::kAcquire || message == wire::MessageType::kAttend ||
         message == wire::MessageType::kCloseRegion || message == wire::MessageType::kOpenRegion ||
         message == wire::MessageType::kWorkspace;
}

}  // namespace

RequestHandlers::RequestHandlers(const SessionEnvironment& env, const SessionClient* client,
                                 Connection* connection, std::shared_ptr<CounterPage> counters)
    : cache_(*env.cache),
      client_(*client),
      replies_(client->session, connection, env.log, env.counters, env.tracer),
      pool_handler_(client, &pools_, &replies_, env.cache,
                    {.config = env.config,
                     .retries = &env.network->retries,
                     .log = env.log,
                     .models = env.models,
                     .devices = env.devices,
                     .attention = env.attention,
                     .former_clients = env.former_clients,
                     .closer = &env.network->closer}),
      blocks_(client, &pools_, &replies_, env.cache, &env.config->server),
      acquires_(client, &pools_, &replies_, env.cache, env.config, env.loop, counters),
      regions_(client, &pools_, &replies_, env.cache, env.models, env.network, env.kept_memories,
               counters),
      attention_(client, &pools_, &replies_, env.cache, env.attention, env.devices),
      kept_memory_(client, &replies_, env.kept_memories, &env.network->closer) {
  replies_.trace().SessionBegin();
  cache_.OpenSession(client_.session,
                     [this](const LoadProgress& progress) { acquires_.OnLoadProgress(progress); });
}

template <typename Handler, typename Message>
bool RequestHandlers::HandleOne(const wire::Frame& frame, Handler* handler,
                                Status (Handler::*answer)(const Call&, const Message&)) {
  if (frame.type != static_cast<uint16_t>(Message::kType)) return false;
  const Call call{frame.request_id, (frame.flags & wire::kFlagWantReply) != 0};
  const Result<Message> message = wire::Decode<Message>(frame.payload);
  if (!message) {
    replies_.Refuse(call, message.error());
    return true;
  }
  const RequestTrace::Asked asked = RequestTrace::AskedBy(*message);
  // A request that is worked on in steps spends in each of them.
  if (!WorkedInSteps(Message::kType)) {
    replies_.connection().Spend(asked.blocks + asked.new_blocks);
  }
  replies_.trace().Begin(Message::kType, call.request_id, asked);
  const Status answered = (handler->*answer)(call, *message);
  if (!answered) replies_.Fail(Message::kType, call, answered.error());
  if (answered && !AnsweredLater(Message::kType)) replies_.End(Message::kType, call);
  return true;
}

template <typename Handler, typename... Messages>
bool RequestHandlers::Handle(const wire::Frame& frame, Handler* handler,
                             Status (Handler::*... answers)(const Call&, const Messages&)) {
  return (HandleOne(frame, handler, answers) || ...);
}

// Messages that come most often are compared first.
void RequestHandlers::Dispatch(const wire::Frame& frame) {
  const bool handled =
      Handle(frame, &acquires_, &AcquireHandler::OnAcquire, &AcquireHandler::OnLookup) ||
      Handle(frame, &blocks_, &BlockHandler::OnCommit, &BlockHandler::OnRelease,
             &BlockHandler::OnPrefetch, &BlockHandler::OnPin, &BlockHandler::OnHint,
             &BlockHandler::OnTokens) ||
      Handle(frame, &regions_, &RegionHandler::OnStore, &RegionHandler::OnLoad,
             &RegionHandler::OnOpenRegion, &RegionHandler::OnCloseRegion) ||
      Handle(frame, &attention_, &AttentionHandler::OnAttend, &AttentionHandler::OnWorkspace,
             &AttentionHandler::OnWorkspaceClose) ||
      Handle(frame, &pool_handler_, &PoolHandler::OnRegisterModel, &PoolHandler::OnDevices,
             &PoolHandler::OnAttach, &PoolHandler::OnDetach, &PoolHandler::OnResume,
             &PoolHandler::OnStats, &PoolHandler::OnPing) ||
      Handle(frame, &kept_memory_, &KeptMemoryHandler::OnKeepMemory,
             &KeptMemoryHandler::OnTakeMemory, &KeptMemoryHandler::OnReleaseMemory);
  if (handled) return;
  const Call call{frame.request_id, false};
  if (frame.type == static_cast<uint16_t>(wire::MessageType::kHello)) {
    return replies_.Refuse(call,
                           {ErrorCode::kWrongState, "hello_again", "the session is open already"});
  }
  replies_.Refuse(call, {ErrorCode::kUnsupported, "unknown_message",
                         fmt::format("message type {} is not one for this socket", frame.type)});
}

void RequestHandlers::EndTransfers(std::function<void()> end) {
  cache_.CloseRegions(client_.session, gate_.WhileOpen(std::move(end)));
}

void RequestHandlers::EndSession() {
  replies_.NoteEnd();
  attention_.CancelAttends();
  cache_.CloseSession(client_.session);
  replies_.trace().SessionEnd();
}

}  // namespace kvtier
