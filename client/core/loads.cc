// SPDX-License-Identifier: Apache-2.0
#include "client/core/loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "client/core/daemon_session.h"
#include "client/core/load_counters.h"

namespace kvtier::client {
namespace {

// Between looks at a counter when a load takes long.
constexpr std::chrono::milliseconds kLongSleep{1};

// Reads the counter; false if it says nothing any more.
bool TakeCounter(const LoadCounters& counters, LoadState* state) {
  const uint32_t done = counters.Done(*state->counter);
  if (done > state->counter->steps) return false;
  const bool all = done == state->counter->steps;
  if (state->in_layers) {
    state->layers = std::max(state->layers, done);
    if (all) state->progress.ready = state->hits;
  } else {
    state->progress.ready = std::max(state->progress.ready, done);
  }
  state->progress.finished |= all;
  return true;
}

// Waits for events of the load alone.
Result<LoadState> WaitForEvents(DaemonSession* session, LoadId load, const LoadGoal& goal,
                                Deadline deadline) {
  std::optional<LoadState> state;
  const auto reached = [&] {
    const LoadState* found = session->loads().Find(load);
    state = found == nullptr ? std::nullopt : std::optional(*found);
    return !state || goal.ReachedBy(*state);
  };
  const Status waited = session->channel().WaitUntil(reached, deadline);
  if (!waited && waited.error().code != ErrorCode::kTimeout) return tl::unexpected(waited.error());
  if (state) return *state;
  return MakeError(ErrorCode::kNotFound, "unknown_load", fmt::format("load {}", load.value));
}

}  // namespace

LoadHold::LoadHold(std::shared_ptr<DaemonSession> session, LoadId load)
    : session_(std::move(session)), load_(load) {}

LoadHold::~LoadHold() {
  const auto lock = session_->channel().Lock();
  session_->loads().LetGo(load_);
}

bool LoadGoal::ReachedBy(const LoadState& state) const {
  if (state.progress.finished) return true;
  return layers > 0 ? state.layers >= layers : state.progress.ready >= std::min(hits, state.hits);
}

Status LoadGoal::Check(const LoadState& state) const {
  if (ReachedBy(state)) return {};
  return MakeError(ErrorCode::kTimeout, "load_timeout",
                   fmt::format("{} of {} blocks are loaded", state.progress.ready, state.hits));
}

Result<LoadState> FindLoad(DaemonSession* session, LoadId load) {
  const auto lock = session->channel().Lock();
  const LoadState* const state = session->loads().Find(load);
  if (state != nullptr) return *state;
  return MakeError(ErrorCode::kNotFound, "unknown_load", fmt::format("load {}", load.value));
}

Result<LoadState> WaitForLoad(DaemonSession* session, LoadId load, const LoadGoal& goal,
                              Deadline deadline) {
  const CounterPace pace;
  Result<LoadState> state = FindLoad(session, load);
  // A load that is not known any more may be so because the connection is not.
  while (state && state->counter && !goal.ReachedBy(*state)) {
    if (!TakeCounter(*session->counters(), &*state)) break;
    if (goal.ReachedBy(*state)) return state;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) break;
    if (!pace.Pause()) {
      state = WaitForEvents(session, load, goal, std::min(deadline, now + kLongSleep));
    }
  }
  Result<LoadState> heard = WaitForEvents(session, load, goal, deadline);
  // Events may be behind the counts read here.
  if (heard && state && !heard->progress.finished) {
    heard->progress.ready = std::max(heard->progress.ready, state->progress.ready);
    heard->layers = std::max(heard->layers, state->layers);
  }
  return heard;
}

Status LoadStates::Add(LoadId load, const LoadState& state) {
  if (!loads_.emplace(load, state).second) {
    return MakeError(ErrorCode::kCorrupt, "load_id_reused", fmt::format("load {}", load.value));
  }
  return {};
}

Status LoadStates::OnProgress(const LoadProgress& progress) {
  const auto it = loads_.find(progress.load);
  if (it == loads_.end()) return {};
  LoadState& state = it->second;
  const LoadProgress& before = state.progress;
  if (before.finished || progress.ready < before.ready || progress.ready > state.hits) {
    return MakeError(
        ErrorCode::kCorrupt, "load_progress_invalid",
        fmt::format("load {}: {} of {} ready after {}{}", progress.load.value, progress.ready,
                    state.hits, before.ready, before.finished ? " and the end" : ""));
  }
  state.progress = progress;
  if (progress.finished && !state.held) Forget(progress.load);
  return {};
}

void LoadStates::LetGo(LoadId load) {
  const auto it = loads_.find(load);
  if (it == loads_.end() || !std::exchange(it->second.held, false)) return;
  if (it->second.progress.finished) Forget(load);
}

// Later ones are remembered for a while.
void LoadStates::Forget(LoadId load) {
  finished_.push_back(load);
  if (finished_.size() <= kFinishedKept) return;
  loads_.erase(finished_.front());
  finished_.pop_front();
}

const LoadState* LoadStates::Find(LoadId load) const {
  const auto it = loads_.find(load);
  return it == loads_.end() ? nullptr : &it->second;
}

}  // namespace kvtier::client
