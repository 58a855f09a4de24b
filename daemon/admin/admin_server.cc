// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/admin_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "protocol/session_messages.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

constexpr mode_t kAdminSocketMode = 0600;
// A long listing and some progress.
constexpr ConnectionLimits kLimits = {.max_frame_bytes = wire::kMaxAdminRequestFrameBytes,
                                      .max_outbound_bytes = wire::kMaxAdminReplyFrameBytes,
                                      .slow_reader_timeout_ms = 30'000};

}  // namespace

class AdminServer::Session final : public ConnectionListener,
                                   public std::enable_shared_from_this<Session> {
 public:
  Session(AdminServer* server, UniqueFd socket)
      : server_(server), connection_(server->loop_, std::move(socket), kLimits, this) {}

  void Start() { connection_.Start(); }

  void OnFrame(const wire::Frame& frame) override {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kAdminRequest)) {
      return connection_.CloseWith(
          {ErrorCode::kUnsupported, "unknown_message",
           fmt::format("message type {} is not one for the admin socket", frame.type)});
    }
    const Result<wire::AdminRequest> request = wire::Decode<wire::AdminRequest>(frame.payload);
    if (!request) return connection_.CloseWith(request.error());
    if (++calls_ == kMaxAdminCalls) connection_.Pause();
    server_->log_->Debug("admin.request", "{}", request->json);
    server_->operations_->Start(request->json,
                                std::make_shared<Call>(weak_from_this(), frame.request_id));
  }

  void OnClosed(const Error&) override {
    ended_ = true;
    server_->OnSessionEnded(this);
  }

 private:
  // Outlives the session if it must.
  class Call final : public AdminCall {
   public:
    Call(std::weak_ptr<Session> session, uint64_t request_id)
        : session_(std::move(session)), request_id_(request_id) {}

    void Progress(std::string json) override {
      const std::shared_ptr<Session> session = session_.lock();
      // Progress that nobody reads is not worth keeping.
      if (!session || session->connection_.congested()) return;
      session->connection_.Send(request_id_, wire::AdminProgress{std::move(json)});
    }
    void Reply(std::string json) override {
      if (json.size() > wire::kMaxAdminReplyTextBytes) {
        return Fail({ErrorCode::kLimitExceeded, "reply_too_long",
                     fmt::format("the reply would have {} bytes", json.size())});
      }
      Answer(wire::AdminReply{std::move(json)});
    }
    void Fail(const Error& error) override { Answer(wire::ErrorReply{error}); }
    [[nodiscard]] bool abandoned() const override {
      const std::shared_ptr<Session> session = session_.lock();
      return !session || session->ended_;
    }

   private:
    template <typename Message>
    void Answer(const Message& message) {
      const std::shared_ptr<Session> session = session_.lock();
      if (!session) return;
      session->connection_.Send(request_id_, message);
      if (session->calls_-- == kMaxAdminCalls) session->connection_.Resume();
    }

    const std::weak_ptr<Session> session_;
    const uint64_t request_id_;
  };

  AdminServer* const server_;
  int calls_ = 0;
  bool ended_ = false;
  Connection connection_;
};

AdminServer::AdminServer(EventLoop* loop, Log* log, PeerInspector* peers,
                         AdminOperations* operations)
    : loop_(loop), log_(log), peers_(peers), operations_(operations), bury_(loop) {}

AdminServer::~AdminServer() = default;

Status AdminServer::Listen(const std::string& path) {
  KVT_ASSIGN_OR_RETURN(
      acceptor_, Acceptor::Listen(loop_, log_, path, kAdminSocketMode,
                                  [this](UniqueFd socket) { OnConnection(std::move(socket)); }));
  return {};
}

void AdminServer::OnConnection(UniqueFd socket) {
  if (const Status admitted = Admit(&socket); !admitted) {
    log_->Warning("admin.client_refused", "{}", admitted.error().ToString());
    SendRefusal(socket.get(), admitted.error());
  }
}

Status AdminServer::Admit(UniqueFd* socket) {
  if (sessions_.size() >= kMaxAdminConnections) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_clients",
                     fmt::format("{} are connected, the most allowed", kMaxAdminConnections));
  }
  KVT_ASSIGN_OR_RETURN(const Peer peer, peers_->Inspect(socket->get()));
  if (peer.uid != 0 && peer.uid != ::geteuid()) {
    return MakeError(ErrorCode::kPermissionDenied, "not_admin",
                     fmt::format("user {} is neither root nor the daemon's own", peer.uid));
  }
  sessions_.push_back(std::make_shared<Session>(this, std::move(*socket)));
  sessions_.back()->Start();
  return {};
}

void AdminServer::OnSessionEnded(Session* session) {
  const auto entry = std::ranges::find(sessions_, session, &std::shared_ptr<Session>::get);
  ended_.push_back(std::move(*entry));
  sessions_.erase(entry);
  bury_.Start(0, [this] { ended_.clear(); });
}

}  // namespace kvtier
