// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/admin_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>

#include "daemon/net/peer.h"
#include "protocol/session_messages.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

constexpr mode_t kAdminSocketMode = 0600;
// Admin connections share the loop as one tenant, whose name no configured tenant can have: an
// administrator gets a turn among tenants even when clients flood the daemon.
constexpr const char* kTurnsOfAdmins = "";
// A long listing and some progress may be queued. The time-out is longer than a client's, because a
// person may have paused the terminal.
constexpr ConnectionLimits kLimits = {.max_frame_bytes = wire::kMaxAdminRequestFrameBytes,
                                      .max_outbound_bytes = wire::kMaxAdminReplyFrameBytes,
                                      .slow_reader_timeout_ms = 30'000};

}  // namespace

// One admin connection. Event loop only; owned by AdminServer, and outlived by its calls.
class AdminSession final : public ConnectionListener {
 public:
  AdminSession(Network* network, Log* log, const AdminServer::Serve* serve, UniqueFd socket,
               std::function<void(AdminSession*)> on_ended)
      : log_(log),
        serve_(*serve),
        on_ended_(std::move(on_ended)),
        connection_(network, kTurnsOfAdmins, std::move(socket), kLimits, this) {}

  void Start() { connection_.Start(); }
  [[nodiscard]] Connection& connection() { return connection_; }

  void OnFrame(const wire::Frame& frame) override {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kAdminRequest)) {
      return connection_.CloseWith(
          {ErrorCode::kUnsupported, "unknown_message",
           fmt::format("message type {} is not one for the admin socket", frame.type)});
    }
    const Result<wire::AdminRequest> request = wire::Decode<wire::AdminRequest>(frame.payload);
    if (!request) return connection_.CloseWith(request.error());
    if (++calls_ == kMaxAdminCalls) connection_.Pause();
    log_->Debug("admin.request", "{}", request->json);
    serve_(request->json, std::make_shared<Call>(this, frame.request_id));
  }

  void OnClosed(const Error&) override {
    // From now on nothing is answered, and operations find out that they are cancelled.
    gate_.Close();
    on_ended_(this);
  }

 private:
  // Outlives the session if the operation does.
  class Call final : public AdminCall {
   public:
    Call(AdminSession* session, uint64_t request_id)
        : session_(session), pass_(session->gate_.MakePass()), request_id_(request_id) {}

    void Progress(std::string json) override {
      // A report that has to wait for the reader is out of date when it is read.
      if (cancelled() || session_->connection_.congested()) return;
      session_->connection_.Send(request_id_, wire::AdminProgress{std::move(json)});
    }
    void Reply(std::string json) override {
      // The client would refuse a longer frame and lose the connection with it; an error tells the
      // reason.
      if (json.size() > wire::kMaxAdminReplyTextBytes) {
        return Fail({ErrorCode::kLimitExceeded, "reply_too_long",
                     fmt::format("the reply would have {} bytes", json.size())});
      }
      Answer(wire::AdminReply{std::move(json)});
    }
    void Fail(const Error& error) override { Answer(wire::ErrorReply{error}); }
    [[nodiscard]] bool cancelled() const override { return !pass_.open(); }

   private:
    template <typename Message>
    void Answer(const Message& message) {
      if (cancelled()) return;
      session_->connection_.Send(request_id_, message);
      if (session_->calls_-- == kMaxAdminCalls) session_->connection_.Resume();
    }

    AdminSession* const session_;
    const Gate::Pass pass_;  // while it is open, the session is there
    const uint64_t request_id_;
  };

  Log* const log_;
  const AdminServer::Serve& serve_;  // of the server's, which outlives this
  const std::function<void(AdminSession*)> on_ended_;
  int calls_ = 0;
  Connection connection_;
  Gate gate_;
};

AdminServer::AdminServer(Network* network, Log* log, PeerInspector* peers, Serve serve)
    : SocketServer(network, log), peers_(peers), serve_(std::move(serve)) {}

AdminServer::~AdminServer() { DestroySessions(); }

Status AdminServer::Listen(const std::string& path) {
  return ListenOn(
      path, kAdminSocketMode, [this](UniqueFd* socket) { return AdmitSocket(socket); },
      [this](const Error& refused) {
        log_->Warning("admin.client_refused", "{}", refused.ToString());
      });
}

Status AdminServer::AdmitSocket(UniqueFd* socket) {
  if (session_count() >= kMaxAdminConnections) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_clients",
                     fmt::format("{} are connected, the most allowed", kMaxAdminConnections));
  }
  KVT_ASSIGN_OR_RETURN(const Peer peer, peers_->Inspect(socket->get()));
  if (peer.uid != 0 && peer.uid != ::geteuid()) {
    return MakeError(ErrorCode::kPermissionDenied, "not_admin",
                     fmt::format("user {} is neither root nor the daemon's own", peer.uid));
  }
  Add(std::make_unique<AdminSession>(network_, log_, &serve_, std::move(*socket),
                                     [this](AdminSession* ended) { Remove(ended); }))
      ->Start();
  return {};
}

}  // namespace kvtier
