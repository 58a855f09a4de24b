// SPDX-License-Identifier: Apache-2.0
// How far the loads of one connection have come, and waiting for one: first on its counter, which
// is ahead of the daemon's events, then on these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/acquired.h"
#include "base/ids.h"
#include "base/result.h"
#include "client/core/unix_socket.h"
#include "protocol/messages.h"

namespace kvtier::client {

class DaemonSession;

struct LoadState {
  LoadProgress progress;
  uint32_t hits = 0;  // of the acquire
  bool in_layers = false;
  uint32_t layers = 0;  // of all hits, the first so many are usable; only what a counter said
  std::optional<wire::LoadCounter> counter;
  bool held = false;  // a LoadHold will ask for it
};

// Not thread-safe: guarded by the channel's lock.
class LoadStates {
 public:
  // How many finished loads that none holds are remembered, for waits that begin late; the oldest
  // go first.
  static constexpr size_t kFinishedKept = 4096;

  // An acquire brought a load. Errors: kCorrupt "load_id_reused".
  [[nodiscard]] Status Add(LoadId load, const LoadState& state);
  // Progress of unknown loads (their acquire was cancelled) is ignored. Errors: kCorrupt
  // "load_progress_invalid" when it goes backwards or past the hits.
  [[nodiscard]] Status OnProgress(const LoadProgress& progress);
  // The load is held no longer. Does nothing if it is unknown.
  void LetGo(LoadId load);
  // Null if unknown or forgotten. Valid until the next call.
  [[nodiscard]] const LoadState* Find(LoadId load) const;

 private:
  // The load has finished, and none holds it.
  void Forget(LoadId load);

  std::unordered_map<LoadId, LoadState> loads_;
  std::deque<LoadId> finished_;
};

// Keeps a load from being forgotten, however many finish after it.
class LoadHold {
 public:
  // REQUIRES: the load was added as one that is held.
  LoadHold(std::shared_ptr<DaemonSession> session, LoadId load);
  ~LoadHold();
  LoadHold(const LoadHold&) = delete;
  LoadHold& operator=(const LoadHold&) = delete;

 private:
  const std::shared_ptr<DaemonSession> session_;
  const LoadId load_;
};

// The goal of a wait: the first `hits` hits, or `layers` layers of all hits.
struct LoadGoal {
  uint32_t hits = 0;
  uint32_t layers = 0;  // if not 0, it counts alone

  [[nodiscard]] bool ReachedBy(const LoadState& state) const;
  // Errors: kTimeout "load_timeout": it is not.
  [[nodiscard]] Status Check(const LoadState& state) const;
};

// Waits until the goal is reached or the load has finished, and says how far it is. A time-out is
// not an error: neither holds then, see LoadGoal::Check. Errors: kNotFound "unknown_load",
// kUnavailable.
[[nodiscard]] Result<LoadState> WaitForLoad(DaemonSession* session, LoadId load,
                                            const LoadGoal& goal, Deadline deadline);
// How far it was when something was last heard of it. Errors: kNotFound "unknown_load".
[[nodiscard]] Result<LoadState> FindLoad(DaemonSession* session, LoadId load);

}  // namespace kvtier::client
