// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_cleaner.h"

#include <cerrno>
#include <ctime>
#include <random>
#include <utility>

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Deleted at once, so that other requests hardly wait.
constexpr size_t kPartObjects = 32;
// Clocks of hosts differ, and a load may still read.
constexpr int64_t kGraceS = 300;
constexpr int kFirstRestS = 5;
constexpr int kRestS = 600;

}  // namespace

struct RadosCleaner::Part {
  std::vector<std::string> hashes;
  size_t pending = 0;
  int error = 0;
};

RadosCleaner::RadosCleaner(RadosCluster* cluster, RadosThread* thread, RadosHours hours)
    : cluster_(*cluster),
      thread_(*thread),
      hours_(hours),
      begin_at_(SteadyClock::now() + std::chrono::seconds(kFirstRestS)) {}

void RadosCleaner::Tick(const std::vector<std::string>& tenants) {
  const int hour = static_cast<int>(std::time(nullptr) / 3600 % 24);
  if (under_way_ || tenants.empty() || SteadyClock::now() < begin_at_ || !hours_.Contains(hour)) {
    return;
  }
  under_way_ = true;
  tenants_ = tenants;
  NextTenant();
}

// Hosts that started together are not to do the same at the same time.
void RadosCleaner::Rest() {
  std::random_device random;
  std::uniform_int_distribution<int> seconds(kRestS / 2, kRestS);
  begin_at_ = SteadyClock::now() + std::chrono::seconds(seconds(random));
  under_way_ = false;
}

void RadosCleaner::NextTenant() {
  if (tenants_.empty()) return Rest();
  const std::string tenant = std::move(tenants_.back());
  tenants_.pop_back();
  cluster_.ListKeys(RadosPeriods(tenant), "", kPartObjects,
                    [this, tenant](int error, std::vector<std::string> keys, bool) {
                      thread_.Post([this, tenant, error, keys = std::move(keys)] {
                        OnList(tenant, error, keys);
                      });
                    });
}

// The oldest are first. Periods of a list that does not fit into a page wait for the next time.
void RadosCleaner::OnList(const std::string& tenant, int error,
                          const std::vector<std::string>& keys) {
  const RadosPeriod now = RadosPeriodOf(std::time(nullptr) - kGraceS);
  for (const std::string& text : keys) {
    const auto key = RadosPeriodKey::Parse(text);
    if (error == 0 && key && key->period < now) targets_.push_back({tenant, *key});
  }
  NextTarget();
}

void RadosCleaner::NextTarget() {
  if (targets_.empty()) return NextTenant();
  const Target& target = targets_.back();
  cluster_.ListKeys(RadosIndex({target.tenant, target.key.model}, target.key.period), "",
                    kPartObjects, [this](int error, std::vector<std::string> hashes, bool) {
                      thread_.Post([this, error, hashes = std::move(hashes)]() mutable {
                        OnIndex(error, std::move(hashes));
                      });
                    });
}

// A deletion that fails is left to the next time.
void RadosCleaner::OnIndex(int error, std::vector<std::string> hashes) {
  if (error != 0 && error != -ENOENT) {
    targets_.pop_back();
    return NextTarget();
  }
  if (hashes.empty()) return RemoveIndex();
  const Target& target = targets_.back();
  const auto part = std::make_shared<Part>();
  part->hashes = std::move(hashes);
  part->pending = part->hashes.size();
  for (const std::string& hash : part->hashes) {
    const RadosName name{{target.tenant, target.key.model}, hash};
    cluster_.Remove(RadosObject(name, target.key.period), [this, part](int failed) {
      thread_.Post([this, part, failed] {
        if (failed != 0 && failed != -ENOENT) part->error = failed;
        if (--part->pending == 0) OnRemoved(part);
      });
    });
  }
}

// Only now: what no index names would never be deleted.
void RadosCleaner::OnRemoved(const std::shared_ptr<Part>& part) {
  const Target& target = targets_.back();
  if (part->error != 0) {
    targets_.pop_back();
    return NextTarget();
  }
  cluster_.RemoveKeys(RadosIndex({target.tenant, target.key.model}, target.key.period),
                      part->hashes, [this](int failed) {
                        thread_.Post([this, failed] {
                          if (failed != 0) targets_.pop_back();
                          NextTarget();
                        });
                      });
}

void RadosCleaner::RemoveIndex() {
  const Target target = std::move(targets_.back());
  targets_.pop_back();
  const auto forget = [this, target](int failed) {
    thread_.Post([this, target, failed] {
      if (failed != 0 && failed != -ENOENT) return NextTarget();
      cluster_.RemoveKeys(RadosPeriods(target.tenant), {target.key.Text()},
                          [this](int) { thread_.Post([this] { NextTarget(); }); });
    });
  };
  cluster_.Remove(RadosIndex({target.tenant, target.key.model}, target.key.period), forget);
}

}  // namespace kvtier
