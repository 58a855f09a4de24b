// SPDX-License-Identifier: Apache-2.0
// Requests that wait until others have given something back, and are tried again and again: every
// few milliseconds one of each tenant, in the turns of its connections and at the price of a try.
// However many wait, they take no more of the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>

#include "daemon/net/fair_turns.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Event loop only. REQUIRES: destroyed before the FairTurns.
class Retries {
 public:
  struct Outcome {
    bool waits = false;  // and is to be tried again
    uint32_t price = 0;  // in items (FairTurns); 0: no client waited any more
  };
  // over: its time has run out, so that it is answered in any case.
  using Try = std::function<Outcome(bool over)>;

  static constexpr int64_t kAgainMs = 5;
  // A second less than clients wait for a reply.
  static constexpr int64_t kPatienceMs = 4000;

  Retries(EventLoop* loop, FairTurns* turns, int64_t patience_ms = kPatienceMs)
      : turns_(*turns), patience_ms_(patience_ms), tick_(loop) {}
  Retries(const Retries&) = delete;
  Retries& operator=(const Retries&) = delete;

  // The first try comes after kAgainMs, or later.
  void Add(const std::string& tenant, Try attempt);

 private:
  struct Waiting {
    int64_t until_us = 0;
    Try attempt;
  };
  struct Line {
    Line(Retries* retries, const std::string& tenant)
        : member(&retries->turns_, tenant,
                 [retries, this](uint32_t quantum) { return retries->TakeTurn(this, quantum); }) {}
    std::list<Waiting> waiting;  // the oldest first
    std::list<Waiting>::iterator next = waiting.end();
    FairTurns::Member member;
  };

  void Tick();
  // Answers those whose time is over, and tries the next of the others. Returns the price.
  uint32_t TakeTurn(Line* line, uint32_t quantum);
  static Outcome TryOne(Line* line, std::list<Waiting>::iterator one, bool over);

  FairTurns& turns_;
  const int64_t patience_ms_;
  std::map<std::string, Line> lines_;  // by tenant
  Timer tick_;
};

}  // namespace kvtier
