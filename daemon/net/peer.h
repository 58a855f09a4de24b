// SPDX-License-Identifier: Apache-2.0
// The process at the other end of a Unix socket, as the kernel tells it.
//
// Nothing here is told by the peer itself: user, group and process come from the kernel, and cannot
// be forged by a process without privileges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

struct Peer {
  int32_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  // Becomes readable when the process has ended.
  UniqueFd pidfd;
};

// How the daemon learns who its peers are. An interface, so that tests can present any user.
class PeerInspector {
 public:
  virtual ~PeerInspector() = default;
  // Errors: kUnavailable "peer_gone", kIoError or kUnsupported when the kernel will not tell. Does
  // not block; `socket` stays the caller's.
  [[nodiscard]] virtual Result<Peer> Inspect(int socket) = 0;
};

// The process that called connect(), from SO_PEERCRED, and a pidfd that certainly means it and not
// a later process of the same number.
class SocketPeerInspector final : public PeerInspector {
 public:
  [[nodiscard]] Result<Peer> Inspect(int socket) override;
};

// A name for the user at the other end, to account things to users that belong to no tenant; no
// tenant has such a name. Does not block.
[[nodiscard]] std::string UserOf(int socket);

// The processes that are served, by tenant.
class TenantMap {
 public:
  // REQUIRES: `tenants` passed CheckConfig. Without any, `own_uid` is the tenant "default".
  TenantMap(const std::vector<TenantConfig>& tenants, uint32_t own_uid);

  // By user first, then by group. Errors: kPermissionDenied "unknown_user".
  [[nodiscard]] Result<std::string> TenantOf(const Peer& peer) const;

 private:
  std::unordered_map<uint32_t, std::string> by_uid_;
  std::unordered_map<uint32_t, std::string> by_gid_;
};

// The process of this number as a later daemon can find it again; without a birth if the kernel
// tells none, as one before 6.9 where /proc hides the processes of other users. Any thread; reads
// one small file of /proc.
[[nodiscard]] ProcessIdentity IdentityOf(int32_t pid);

// Whether the process behind `pidfd` has ended. Any thread; does not block.
[[nodiscard]] bool ProcessHasEnded(int pidfd);

// Whether `other` is the process `known`, which still lives: a number may be another's after its
// end. All processes of other pid namespaces have the number 0; kernels before 6.9 cannot tell
// these apart, so that any two differ there. Any thread; does not block.
[[nodiscard]] bool IsSameProcess(const Peer& known, const Peer& other);

}  // namespace kvtier
