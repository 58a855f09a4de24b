// SPDX-License-Identifier: Apache-2.0
// A connection as the application sees it: the current session, and how a lost one is replaced.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "client/core/daemon_session.h"
#include "client/core/unix_socket.h"
#include "protocol/messages.h"
#include "protocol/model_record.h"

namespace kvtier::client {

class LinkGroup;

struct ConnectionOptions {
  std::string client_name;
  int64_t connect_timeout_ms = 2000;
  int64_t request_timeout_ms = 5000;
  // The pause after a failed try, doubling up to the maximum. Negative: a lost connection stays
  // lost.
  int64_t reconnect_min_ms = 50;
  int64_t reconnect_max_ms = 2000;
  // How long a call waits for the next daemon if that may have the held blocks; 0: not at all.
  int64_t resume_wait_ms = 3000;
  // Models and pools may be named before the daemon is there for the first time.
  bool wait_for_daemon = false;

  // Errors: kInvalidArgument naming the field.
  [[nodiscard]] Status Validate() const;
};

// Thread-safe.
class Connection {
 public:
  // Does not connect yet. REQUIRES: options passed Validate().
  Connection(std::string socket_path, ConnectionOptions options);

  // The first try. With wait_for_daemon, a missing daemon is no error.
  [[nodiscard]] Status Connect();
  // The current session; a lost one is replaced, if it is time for a try. Never waits for another
  // thread's try. Errors: kUnavailable.
  [[nodiscard]] Result<std::shared_ptr<DaemonSession>> GetSession();
  // As GetSession, but waits for a session until the deadline, and tries as often as that is of
  // use.
  [[nodiscard]] Result<std::shared_ptr<DaemonSession>> WaitForSession(Deadline deadline);
  // Whether the current session stands; takes in the frames that have arrived, never reconnects.
  [[nodiscard]] bool IsConnected();

  // Waits until the daemon has done all that was sent. Errors: kUnavailable, also if the connection
  // was replaced since the last Flush, and what had been sent may be lost; kTimeout.
  [[nodiscard]] Status Flush();

  // The devices of the session's daemon. One round trip. Errors: kUnavailable; kTimeout.
  [[nodiscard]] Result<std::vector<wire::DevicesReply::Device>> DevicesOf(
      DaemonSession& session) const;

  struct Model {
    ModelRecord record;
    ModelFingerprint fingerprint;
    std::vector<wire::RegisterModelReply::Group> groups;  // as the record's
  };
  // Returns the model's number on this connection, the same for equal records. Errors: those of
  // ModelRecord::Validate; the daemon's; kUnavailable, unless wait_for_daemon; kTimeout.
  [[nodiscard]] Result<uint32_t> RegisterModel(ModelRecord record);
  // Errors: kNotFound "unknown_model".
  [[nodiscard]] Result<Model> GetModel(uint32_t model) const;
  // The model's name in `session`, registering it there if that has not been done. Errors: as
  // RegisterModel, GetModel.
  [[nodiscard]] Result<wire::ModelId> ModelIn(const std::shared_ptr<DaemonSession>& session,
                                              uint32_t model);

  // The group of this connection's links to the pool of that generation.
  [[nodiscard]] std::shared_ptr<LinkGroup> LinksTo(uint64_t generation);

  // Whether an error means that there is no daemon, and the application can go on until there is.
  [[nodiscard]] bool MayWait(const Error& error) const {
    return options_.wait_for_daemon && error.code == ErrorCode::kUnavailable;
  }

  [[nodiscard]] Deadline RequestDeadline() const { return DeadlineIn(options_.request_timeout_ms); }
  [[nodiscard]] const ConnectionOptions& options() const { return options_; }
  [[nodiscard]] AsyncErrors& async_errors() { return async_errors_; }

 private:
  // Opens a session; only one thread at a time is in here. Called without mutex_.
  [[nodiscard]] Result<std::shared_ptr<DaemonSession>> TryConnect();
  [[nodiscard]] Result<wire::ModelId> RegisterIn(DaemonSession* session, const Model& model);

  const std::string socket_path_;
  const ConnectionOptions options_;
  AsyncErrors async_errors_;

  mutable std::mutex mutex_;
  std::shared_ptr<DaemonSession> session_;
  bool replaced_since_flush_ = false;
  bool connecting_ = false;
  Deadline next_try_{};
  int64_t pause_ms_ = 0;
  std::string last_failure_;
  std::vector<Model> models_;
  // The numbers in session_ of what stands in models_.
  std::unordered_map<uint32_t, wire::ModelId> wire_models_;
  std::unordered_map<uint64_t, std::weak_ptr<LinkGroup>> link_groups_;  // by generation
};

}  // namespace kvtier::client
