// SPDX-License-Identifier: Apache-2.0
// Takes back, over one session, the blocks that the links of a LinkGroup held over earlier ones. A
// daemon that is slow to answer may have given them already, and there is no call that gives them
// back while the application may still write there: so a time-out is not the end, and the answers
// are waited for by the next call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
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
  // Claims the blocks of all links; those that the daemon has are theirs over the session once this
  // has succeeded. REQUIRES: a link was added. Errors: kTimeout: to be called again; others are
  // final: those of the requests; kStaleHandle "unknown_session".
  [[nodiscard]] Status Claim();
  [[nodiscard]] const std::shared_ptr<DaemonSession>& session() const { return session_; }

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

  void Begin();
  // Makes the requests for what no former session was found to hold yet.
  void Divide();
  [[nodiscard]] Status ClaimFrom(const Former& former);
  // Sends the request, unless that has been done, and takes its answer.
  [[nodiscard]] Status Ask(const Former& former, const Part& part, bool more);
  [[nodiscard]] Status Send(const Former& former, const Part& part, bool more);

  const Connection& connection_;
  const std::shared_ptr<DaemonSession> session_;
  PoolId pool_;
  std::vector<Member> members_;
  bool begun_ = false;
  std::vector<Former> formers_;      // that have not been asked in full; the last is asked
  std::deque<Part> parts_;           // of it; the first is asked for
  std::optional<uint64_t> request_;  // that was sent and not answered yet
  bool known_ = false;               // a former session was
};

}  // namespace kvtier::client
