// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_service.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <iterator>
#include <utility>

#include "daemon/events/event_peer.h"

namespace kvtier {
namespace {

// Events of as many milliseconds share a batch.
constexpr int64_t kCollectMs = 5;
constexpr int64_t kHandshakeTimeoutMs = 10'000;
// The mode of a socket's file: routers run as the daemon's user, or as root.
constexpr mode_t kSocketMode = 0600;

EventsConfig WithPod(EventsConfig config) {
  if (!config.pod.empty()) return config;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) config.pod = name.data();
  return config;
}

// The process behind a Unix socket, or the owner of the address behind TCP.
std::string OwnerOfPeer(int socket, const EventService::OwnerOf& owner_of) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  std::array<char, NI_MAXHOST> text{};
  if (address.ss_family != AF_UNIX &&
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, text.data(), text.size(),
                    nullptr, 0, NI_NUMERICHOST) == 0) {
    return owner_of(text.data());
  }
  ucred process{};
  socklen_t process_bytes = sizeof(process);
  (void)::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &process, &process_bytes);
  return fmt::format("pid {}", process.pid);
}

}  // namespace

EventService::EventService(const EventsConfig& config, EventLoop* loop, const Clock* clock,
                           Log* log, EventStream::NameOf name_of, OwnerOf owner_of)
    : config_(WithPod(config)),
      loop_(loop),
      clock_(*clock),
      log_(log),
      soon_(loop),
      stream_(config_, clock, std::move(name_of), [this] { WorkSoon(); }),
      owner_of_(std::move(owner_of)),
      turns_(loop),
      subscribers_{.role = EventPeerRole::kSubscriber},
      replays_{.role = EventPeerRole::kReplay} {}

EventService::~EventService() = default;

Status EventService::Listen(const Cache* cache) {
  stream_.SetCache(cache);
  KVT_RETURN_IF_ERROR(Open(config_.endpoint, &subscribers_));
  if (!config_.replay_endpoint.empty()) {
    KVT_RETURN_IF_ERROR(Open(config_.replay_endpoint, &replays_));
  }
  listening_ = true;
  log_->Info("events.listening", "{} for routers{}{}", subscribers_.endpoint,
             replays_.endpoint.empty() ? "" : ", replays on ", replays_.endpoint);
  return {};
}

Status EventService::Open(const std::string& endpoint, Socket* socket) {
  // CheckConfig has seen whether other machines may subscribe.
  KVT_ASSIGN_OR_RETURN(const EventEndpoint parsed,
                       ParseEventEndpoint(endpoint, /*beyond_loopback=*/true));
  auto accepted = [this, socket](UniqueFd connection) { Accept(socket, std::move(connection)); };
  socket->endpoint = endpoint;
  if (!parsed.path.empty()) {
    KVT_ASSIGN_OR_RETURN(socket->acceptor,
                         Acceptor::Listen(loop_, log_, parsed.path, kSocketMode,
                                          /*descriptors=*/false, std::move(accepted)));
    return {};
  }
  KVT_ASSIGN_OR_RETURN(socket->acceptor,
                       Acceptor::ListenOnPort(loop_, log_, parsed.address, std::move(accepted)));
  if (parsed.address.port == 0) {
    socket->endpoint =
        fmt::format("{}{}", endpoint.substr(0, endpoint.rfind(':') + 1), socket->acceptor->port());
  }
  return {};
}

void EventService::Accept(Socket* socket, UniqueFd connection) {
  std::string owner = OwnerOfPeer(connection.get(), owner_of_);
  if (socket->peers.size() >= kMaxPeers) {
    ++counters_.refused;
    if (!MakeRoom(socket, owner)) return;
  }
  const EventPeer::Environment environment{
      .loop = loop_,
      .turns = &turns_,
      .owner = owner,
      .clock = &clock_,
      .stream = &stream_,
      .counters = &counters_,
      .may_snapshot = [this, owner] { return snapshots_.Take(owner, clock_.MonotonicMs()); }};
  socket->peers.push_back(
      {std::make_unique<EventPeer>(environment, socket->role, std::move(connection),
                                   [this] { RemoveEnded(); }),
       std::move(owner), clock_.MonotonicMs()});
  socket->peers.back().peer->Start();
}

// So an owner's connections that come and go take no place from routers of others, nor from those
// of its own that have been there for longer.
bool EventService::MakeRoom(Socket* socket, const std::string& owner) {
  const int64_t now_ms = clock_.MonotonicMs();
  std::map<std::string_view, size_t> connections;
  for (const Connected& each : socket->peers) ++connections[each.owner];
  const bool has_share = connections[owner] >= kShare;
  // The list is in the order of age.
  std::list<Connected>& peers = socket->peers;
  const auto first = [&](const auto& may_go) {
    return std::ranges::find_if(peers, [&](const Connected& each) {
      return (!has_share || each.owner == owner) && may_go(*each.peer);
    });
  };
  auto goes =
      first([](const EventPeer& peer) { return peer.over() || !peer.ready() || peer.idle(); });
  if (goes == peers.end()) {
    goes = first([now_ms](const EventPeer& peer) {
      const std::optional<int64_t> since_ms = peer.unread_since_ms();
      return since_ms && now_ms - *since_ms > kUnreadMs;
    });
  }
  if (goes == peers.end() && !has_share) {
    const auto youngest = std::find_if(peers.rbegin(), peers.rend(), [&](const Connected& each) {
      return connections[each.owner] > kShare;
    });
    if (youngest != peers.rend()) goes = std::prev(youngest.base());
  }
  if (goes == peers.end()) return false;
  peers.erase(goes);
  return true;
}

// In an event of its own, because the peer that says so is still on the stack.
void EventService::RemoveEnded() {
  if (std::exchange(removing_, true)) return;
  loop_->Post(gate_.WhileOpen([this] {
    removing_ = false;
    for (Socket* const socket : {&subscribers_, &replays_}) {
      std::erase_if(socket->peers, [](const Connected& each) { return each.peer->over(); });
    }
  }));
}

void EventService::WorkSoon() {
  if (listening_ && !soon_.running()) soon_.Start(kCollectMs, [this] { Work(); });
}

void EventService::Work() {
  const bool more = stream_.Work();
  for (const Socket* const socket : {&subscribers_, &replays_}) {
    for (const Connected& each : socket->peers) each.peer->Pump();
  }
  if (more) soon_.Start(0, [this] { Work(); });
}

void EventService::Tick() {
  const int64_t now_ms = clock_.MonotonicMs();
  for (const Socket* const socket : {&subscribers_, &replays_}) {
    for (const Connected& each : socket->peers) {
      if (!each.peer->ready() && now_ms - each.since_ms > kHandshakeTimeoutMs) each.peer->End();
    }
  }
  snapshots_.Forget(now_ms);
  Work();
}

EventReport EventService::Report() const {
  EventReport report{.endpoint = subscribers_.endpoint,
                     .replay_endpoint = replays_.endpoint,
                     .stream = stream_.counters(),
                     .peers = counters_,
                     .next_sequence = stream_.ring().next()};
  for (const Connected& each : subscribers_.peers) report.subscribers += each.peer->subscribed();
  return report;
}

}  // namespace kvtier
