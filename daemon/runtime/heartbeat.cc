// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/heartbeat.h"

#include <memory>
#include <utility>

#include "base/result.h"

namespace kvtier {

void Heartbeat::Start(int64_t interval_ms, std::function<void()> beat) {
  KVT_CHECK(beat_ == nullptr && interval_ms > 0);
  interval_ms_ = interval_ms;
  beat_ = std::make_shared<std::function<void()>>([this, beat = std::move(beat)] {
    beat();
    Wait();
  });
  Wait();
}

void Heartbeat::Wait() {
  timer_.Start(interval_ms_, [this] {
    loop_->Post([weak = std::weak_ptr(beat_)] {
      if (const auto whole_turn = weak.lock()) (*whole_turn)();
    });
  });
}

}  // namespace kvtier
