#include "daemon/server/quarantine.h"

#include <algorithm>
#include <numeric>

namespace kvtier {

void Quarantine::Add(SessionId session, Peer peer) {
  // A process that lives still owns its number: an entry of that number is the same process.
  const auto known = std::ranges::find_if(processes_, [&peer](const Process& process) {
    // Number 0: a process of another pid namespace, which has none here.
    return peer.pid != 0 && process.pid == peer.pid && !ProcessHasEnded(process.pidfd.get());
  });
  if (known != processes_.end()) {
    known->sessions.push_back(session);
    return;
  }
  const auto process = processes_.emplace(processes_.end(), loop_, std::move(peer));
  process->sessions.push_back(session);
  process->watch.WaitReadable([this, process] {
    const std::vector<SessionId> ended = std::move(process->sessions);
    processes_.erase(process);
    for (const SessionId id : ended) released_(id);
  });
}

size_t Quarantine::sessions() const {
  return std::accumulate(
      processes_.begin(), processes_.end(), size_t{0},
      [](size_t count, const Process& process) { return count + process.sessions.size(); });
}

}  // namespace kvtier
