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

Session::Session(SessionId id, const SessionEnvironment& environment, UniqueFd socket, Peer peer,
                 std::string tenant, std::function<void(Session*)> on_ended)
    : env_(environment),
      client_{.session = id, .tenant = std::move(tenant), .process = std::move(peer)},
      on_ended_(std::move(on_ended)),
      connection_(env_.network, client_.tenant, std::move(socket), LimitsOf(env_.config->server),
                  this),
      hello_timeout_(env_.loop),
      process_(std::in_place, env_.loop, client_.process.pidfd.get()),
      orphaned_(env_.loop) {}

Session::~Session() = default;

void Session::Start() {
  hello_timeout_.Start(env_.config->server.hello_timeout_ms, [this] {
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
  return {client_.session,     client_.tenant,      client_.name,
          client_.process.pid, client_.process.uid, handlers_ ? handlers_->pools().held() : 0};
}

void Session::OnFrame(const wire::Frame& frame) {
  ++env_.counters->requests;
  if (handlers_) {
    handlers_->Dispatch(frame);
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

  hello_timeout_.Cancel();
  client_.name = hello->client_name;
  if (env_.pools_are_kept) client_.secret = RandomSecret();
  ++env_.counters->sessions;
  handlers_ = std::make_unique<RequestHandlers>(env_, &client_, &connection_, *counters);
  env_.log->Info("session.opened", "session {} of tenant {}: \"{}\", pid {}, uid {}",
                 client_.session.value, client_.tenant, client_.name, client_.process.pid,
                 client_.process.uid);
  const ServerConfig& config = env_.config->server;
  connection_.AcceptDescriptors();
  // From here on the client may send requests of the full length.
  connection_.SetMaxFrameBytes(wire::kMaxFrameBytes);
  const wire::HelloReply reply{
      .minor = *minor,
      .session = client_.session,
      .daemon_generation = env_.daemon_generation,
      .max_frame_bytes = wire::kMaxFrameBytes,
      .max_hashes = config.max_hashes_per_call,
      .max_blocks = config.max_hashes_per_call,
      .max_references = env_.config->cache.max_references_per_session,
      .tenant = client_.tenant,
      .secret = client_.secret,
  };
  connection_.SendWithDescriptors(frame.request_id, reply, {(*counters)->fd()}, *counters);
}

// A client that sees its session end uses the memory that it has lent for other things: it must not
// see that before the last copy there has landed.
void Session::OnEnding(std::function<void()> end) {
  handlers_ ? handlers_->EndTransfers(std::move(end)) : end();
}

// The process watch goes before the server takes the pidfd for the quarantine.
void Session::OnClosed(const Error& why) {
  hello_timeout_.Cancel();
  orphaned_.Cancel();
  process_.reset();
  if (handlers_) handlers_->EndSession();
  if (IsOrderlyEnd(why)) {
    const std::string how =
        why.reason == std::string_view("peer_closed") ? "the client has closed it" : why.ToString();
    env_.log->Info("session.closed", "session {}: {}", id().value, how);
  } else {
    env_.counters->CountRefusal(why);
    env_.log->Warning("session.cut", "session {} of \"{}\", pid {}, uid {}: {}", id().value,
                      client_.name, client_.process.pid, client_.process.uid, why.ToString());
  }
  on_ended_(this);
}

}  // namespace kvtier
