// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/session.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

// A request of the longest allowed list of hashes fits a frame; its other fields are far below a
// page.
static_assert(wire::kMaxFrameBytes >= wire::kMaxHashesPerCall * sizeof(BlockHash) + 4096);

// The limits for the time before HELLO. The full frame length is allowed once the client has been
// greeted.
ConnectionLimits LimitsOf(const ServerConfig& config) {
  return {.max_frame_bytes = kMaxHelloFrameBytes,
          .max_outbound_bytes = config.max_outbound_bytes_per_client,
          .slow_reader_timeout_ms = config.slow_reader_timeout_ms};
}

// The time after a process has ended for reading its last messages: a RELEASE or COMMIT that is
// still in the socket's buffer is worth taking.
constexpr int64_t kLastWordsMs = 200;

// Nothing if the kernel has none to give, which happens early in a boot only.
SessionSecret RandomSecret() {
  SessionSecret secret;
  const ssize_t got = ::getrandom(secret.bytes.data(), secret.bytes.size(), GRND_NONBLOCK);
  return got == static_cast<ssize_t>(secret.bytes.size()) ? secret : SessionSecret{};
}

// Clients that disconnect and a daemon that stops are normal; everything else is worth a warning.
bool IsOrderlyEnd(const Error& why) { return why.code == ErrorCode::kUnavailable; }

}  // namespace

Session::Session(SessionId id, const ServiceContext& services, UniqueFd socket, Peer peer,
                 std::string tenant, std::function<void(Session*)> on_ended)
    : id_(id),
      services_(services),
      tenant_(std::move(tenant)),
      on_ended_(std::move(on_ended)),
      peer_(std::move(peer)),
      trace_(services.tracer, id),
      connection_(services.network, tenant_, std::move(socket), LimitsOf(services.config->server),
                  this),
      load_events_(services.loop, &connection_),
      held_stores_(services.loop, services.cache),
      hello_timeout_(services.loop),
      process_(std::in_place, services.loop, peer_.pidfd.get()),
      orphaned_(services.loop) {}

Session::~Session() = default;

void Session::Start() {
  hello_timeout_.Start(services_.config->server.hello_timeout_ms, [this] {
    connection_.CloseWith({ErrorCode::kTimeout, "hello_timeout", "no HELLO came in time"});
  });
  process_->WaitReadable([this] { OnProcessEnded(); });
  connection_.Start();
}

void Session::OnProcessEnded() {
  // Normally the socket ends within this time, and the timer is cancelled. If a child of the
  // process has inherited the socket, it would stay open without an owner, and the session with it.
  orphaned_.Start(kLastWordsMs, [this] {
    connection_.EndWith({ErrorCode::kUnavailable, "process_gone", "its socket lives on"});
  });
}

Session::Summary Session::summary() const {
  return {id_, tenant_, client_name_, peer_.pid, peer_.uid, HeldBlocks()};
}

uint64_t Session::HeldBlocks() const {
  uint64_t held = 0;
  for (const auto& [pool, attached] : pools_) held += attached.held;
  return held;
}

void Session::OnFrame(const wire::Frame& frame) {
  ++services_.counters->requests;
  if (greeted_) {
    Dispatch(frame);
  } else {
    OnHello(frame);
  }
}

// Every failure in here closes the connection: a peer that cannot say HELLO has nothing to gain
// from an answer that it could retry. Nothing is opened in the cache before all checks have passed,
// so that OnClosed needs to close it only for a greeted session.
void Session::OnHello(const wire::Frame& frame) {
  if (frame.type != static_cast<uint16_t>(wire::MessageType::kHello)) {
    return connection_.CloseWith(
        {ErrorCode::kWrongState, "hello_expected",
         fmt::format("the first message was {}", wire::MessageTypeName(frame.type))});
  }
  const Result<wire::Hello> hello = wire::Decode<wire::Hello>(frame.payload);
  if (!hello) return connection_.CloseWith(hello.error());
  const Result<uint16_t> minor = wire::NegotiateMinor(hello->major, hello->minor);
  if (!minor) return connection_.CloseWith(minor.error());
  Result<std::shared_ptr<CounterPage>> counters = CounterPage::Create();
  if (!counters) return connection_.CloseWith(counters.error());
  counters_ = *std::move(counters);

  greeted_ = true;
  hello_timeout_.Cancel();
  client_name_ = hello->client_name;
  if (services_.pools_are_kept) secret_ = RandomSecret();
  ++services_.counters->sessions;
  trace_.SessionBegin();
  services_.cache->OpenSession(
      id_, [this](const LoadProgress& progress) { load_events_.Report(progress); });
  services_.log->Info("session.opened", "session {} of tenant {}: \"{}\", pid {}, uid {}",
                      id_.value, tenant_, client_name_, peer_.pid, peer_.uid);
  const ServerConfig& config = services_.config->server;
  connection_.AcceptDescriptors();
  // From here on the client may send requests of the full length.
  connection_.SetMaxFrameBytes(wire::kMaxFrameBytes);
  const wire::HelloReply reply{
      .minor = *minor,
      .session = id_,
      .daemon_generation = services_.daemon_generation,
      .max_frame_bytes = wire::kMaxFrameBytes,
      .max_hashes = config.max_hashes_per_call,
      .max_blocks = config.max_hashes_per_call,
      .max_references = services_.config->cache.max_references_per_session,
      .tenant = tenant_,
      .secret = secret_,
  };
  connection_.SendWithDescriptors(frame.request_id, reply, {counters_->fd()});
}

// A request without an id has no place for an answer. The client could not learn that it failed and
// would go on with a wrong picture of its blocks, so that the session ends instead.
void Session::Refuse(const Call& call, const Error& error) {
  services_.log->Debug("session.refused", "session {}: {}", id_.value, error.ToString());
  if (call.request_id == 0) return connection_.CloseWith(error);
  services_.counters->CountRefusal(error);
  connection_.Send(call.request_id, wire::ErrorReply{error});
}

// A client that sees its session end uses the memory that it has lent for other things: it must not
// see that before the last copy there has landed.
void Session::OnEnding(std::function<void()> end) {
  if (!greeted_) return end();
  held_stores_.DropAll();
  services_.cache->CloseRegions(id_, gate_.WhileOpen(std::move(end)));
}

// The order matters: jobs are told to stop before the references that protect their blocks are
// dropped, and the process watch goes before the server takes the pidfd for the quarantine.
void Session::OnClosed(const Error& why) {
  ended_ = true;
  CancelAttends();
  held_stores_.DropAll();
  hello_timeout_.Cancel();
  orphaned_.Cancel();
  process_.reset();
  if (greeted_) {
    services_.cache->CloseSession(id_);
    trace_.SessionEnd();
  }
  if (IsOrderlyEnd(why)) {
    const std::string how =
        why.reason == std::string_view("peer_closed") ? "the client has closed it" : why.ToString();
    services_.log->Info("session.closed", "session {}: {}", id_.value, how);
  } else {
    services_.counters->CountRefusal(why);
    services_.log->Warning("session.cut", "session {} of \"{}\", pid {}, uid {}: {}", id_.value,
                           client_name_, peer_.pid, peer_.uid, why.ToString());
  }
  on_ended_(this);
}

}  // namespace kvtier
