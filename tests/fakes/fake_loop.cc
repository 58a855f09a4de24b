// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_loop.h"

#include <utility>

#include "base/result.h"

namespace kvtier {

FakeLoop::FakeLoop() { (void)AddSource(Order::kAsPosted); }

EventSource FakeLoop::AddSource(Order order) {
  sources_.push_back(Source{.order = order});
  return EventSource(static_cast<uint32_t>(sources_.size() - 1));
}

void FakeLoop::PostFrom(EventSource source, std::function<void()> event) {
  sources_[source.value].events.push_back(Event{next_sequence_++, std::move(event)});
  ++pending_;
}

FakeLoop::Source* FakeLoop::PickOldest() {
  Source* oldest = nullptr;
  for (Source& source : sources_) {
    if (source.held || source.events.empty()) continue;
    if (oldest == nullptr || source.events.front().sequence < oldest->events.front().sequence) {
      oldest = &source;
    }
  }
  return oldest;
}

FakeLoop::Source* FakeLoop::PickRandom() {
  size_t ready = 0;
  for (const Source& source : sources_) ready += !source.held && !source.events.empty();
  if (ready == 0) return nullptr;
  size_t choice = random_->Below(ready);
  for (Source& source : sources_) {
    if (source.held || source.events.empty()) continue;
    if (choice-- == 0) return &source;
  }
  return nullptr;
}

void FakeLoop::RunEvent(Source& source) {
  size_t position = 0;
  if (random_ && source.order == Order::kAny) position = random_->Below(source.events.size());
  const auto event = source.events.begin() + static_cast<ptrdiff_t>(position);
  const std::function<void()> run = std::move(event->run);
  source.events.erase(event);
  --pending_;
  after_.Run(run);
}

bool FakeLoop::RunOne() {
  Source* source = random_ ? PickRandom() : PickOldest();
  if (source == nullptr) return false;
  RunEvent(*source);
  return true;
}

bool FakeLoop::RunOneOf(EventSource source) {
  if (sources_[source.value].events.empty()) return false;
  RunEvent(sources_[source.value]);
  return true;
}

size_t FakeLoop::RunAll(size_t limit) {
  size_t count = 0;
  while (RunOne()) {
    ++count;
    KVT_CHECK(count < limit);
  }
  return count;
}

void FakeLoop::DropAll() {
  for (Source& source : sources_) source.events.clear();
  pending_ = 0;
}

}  // namespace kvtier
