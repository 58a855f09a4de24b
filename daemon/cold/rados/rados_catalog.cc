// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_catalog.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>
#include <memory>
#include <unordered_map>

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Others begin a period once an hour; this long their first blocks of it are misses here.
constexpr std::chrono::seconds kListStaysFresh(5);
// Models times periods: far above what a fleet has.
constexpr size_t kMostPeriods = 65'536;

struct Location {
  std::vector<RadosPeriod> periods;
  size_t pending = 0;
  int error = 0;
};

}  // namespace

void RadosCatalog::Add(const RadosName& name, RadosPeriod period, const Done& done) {
  Tenant& tenant = tenants_[name.model.tenant];
  const auto add_hash = [this, name, period, done](int error) {
    if (error != 0) return done(error);
    tenants_[name.model.tenant].periods[name.model.model].insert(period);
    AddKey(RadosIndex(name.model, period), name.hash, done);
  };
  if (tenant.periods[name.model.model].contains(period)) return add_hash(0);
  AddKey(RadosPeriods(name.model.tenant), RadosPeriodKey{period, name.model.model}.Text(),
         add_hash);
}

void RadosCatalog::AddKey(const RadosPlace& place, std::string key, Done done) {
  Batch& batch = batches_[{place.name_space, place.object}];
  batch.keys.push_back(std::move(key));
  batch.waiting.push_back(std::move(done));
  if (!batch.under_way) Send(place);
}

void RadosCatalog::Send(const RadosPlace& place) {
  Batch& batch = batches_[{place.name_space, place.object}];
  batch.under_way = true;
  const std::vector<std::string> keys = std::exchange(batch.keys, {});
  cluster_.SetKeys(
      place, keys, [this, place, waiting = std::exchange(batch.waiting, {})](int error) mutable {
        thread_.Post(
            [this, place, waiting = std::move(waiting), error] { OnSent(place, waiting, error); });
      });
}

void RadosCatalog::OnSent(const RadosPlace& place, const std::vector<Done>& waiting, int error) {
  const auto batch = batches_.find({place.name_space, place.object});
  if (batch->second.keys.empty()) {
    batches_.erase(batch);
  } else {
    Send(place);
  }
  for (const Done& done : waiting) done(error);
}

void RadosCatalog::Refresh(const std::string& name, bool at_once, Done done) {
  Tenant& tenant = tenants_[name];
  const bool fresh = tenant.known && SteadyClock::now() - tenant.read_at < kListStaysFresh;
  if (fresh && !at_once) return done(0);
  tenant.waiting.push_back(std::move(done));
  if (std::exchange(tenant.reading, true)) return;
  ReadList(name, {});
}

// Page by page, after the keys that are there already.
void RadosCatalog::ReadList(const std::string& name, std::vector<std::string> keys) {
  const std::string after = keys.empty() ? std::string() : keys.back();
  auto on_page = [this, name, keys = std::move(keys)](int error, std::vector<std::string> page,
                                                      bool more) mutable {
    std::ranges::move(page, std::back_inserter(keys));
    thread_.Post([this, name, error, keys = std::move(keys), more] {
      const bool goes_on = error == 0 && more && !keys.empty() && keys.size() < kMostPeriods;
      goes_on ? ReadList(name, keys) : OnList(name, error, keys);
    });
  };
  cluster_.ListKeys(RadosPeriods(name), after, kMostPeriods, std::move(on_page));
}

// A tenant without a list has no objects.
void RadosCatalog::OnList(const std::string& name, int error,
                          const std::vector<std::string>& keys) {
  Tenant& tenant = tenants_[name];
  tenant.reading = false;
  if (error == 0 || error == -ENOENT) {
    error = 0;
    tenant.known = true;
    tenant.read_at = SteadyClock::now();
    tenant.periods.clear();
    for (const std::string& key : keys) {
      const auto parsed = RadosPeriodKey::Parse(key);
      if (parsed) tenant.periods[parsed->model].insert(parsed->period);
    }
  }
  for (const Done& done : std::exchange(tenant.waiting, {})) done(error);
}

void RadosCatalog::Locate(const RadosModel& model, std::vector<std::string> hashes,
                          const Located& located) {
  Refresh(model.tenant, false, [this, model, hashes = std::move(hashes), located](int error) {
    if (error != 0) return located(error, {});
    AskIndexes(model, hashes, located);
  });
}

void RadosCatalog::AskIndexes(const RadosModel& model, const std::vector<std::string>& hashes,
                              const Located& located) {
  std::set<RadosPeriod> periods = tenants_[model.tenant].periods[model.model];
  periods.erase(periods.begin(), periods.lower_bound(RadosPeriodOf(std::time(nullptr))));
  const auto location = std::make_shared<Location>();
  location->periods.resize(hashes.size());
  location->pending = periods.size();
  if (periods.empty()) return located(0, location->periods);
  const auto positions = std::make_shared<std::unordered_map<std::string, size_t>>();
  for (size_t i = 0; i < hashes.size(); ++i) positions->emplace(hashes[i], i);
  for (const RadosPeriod period : periods) {
    const auto answered = [location, positions, period, located](
                              int error, const std::vector<std::string>& found) {
      if (error != 0 && error != -ENOENT) location->error = error;
      for (const std::string& hash : found) {
        const auto position = positions->find(hash);
        if (position == positions->end()) continue;
        RadosPeriod& latest = location->periods[position->second];
        latest = std::max(latest, period);
      }
      if (--location->pending == 0) located(location->error, location->periods);
    };
    cluster_.FindKeys(
        RadosIndex(model, period), hashes,
        [this, answered](int error, std::vector<std::string> found) {
          thread_.Post([answered, error, found = std::move(found)] { answered(error, found); });
        });
  }
}

void RadosCatalog::Periods(const RadosModel& model, const GotPeriods& got) {
  Refresh(model.tenant, true, [this, model, got](int error) {
    got(error, tenants_[model.tenant].periods[model.model]);
  });
}

void RadosCatalog::AllPeriods(const std::string& tenant, const GotModels& got) {
  Refresh(tenant, true, [this, tenant, got](int error) { got(error, tenants_[tenant].periods); });
}

std::vector<std::string> RadosCatalog::Tenants() const {
  std::vector<std::string> names;
  for (const auto& [name, tenant] : tenants_) names.push_back(name);
  return names;
}

}  // namespace kvtier
