// SPDX-License-Identifier: Apache-2.0
// For devices whose copies land in any order: sets counters in the order of the requests.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "gpu/counter_page.h"

namespace kvtier {

// Not thread-safe.
class CountingOrder {
 public:
  // Numbers the request behind all earlier ones.
  [[nodiscard]] uint64_t Add(std::vector<CountedStep> counted);
  // Counts what this request and those before it count, as far as they have all landed. One that
  // failed stops its counters.
  void Landed(uint64_t request, bool succeeded);

 private:
  struct Request {
    std::vector<CountedStep> counted;
    bool landed = false;
    bool succeeded = false;
  };

  uint64_t first_ = 0;  // the number of the front
  std::deque<Request> requests_;
};

}  // namespace kvtier
