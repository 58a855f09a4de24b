// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/quarantine.h"

#include <algorithm>
#include <numeric>

namespace kvtier {
namespace {

// How long to wait before asking the driver again. A child that inherited the GPU's descriptors may
// live for hours, and each question costs a thread some milliseconds; the reuse of some blocks may
// well wait so long.
constexpr int64_t kAskAgainMs = 250;
// A process that ends closes its connection some moments earlier.
constexpr int64_t kPatienceMs = 1000;

}  // namespace

void Quarantine::Add(SessionId session, Peer peer) {
  const auto known = std::ranges::find_if(
      processes_, [&peer](const Process& process) { return IsSameProcess(process.peer, peer); });
  if (known != processes_.end()) {
    known->sessions.push_back(session);
    return;
  }
  const auto process = processes_.emplace(processes_.end(), loop_, std::move(peer));
  process->sessions.push_back(session);
  process->watch.WaitReadable([this, process] { OnEnded(process); });
  process->again.Start(kPatienceMs, [this, process] { WarnOfLiving(*process); });
}

void Quarantine::Forget(SessionId session) {
  processes_.remove_if([session](Process& process) {
    std::erase(process.sessions, session);
    return process.sessions.empty() && !process.asked;
  });
}

// A session that held many blocks gives them back after its end, and may then keep none.
size_t Quarantine::Withholding(const Process& process) const {
  if (!withholds_) return process.sessions.size();
  return static_cast<size_t>(std::ranges::count_if(process.sessions, withholds_));
}

void Quarantine::WarnOfLiving(const Process& process) const {
  if (Withholding(process) == 0) return;
  log_->Warning("session.warned",
                "process {} has left, but lives: blocks that it had not committed and could still "
                "write to stay out of use until it ends",
                process.peer.pid);
}

void Quarantine::OnEnded(Place process) {
  if (!kernels_remain_) return OnAnswer(process, false);
  process->asked = true;
  kernels_remain_(process->peer.pid,
                  gate_.WhileOpen([this, process](bool remain) { OnAnswer(process, remain); }));
}

void Quarantine::OnAnswer(Place process, bool remain) {
  if (!remain) {
    // The entry is erased before the callbacks run, so that they see a state in which it is gone.
    const std::vector<SessionId> ended = std::move(process->sessions);
    processes_.erase(process);
    for (const SessionId id : ended) released_(id);
    return;
  }
  if (!std::exchange(process->warned, true)) {
    log_->Warning(
        "session.warned",
        "process {} is gone, but not its work on the GPU: a child that it left has its "
        "files open; the blocks that it could write to stay out of use until that has ended",
        process->peer.pid);
  }
  process->again.Start(kAskAgainMs, [this, process] { OnEnded(process); });
}

size_t Quarantine::sessions() const {
  return std::accumulate(
      processes_.begin(), processes_.end(), size_t{0},
      [this](size_t count, const Process& process) { return count + Withholding(process); });
}

}  // namespace kvtier
