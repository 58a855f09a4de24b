// SPDX-License-Identifier: Apache-2.0
// One attempt to take back, over one session, the blocks that the links of a LinkGroup held over
// earlier ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "client/core/connection.h"
#include "client/core/daemon_session.h"
#include "protocol/messages.h"

namespace kvtier::client {

class PoolLink;

// A session with an earlier daemon, as RESUME names it.
struct FormerSession {
  uint64_t daemon = 0;  // its generation
  SessionId session;
  Digest128 secret;

  [[nodiscard]] static FormerSession Of(const DaemonSession& session) {
    const wire::HelloReply& limits = session.limits();
    return {limits.daemon_generation, limits.session, limits.secret};
  }
  friend bool operator==(const FormerSession&, const FormerSession&) = default;
};

// Not thread-safe.
class Resumption {
 public:
  // The connection outlives this object.
  Resumption(const Connection* connection, std::shared_ptr<DaemonSession> session);
  // Takes back the ATTACHes of links that were not resumed, unless the session may have blocks to
  // which users of such a link still write.
  ~Resumption();
  Resumption(const Resumption&) = delete;
  Resumption& operator=(const Resumption&) = delete;

  // Adds a link: attaches its pool. Errors: those of PoolLink::Attach.
  [[nodiscard]] Status Add(const std::shared_ptr<PoolLink>& link);
  // A former session, later than those named before. `is_last`: all that anyone still uses of it is
  // held by links that were added, so that the daemon may give back the rest.
  void Name(const FormerSession& former, bool is_last) { formers_.push_back({former, is_last}); }
  // Claims the blocks of all links; those that the daemon has are theirs over the session from then
  // on. REQUIRES: a link was added; Claim was not called before. Errors: those of the requests;
  // kStaleHandle "unknown_session".
  [[nodiscard]] Status Claim();

 private:
  // The link is gone once all that had it have let go of it.
  struct Member {
    std::weak_ptr<PoolLink> link;
    std::vector<ResumeClaim> claims;
    std::vector<ResumeOutcome> outcomes;  // as far as they are known; else kLost
    bool resumed = false;
  };
  struct Former {
    FormerSession session;
    bool is_last = false;
  };
  // The claims of one request, by their positions.
  struct Part {
    size_t member = 0;
    std::vector<size_t> claims;
  };

  // Makes the requests for what no former session was found to hold yet.
  void Divide();
  [[nodiscard]] Status ClaimFrom(const Former& former);
  [[nodiscard]] Status Ask(const Former& former, const Part& part, bool more);

  const Connection& connection_;
  const std::shared_ptr<DaemonSession> session_;
  PoolId pool_;
  std::vector<Member> members_;
  std::vector<Former> formers_;
  std::deque<Part> parts_;
  bool known_ = false;  // a former session was
};

}  // namespace kvtier::client
