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
         message == wire::MessageType::kPin || message == wire::MessageType::kStore ||
         message == wire::MessageType::kLoad;
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
                     .loop = env.loop,
                     .clock = env.clock,
                     .log = env.log,
                     .models = env.models,
                     .devices = env.devices,
                     .attention = env.attention,
                     .former_clients = env.former_clients}),
      blocks_(client, &pools_, &replies_, env.cache, &env.config->server),
      acquires_(client, &pools_, &replies_, env.cache, &env.config->server, env.loop, counters),
      regions_(client, &pools_, &replies_, env.cache, env.models, env.network, env.kept_memories,
               counters),
      attention_(client, &pools_, &replies_, env.cache, env.attention, env.devices),
      kept_memory_(client, &replies_, env.kept_memories, &env.network->closer) {
  replies_.trace().SessionBegin();
  cache_.OpenSession(client_.session,
                     [this](const LoadProgress& progress) { acquires_.OnLoadProgress(progress); });
}

template <typename Handler, typename Message>
void RequestHandlers::Handle(const wire::Frame& frame, Handler* handler,
                             Status (Handler::*answer)(const Call&, const Message&)) {
  const Call call{frame.request_id, (frame.flags & wire::kFlagWantReply) != 0};
  const Result<Message> message = wire::Decode<Message>(frame.payload);
  if (!message) return replies_.Refuse(call, message.error());
  const RequestTrace::Asked asked = RequestTrace::AskedBy(*message);
  // A request that is worked on in steps spends in each of them.
  if (!WorkedInSteps(Message::kType)) {
    replies_.connection().Spend(asked.blocks + asked.new_blocks);
  }
  replies_.trace().Begin(Message::kType, call.request_id, asked);
  const Status answered = (handler->*answer)(call, *message);
  if (!answered) replies_.Fail(Message::kType, call, answered.error());
  if (answered && !AnsweredLater(Message::kType)) replies_.End(Message::kType, call);
}

void RequestHandlers::Dispatch(const wire::Frame& frame) {
  if (DispatchToPools(frame) || DispatchToMemory(frame)) return;
  const Call call{frame.request_id, false};
  if (frame.type == static_cast<uint16_t>(wire::MessageType::kHello)) {
    return replies_.Refuse(call,
                           {ErrorCode::kWrongState, "hello_again", "the session is open already"});
  }
  replies_.Refuse(call, {ErrorCode::kUnsupported, "unknown_message",
                         fmt::format("message type {} is not one for this socket", frame.type)});
}

bool RequestHandlers::DispatchToPools(const wire::Frame& frame) {
  using Type = wire::MessageType;
  switch (static_cast<Type>(frame.type)) {
    case Type::kRegisterModel:
      Handle(frame, &pool_handler_, &PoolHandler::OnRegisterModel);
      return true;
    case Type::kDevices:
      Handle(frame, &pool_handler_, &PoolHandler::OnDevices);
      return true;
    case Type::kAttach:
      Handle(frame, &pool_handler_, &PoolHandler::OnAttach);
      return true;
    case Type::kDetach:
      Handle(frame, &pool_handler_, &PoolHandler::OnDetach);
      return true;
    case Type::kResume:
      Handle(frame, &pool_handler_, &PoolHandler::OnResume);
      return true;
    case Type::kStats:
      Handle(frame, &pool_handler_, &PoolHandler::OnStats);
      return true;
    case Type::kAcquire:
      Handle(frame, &acquires_, &AcquireHandler::OnAcquire);
      return true;
    case Type::kLookup:
      Handle(frame, &acquires_, &AcquireHandler::OnLookup);
      return true;
    case Type::kCommit:
      Handle(frame, &blocks_, &BlockHandler::OnCommit);
      return true;
    case Type::kRelease:
      Handle(frame, &blocks_, &BlockHandler::OnRelease);
      return true;
    case Type::kPrefetch:
      Handle(frame, &blocks_, &BlockHandler::OnPrefetch);
      return true;
    case Type::kPin:
      Handle(frame, &blocks_, &BlockHandler::OnPin);
      return true;
    case Type::kHint:
      Handle(frame, &blocks_, &BlockHandler::OnHint);
      return true;
    case Type::kTokens:
      Handle(frame, &blocks_, &BlockHandler::OnTokens);
      return true;
    case Type::kPing:
      Handle(frame, &pool_handler_, &PoolHandler::OnPing);
      return true;
    default:
      return false;
  }
}

bool RequestHandlers::DispatchToMemory(const wire::Frame& frame) {
  using Type = wire::MessageType;
  switch (static_cast<Type>(frame.type)) {
    case Type::kOpenRegion:
      Handle(frame, &regions_, &RegionHandler::OnOpenRegion);
      return true;
    case Type::kCloseRegion:
      Handle(frame, &regions_, &RegionHandler::OnCloseRegion);
      return true;
    case Type::kStore:
      Handle(frame, &regions_, &RegionHandler::OnStore);
      return true;
    case Type::kLoad:
      Handle(frame, &regions_, &RegionHandler::OnLoad);
      return true;
    case Type::kWorkspace:
      Handle(frame, &attention_, &AttentionHandler::OnWorkspace);
      return true;
    case Type::kWorkspaceClose:
      Handle(frame, &attention_, &AttentionHandler::OnWorkspaceClose);
      return true;
    case Type::kAttend:
      Handle(frame, &attention_, &AttentionHandler::OnAttend);
      return true;
    case Type::kKeepMemory:
      Handle(frame, &kept_memory_, &KeptMemoryHandler::OnKeepMemory);
      return true;
    case Type::kTakeMemory:
      Handle(frame, &kept_memory_, &KeptMemoryHandler::OnTakeMemory);
      return true;
    case Type::kReleaseMemory:
      Handle(frame, &kept_memory_, &KeptMemoryHandler::OnReleaseMemory);
      return true;
    default:
      return false;
  }
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
