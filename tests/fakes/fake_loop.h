// SPDX-License-Identifier: Apache-2.0
// The event loop of tests: nothing runs until it is stepped, and the order is known.
//
// Every fake posts its completions through a source of its own. Without Shuffle() events run in the
// order posted. With it, the next event is picked by seed among all sources: the first event of an
// ordered source, any event of an unordered one. So it plays every interleaving which the
// interfaces allow and no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {

using EventSource = Strong<struct EventSourceTag, uint32_t>;

class FakeLoop final : public EventQueue {
 public:
  enum class Order { kAsPosted, kAny };

  FakeLoop();

  // Events posted with Post() belong to a source of this kind, which is always there.
  static constexpr EventSource kPosted{0};

  [[nodiscard]] EventSource AddSource(Order order);
  void Post(std::function<void()> event) override { PostFrom(kPosted, std::move(event)); }
  void PostFrom(EventSource source, std::function<void()> event);
  void RunAfterEvent(std::function<void()> work) override {
    if (!after_.TryAdd(&work)) Post(std::move(work));
  }

  // From now on the order is drawn from `seed`.
  void Shuffle(uint64_t seed) { random_.emplace(seed); }

  // Keeps a source's events from running, or lets them run again.
  void Hold(EventSource source) { sources_[source.value].held = true; }
  void LetGo(EventSource source) { sources_[source.value].held = false; }

  // Runs one event. False if none may run.
  bool RunOne();
  // Runs one event of `source`, held or not. False if it has none.
  bool RunOneOf(EventSource source);
  // Runs until nothing may run. Aborts after `limit` events: the code under test goes in circles.
  size_t RunAll(size_t limit = 1'000'000);

  // Forgets every event: the process died.
  void DropAll();
  [[nodiscard]] size_t pending() const { return pending_; }
  [[nodiscard]] size_t pending(EventSource source) const {
    return sources_[source.value].events.size();
  }

 private:
  struct Event {
    uint64_t sequence;
    std::function<void()> run;
  };
  struct Source {
    Order order = Order::kAsPosted;
    bool held = false;
    std::deque<Event> events;
  };

  [[nodiscard]] Source* PickOldest();
  [[nodiscard]] Source* PickRandom();
  void RunEvent(Source& source);

  std::deque<Source> sources_;
  AfterEvents after_;
  uint64_t next_sequence_ = 0;
  size_t pending_ = 0;
  std::optional<SeededRandom> random_;
};

}  // namespace kvtier
