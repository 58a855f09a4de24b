// SPDX-License-Identifier: Apache-2.0
// A store with circuit breakers in front of it: a store that is slow or gone is not asked. Puts
// have one of their own, in which deletions count, too, so that none that fails stops reads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/gate.h"
#include "tiers/cold/circuit_breaker.h"
#include "tiers/cold/cold_store.h"

namespace kvtier {

// Event loop only. `store` and `clock` are borrowed and outlive it. While the breaker is not
// closed, calls end with kUnavailable "cold_store_away" from an event of `loop`, which is borrowed
// likewise.
class GuardedStore final : public ColdStore {
 public:
  // Hears why the store is asked no more, and (success) that it is asked again.
  using OnChange = std::function<void(const Status&)>;
  GuardedStore(ColdStore* store, const Clock* clock, EventQueue* loop, OnChange on_change = {})
      : store_(*store),
        loop_(*loop),
        breaker_(clock),
        writes_(clock),
        on_change_(std::move(on_change)) {}

  // Sends a probe when it is time for one.
  [[nodiscard]] bool Available() override;
  [[nodiscard]] bool TakesWrites() override;
  [[nodiscard]] uint64_t lost_calls() const override { return lost_calls_; }
  void Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
              ExistsDone done) override;
  void Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) override;
  void Put(std::string name, ColdBytes bytes, ColdPut how, int64_t timeout_ms, Done done) override;
  void Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) override;
  void DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                  DeletedDone done) override;

  [[nodiscard]] const CircuitBreaker& breaker() const { return breaker_; }

 private:
  enum class Operation : uint8_t { kExists, kGet, kPut, kDelete };

  void TellIfChanged(const Status& last);
  template <typename Answer>
  [[nodiscard]] std::function<void(Answer)> Watch(Operation operation,
                                                  std::function<void(Answer)> done);
  template <typename Answer>
  [[nodiscard]] bool Refuse(bool passes, const std::function<void(Answer)>& done);

  ColdStore& store_;
  EventQueue& loop_;
  CircuitBreaker breaker_;  // of all calls
  CircuitBreaker writes_;   // of puts
  const OnChange on_change_;
  bool away_told_ = false;
  uint64_t lost_calls_ = 0;
  std::array<uint64_t, 4> answered_{};  // calls, by operation
  Gate gate_;
};

}  // namespace kvtier
