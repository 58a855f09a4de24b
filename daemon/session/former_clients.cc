// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/former_clients.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvtier {
namespace {

// Readable from the start, as the descriptor of a process that has ended.
UniqueFd EndedProcess() { return UniqueFd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)); }

// The comparison takes the same time however much of the secret is right.
bool SameSecret(const SessionSecret& a, const SessionSecret& b) {
  uint32_t difference = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) difference |= a.bytes[i] ^ b.bytes[i];
  return difference == 0;
}

// A descriptor of the process, or of one that has ended if it has. Invalid: it cannot be told. The
// birth is read after the process was opened, so that it is this one's or none's.
UniqueFd OpenFormer(const ProcessIdentity& process) {
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!opened.valid()) return errno == ESRCH ? EndedProcess() : UniqueFd();
  const uint64_t birth = IdentityOf(process.pid).birth;
  const bool known = process.birth != 0 && birth != 0;
  return known && birth != process.birth ? EndedProcess() : std::move(opened);
}

}  // namespace

FormerClients::FormerClients(EventLoop* loop, Log* log, std::vector<AbsentClients> clients,
                             const Options& options, Quarantine::KernelsRemain kernels_remain,
                             std::function<void(SessionId)> released)
    : log_(*log),
      released_(std::move(released)),
      copies_(loop),
      grace_(loop),
      quarantine_(
          loop, log, [this](SessionId member) { OnGone(member.value); },
          std::move(kernels_remain)) {
  for (const AbsentClients& absent : clients) {
    Pool& pool = pools_.emplace_back(Pool{.id = absent.pool,
                                          .readers = absent.readers,
                                          .writers = absent.writers,
                                          .writers_hold = absent.writers_hold});
    for (const AbsentClients::Session& session : absent.sessions) {
      ++pool.readers_left;
      ++pool.writers_left;
      members_.push_back({.pool = pools_.size() - 1, .session = session});
    }
  }
  for (size_t i = 0; i < members_.size(); ++i) Watch(i);
  copies_.Start(options.copies_until_ms, [this] {
    for (Pool& pool : pools_) {
      DropReader(&pool);
      DropWriter(&pool);
    }
  });
  grace_.Start(options.grace_ms, [this] {
    for (Member& member : members_) ReadNoMore(&member);
  });
}

void FormerClients::Watch(size_t member) {
  const ProcessIdentity& process = members_[member].session.identity.process;
  UniqueFd opened = OpenFormer(process);
  if (opened.valid()) {
    return quarantine_.Add(SessionId(member), {.pid = process.pid, .pidfd = std::move(opened)});
  }
  log_.Warning("session.warned",
               "process {} used a pool of an earlier daemon and cannot be watched: its blocks "
               "there stay out of use",
               process.pid);
}

void FormerClients::OnGone(size_t member) {
  Member& gone = members_[member];
  gone.gone = true;
  ReadNoMore(&gone);
  DropWriter(&pools_[gone.pool]);
  released_(gone.session.holdings);
}

// A process whose birth is not known may be another one of the same number.
std::optional<SessionId> FormerClients::Find(PoolId pool, SessionId former,
                                             const SessionSecret& secret, const Peer& peer) {
  const ProcessIdentity caller = IdentityOf(peer.pid);
  if (caller.birth == 0 && !std::exchange(told_of_no_birth_, true)) {
    log_.Warning(
        "session.warned",
        "process {} cannot take back the blocks that it had before the restart: the kernel numbers "
        "no processes, and /proc hides its start (hidepid=, ProtectProc=)",
        peer.pid);
  }
  if (caller.birth == 0 || secret == SessionSecret{}) return std::nullopt;
  for (const Member& member : members_) {
    const SessionIdentity& known = member.session.identity;
    const bool same = !member.gone && pools_[member.pool].id == pool && known.session == former &&
                      known.process == caller && known.uid == peer.uid &&
                      SameSecret(known.secret, secret);
    if (same) return member.session.holdings;
  }
  return std::nullopt;
}

// The client's session of today names its process in the pool's table, so that the former session
// is no longer needed there, unless blocks wait for the end of every process of that time.
void FormerClients::OnResumed(SessionId holdings) {
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.session.holdings != holdings || member.gone) continue;
    ReadNoMore(&member);
    if (pools_[member.pool].writers_hold) continue;
    quarantine_.Forget(SessionId(i));
    OnGone(i);
  }
}

void FormerClients::ReadNoMore(Member* member) {
  if (std::exchange(member->reads, false)) DropReader(&pools_[member->pool]);
}

void FormerClients::DropReader(Pool* pool) {
  if (--pool->readers_left == 0) released_(pool->readers);
}

void FormerClients::DropWriter(Pool* pool) {
  if (--pool->writers_left == 0) released_(pool->writers);
}

}  // namespace kvtier
