// SPDX-License-Identifier: Apache-2.0
// How many layers of a region's loads are there, as the session's counters say: without asking, and
// without reading the socket.
//
// A load of more blocks than one message can name goes out as several, its parts; each has a
// counter of its own, and the load has the layers that all of them have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "client/core/load_counters.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Not thread-safe: guarded by the channel's lock.
class LayerCounts {
 public:
  // How many ended loads are remembered, for calls that come late; the oldest go first.
  static constexpr size_t kEndedKept = 4096;

  explicit LayerCounts(std::shared_ptr<LoadCounters> counters) : counters_(std::move(counters)) {}

  // The request `request_id` is about to carry a part of a load in so many layers. Returns the
  // counter that it is to name; nothing if all are in use, and then only the load's end is seen.
  [[nodiscard]] std::optional<wire::LoadCounter> AddPart(uint64_t transfer, uint64_t request_id,
                                                         uint32_t layers);
  // The part has ended; `error` is nothing if all of its blocks were copied. A request that carried
  // no part is ignored.
  void EndPart(uint64_t request_id, const std::optional<Error>& error);
  // A load that could not be sent at all.
  void Forget(uint64_t transfer);
  // One of whose blocks some could not be sent, before anyone has asked: they have no layer.
  void Fail(uint64_t transfer, const Error& error);

  // A load's state at this moment.
  struct State {
    uint32_t layers = 0;  // so many first layers of all its blocks have arrived
    // The load, or a part of it, has ended without all layers: no more will be counted.
    std::optional<Error> failure;
    bool ended = false;
    // Counters of the parts under way. Empty if they do not tell of the rest: the load has ended,
    // or some part has no counter, or one that counts no more, so that only an event tells.
    std::span<const wire::LoadCounter> counters;
  };
  // Errors: kNotFound "unknown_transfer": no load in layers, or forgotten. The result is valid
  // until the next call of any function.
  [[nodiscard]] Result<State> Find(uint64_t transfer);

 private:
  struct Load {
    uint32_t layers = 0;
    uint32_t seen = 0;             // of all blocks
    uint32_t parts_under_way = 0;  // some of them without a counter, if there are fewer counters
    std::vector<wire::LoadCounter> counters;
    std::optional<Error> failure;
  };
  struct Part {
    uint64_t transfer = 0;
    std::optional<wire::LoadCounter> counter;
  };

  const std::shared_ptr<LoadCounters> counters_;
  std::unordered_map<uint64_t, Part> parts_;  // under way, by request id
  std::unordered_map<uint64_t, Load> loads_;
  std::deque<uint64_t> ended_;  // of loads_, oldest first
};

}  // namespace kvtier::client
