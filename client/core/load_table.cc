// SPDX-License-Identifier: Apache-2.0
#include "client/core/load_table.h"

#include <fmt/format.h>

namespace kvtier::client {

Status LoadTable::Add(LoadId load, const LoadState& state) {
  if (!loads_.emplace(load, state).second) {
    return MakeError(ErrorCode::kCorrupt, "load_id_reused", fmt::format("load {}", load.value));
  }
  return {};
}

Status LoadTable::OnProgress(const wire::LoadProgress& progress) {
  const auto it = loads_.find(progress.load);
  if (it == loads_.end()) return {};
  LoadState& state = it->second;
  if (state.finished || progress.ready < state.ready || progress.ready > state.hits) {
    return MakeError(
        ErrorCode::kCorrupt, "load_progress_invalid",
        fmt::format("load {}: {} of {} ready after {}{}", progress.load.value, progress.ready,
                    state.hits, state.ready, state.finished ? " and the end" : ""));
  }
  state.ready = progress.ready;
  state.finished = progress.finished;
  state.miss_reason = progress.miss_reason;
  if (!state.finished) return {};
  finished_.push_back(progress.load);
  if (finished_.size() > kFinishedKept) {
    loads_.erase(finished_.front());
    finished_.pop_front();
  }
  return {};
}

const LoadState* LoadTable::Find(LoadId load) const {
  const auto it = loads_.find(load);
  return it == loads_.end() ? nullptr : &it->second;
}

}  // namespace kvtier::client
