// SPDX-License-Identifier: Apache-2.0
// Runs work and its end as two events, as a thread and the loop do: others may come between.
#pragma once

#include <functional>
#include <utility>

#include "base/executor.h"
#include "tests/fakes/fake_loop.h"

namespace kvtier {

// Several threads would finish in any order, so does this. `loop` must outlive it.
class FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(FakeLoop* loop)
      : loop_(loop), source_(loop->AddSource(FakeLoop::Order::kAny)) {}

  void Run(std::function<void()> work, std::function<void()> done) override {
    loop_->PostFrom(
        source_, [loop = loop_, source = source_, work = std::move(work), done = std::move(done)] {
          work();
          if (done) loop->PostFrom(source, done);
        });
  }

  [[nodiscard]] EventSource source() const { return source_; }

 private:
  FakeLoop* const loop_;
  const EventSource source_;
};

}  // namespace kvtier
