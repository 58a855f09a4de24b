// SPDX-License-Identifier: Apache-2.0
// How far the loads of one connection have come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "base/ids.h"
#include "base/result.h"
#include "protocol/messages.h"

namespace kvtier::client {

struct LoadState {
  uint32_t hits = 0;   // of the acquire
  uint32_t ready = 0;  // the first so many are usable
  bool finished = false;
  uint8_t miss_reason = 0;
  bool in_layers = false;
  uint32_t layers = 0;  // of all hits, the first so many are usable; only what a counter said
  std::optional<wire::LoadCounter> counter;
};

// Not thread-safe: guarded by the channel's lock.
class LoadTable {
 public:
  // Finished loads are remembered so long, for those who come late; the oldest go first.
  static constexpr size_t kFinishedKept = 4096;

  // An acquire brought a load. Errors: kCorrupt "load_id_reused".
  [[nodiscard]] Status Add(LoadId load, const LoadState& state);
  // Progress of loads that nobody knows (their acquire was given up) is ignored. Errors: kCorrupt
  // "load_progress_invalid" when it goes backwards or past the hits.
  [[nodiscard]] Status OnProgress(const wire::LoadProgress& progress);
  // Null if unknown or forgotten. Valid until the next call.
  [[nodiscard]] const LoadState* Find(LoadId load) const;

 private:
  std::unordered_map<LoadId, LoadState> loads_;
  std::deque<LoadId> finished_;
};

}  // namespace kvtier::client
