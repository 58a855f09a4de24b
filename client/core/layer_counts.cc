// SPDX-License-Identifier: Apache-2.0
#include "client/core/layer_counts.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtier::client {

std::optional<wire::LoadCounter> LayerCounts::AddPart(uint64_t transfer, uint64_t request_id,
                                                      uint32_t layers) {
  Load& load = loads_[transfer];
  load.layers = layers;
  // All earlier parts may have ended before this one is sent: the load has not.
  if (load.parts_under_way++ == 0) {
    load.seen = 0;
    std::erase(ended_, transfer);
  }
  const std::optional<wire::LoadCounter> counter = counters_->Take(layers);
  if (counter) load.counters.push_back(*counter);
  parts_.emplace(request_id, Part{transfer, counter});
  return counter;
}

void LayerCounts::EndPart(uint64_t request_id, const std::optional<Error>& error) {
  const auto part = parts_.extract(request_id);
  if (part.empty()) return;
  const auto& [transfer, counter] = part.mapped();
  Load& load = loads_.at(transfer);
  // The count until now is kept, for the counter will be another load's.
  if (error) (void)Find(transfer);
  if (error && !load.failure) load.failure = error;
  if (counter) {
    std::erase(load.counters, *counter);
    counters_->GiveBack(*counter);
  }
  if (--load.parts_under_way > 0) return;
  if (!load.failure) load.seen = load.layers;
  ended_.push_back(transfer);
  if (ended_.size() <= kEndedKept) return;
  loads_.erase(ended_.front());
  ended_.pop_front();
}

void LayerCounts::Forget(uint64_t transfer) {
  for (auto part = parts_.begin(); part != parts_.end();) {
    if (part->second.transfer != transfer) {
      ++part;
      continue;
    }
    if (part->second.counter) counters_->GiveBack(*part->second.counter);
    part = parts_.erase(part);
  }
  loads_.erase(transfer);
  std::erase(ended_, transfer);
}

void LayerCounts::Fail(uint64_t transfer, const Error& error) {
  const auto found = loads_.find(transfer);
  if (found == loads_.end()) return;
  found->second.seen = 0;
  found->second.failure = error;
}

Result<LayerCounts::State> LayerCounts::Find(uint64_t transfer) {
  const auto found = loads_.find(transfer);
  if (found == loads_.end()) {
    return MakeError(ErrorCode::kNotFound, "unknown_transfer",
                     fmt::format("{} is no load in layers that is known", transfer));
  }
  Load& load = found->second;
  State state{.layers = load.seen, .failure = load.failure, .ended = load.parts_under_way == 0};
  if (load.failure || load.counters.size() < load.parts_under_way) return state;
  uint32_t least = load.layers;
  for (const wire::LoadCounter& counter : load.counters) {
    const uint32_t done = counters_->Done(counter);
    // Nothing is counted there any more, and how many layers there were is not said.
    if (done > counter.steps) return state;
    least = std::min(least, done);
  }
  load.seen = std::max(load.seen, least);
  state.layers = load.seen;
  state.counters = load.counters;
  return state;
}

}  // namespace kvtier::client
