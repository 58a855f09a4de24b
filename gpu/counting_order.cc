// SPDX-License-Identifier: Apache-2.0
#include "gpu/counting_order.h"

#include <utility>

namespace kvtier {

uint64_t CountingOrder::Add(std::vector<CountedStep> counted) {
  requests_.push_back({std::move(counted)});
  return first_ + requests_.size() - 1;
}

void CountingOrder::Landed(uint64_t request, bool succeeded) {
  requests_[request - first_].landed = true;
  requests_[request - first_].succeeded = succeeded;
  for (; !requests_.empty() && requests_.front().landed; requests_.pop_front(), ++first_) {
    const Request& front = requests_.front();
    for (const CountedStep& step : front.counted) {
      if (front.succeeded) {
        step.counter->Store(step.done);
      } else {
        step.counter->Stop();
      }
    }
  }
}

}  // namespace kvtier
