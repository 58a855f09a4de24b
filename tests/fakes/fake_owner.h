// SPDX-License-Identifier: Apache-2.0
// The owner of a cache in tests: does what each test gives it, or nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "tiers/state/cache_environment.h"

namespace kvtier {

class FakeOwner final : public CacheOwner {
 public:
  std::function<bool(PoolId)> pool_read;
  std::function<void(const AdoptionReport&)> on_adopted;
  std::function<void(uint64_t)> on_keys_expired;
  std::function<void(const std::string&, const EraseReport&, const Status&)> on_erasure_resumed;

  std::deque<Incident> incidents;  // all that were reported

  bool ReadsPool(PoolId pool) override { return pool_read && pool_read(pool); }
  void OnAdopted(const AdoptionReport& report) override {
    if (on_adopted) on_adopted(report);
  }
  void OnKeysExpired(uint64_t keys) override {
    if (on_keys_expired) on_keys_expired(keys);
  }
  void OnErasureResumed(const std::string& tenant, const EraseReport& report,
                        const Status& status) override {
    if (on_erasure_resumed) on_erasure_resumed(tenant, report, status);
  }
  void OnIncident(const Incident& incident) override { incidents.push_back(incident); }
};

}  // namespace kvtier
