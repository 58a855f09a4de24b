// SPDX-License-Identifier: Apache-2.0
// The socket for `kvtierctl`: for root and the daemon's own user only.
//
// The file's mode and the kernel's credentials are both checked: a process that may connect here
// can evict and pin the blocks of every tenant and read who runs what.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/admin/admin_operation.h"
#include "daemon/net/socket_server.h"
#include "daemon/runtime/log.h"

namespace kvtier {

inline constexpr size_t kMaxAdminConnections = 16;
// Requests of one connection under way at once; the next is not read before one is answered. With
// the bound on connections this limits the admin socket's cost for the event loop.
inline constexpr int kMaxAdminCalls = 4;

class AdminSession;

// Event loop only.
class AdminServer : public SocketServer<AdminSession> {
 public:
  // Answers a request, given as JSON, by the call.
  using Serve = std::function<void(std::string_view request, std::shared_ptr<AdminCall> call)>;

  // All pointers are borrowed and outlive the server.
  AdminServer(Network* network, Log* log, PeerInspector* peers, Serve serve);
  ~AdminServer();

  // Binds `path`, mode 0600, and begins to serve. Errors: those of Acceptor::Listen.
  [[nodiscard]] Status Listen(const std::string& path);

 private:
  [[nodiscard]] Status AdmitSocket(UniqueFd* socket);

  PeerInspector* const peers_;
  const Serve serve_;
};

}  // namespace kvtier
