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

// A descriptor of the process, or of one that has ended if it has. Invalid: it cannot be told. The
// start time is read after the process was opened, so that it is this one's or none's.
UniqueFd OpenFormer(const ProcessIdentity& process) {
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!opened.valid()) return errno == ESRCH ? EndedProcess() : UniqueFd();
  const uint64_t start_time = IdentityOf(process.pid).start_time;
  const bool known = process.start_time != 0 && start_time != 0;
  return known && start_time != process.start_time ? EndedProcess() : std::move(opened);
}

}  // namespace

FormerClients::FormerClients(EventLoop* loop, Log* log, std::vector<AbsentClients> clients,
                             int64_t copies_until_ms, Quarantine::KernelsRemain kernels_remain,
                             std::function<void(SessionId)> released)
    : log_(*log),
      released_(std::move(released)),
      copies_(loop),
      quarantine_(
          loop, log, [this](SessionId member) { OnGone(member.value); },
          std::move(kernels_remain)) {
  for (const AbsentClients& absent : clients) {
    Pool& pool = pools_.emplace_back(Pool{absent.readers, absent.writers});
    for (const ProcessIdentity& process : absent.processes) {
      ++pool.readers_left;
      ++pool.writers_left;
      members_.push_back({pools_.size() - 1, process});
    }
  }
  for (size_t i = 0; i < members_.size(); ++i) Watch(i);
  copies_.Start(copies_until_ms, [this] {
    for (Pool& pool : pools_) {
      DropReader(&pool);
      DropWriter(&pool);
    }
  });
}

void FormerClients::Watch(size_t member) {
  const ProcessIdentity& process = members_[member].process;
  UniqueFd opened = OpenFormer(process);
  if (opened.valid()) {
    return quarantine_.Add(SessionId(member), {.pid = process.pid, .pidfd = std::move(opened)});
  }
  log_.Warning("session.warned",
               "process {} used a pool of an earlier daemon and cannot be watched: what it held "
               "there stays out of use",
               process.pid);
}

void FormerClients::OnGone(size_t member) {
  ReadNoMore(&members_[member]);
  DropWriter(&pools_[members_[member].pool]);
}

void FormerClients::OnHello(const Peer& peer) {
  if (members_.empty()) return;
  const ProcessIdentity caller = IdentityOf(peer.pid);
  for (Member& member : members_) {
    if (member.process == caller) ReadNoMore(&member);
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
