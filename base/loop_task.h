// SPDX-License-Identifier: Apache-2.0
// Work of the event loop that many ask for and that runs once for all of them.
#pragma once

#include <functional>
#include <utility>

#include "base/executor.h"
#include "base/gate.h"

namespace kvtier {

// The loop's thread only. Runs no more once this is destroyed.
class LoopTask {
 public:
  // `loop` is borrowed and outlives this.
  LoopTask(EventQueue* loop, std::function<void()> run) : loop_(*loop), run_(std::move(run)) {}

  // The work runs when this event has ended (EventQueue::RunAfterEvent). Does nothing if the work
  // has been asked for and has not begun.
  void RunAfterEvent() {
    if (!std::exchange(scheduled_, true)) loop_.RunAfterEvent(Event());
  }
  // The same in an event of its own, behind those that wait.
  void RunInOwnEvent() {
    if (!std::exchange(scheduled_, true)) loop_.Post(Event());
  }
  [[nodiscard]] bool scheduled() const { return scheduled_; }

 private:
  [[nodiscard]] std::function<void()> Event() {
    return gate_.WhileOpen([this] {
      scheduled_ = false;
      run_();
    });
  }

  EventQueue& loop_;
  const std::function<void()> run_;
  bool scheduled_ = false;
  // Last: posted work ends before the members that it uses.
  Gate gate_;
};

}  // namespace kvtier
