// SPDX-License-Identifier: Apache-2.0
// Which periods have objects of a model, and which objects: the lists and indexes of the pool.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cold/rados/rados_cluster.h"
#include "daemon/cold/rados/rados_names.h"
#include "daemon/cold/rados/rados_thread.h"

namespace kvtier {

// The store's thread only, on which everything is called back. `cluster` and `thread` are borrowed;
// errors are negative errnos.
class RadosCatalog {
 public:
  using Done = std::function<void(int error)>;
  using GotPeriods = std::function<void(int error, const std::set<RadosPeriod>& periods)>;
  // For each hash the period of its object, 0 without one.
  using Located = std::function<void(int error, const std::vector<RadosPeriod>& periods)>;

  RadosCatalog(RadosCluster* cluster, RadosThread* thread) : cluster_(*cluster), thread_(*thread) {}

  // Notes that the model has that object: what no index names would never be deleted.
  void Add(const RadosName& name, RadosPeriod period, const Done& done);
  // One question of each period that has not ended yet.
  void Locate(const RadosModel& model, std::vector<std::string> hashes, const Located& located);
  // The periods of the model that have not been deleted, as the pool says now.
  void Periods(const RadosModel& model, const GotPeriods& got);

  // The periods of all the tenant's models, as the pool says now.
  using GotModels =
      std::function<void(int error, const std::map<std::string, std::set<RadosPeriod>>& periods)>;
  void AllPeriods(const std::string& tenant, const GotModels& got);

  // Tenants that were spoken of since the start.
  [[nodiscard]] std::vector<std::string> Tenants() const;

 private:
  // Keys that wait until the ones before them have been written, to be written together.
  struct Batch {
    std::vector<std::string> keys;
    std::vector<Done> waiting;
    bool under_way = false;
  };
  struct Tenant {
    std::map<std::string, std::set<RadosPeriod>> periods;  // by model
    std::chrono::steady_clock::time_point read_at;
    bool known = false;
    bool reading = false;
    std::vector<Done> waiting;
  };

  void AddKey(const RadosPlace& place, std::string key, Done done);
  void Send(const RadosPlace& place);
  void OnSent(const RadosPlace& place, const std::vector<Done>& waiting, int error);
  // Reads the tenant's list unless it was read lately.
  void Refresh(const std::string& tenant, bool at_once, Done done);
  void ReadList(const std::string& tenant, std::vector<std::string> keys);
  void OnList(const std::string& tenant, int error, const std::vector<std::string>& keys);
  void AskIndexes(const RadosModel& model, const std::vector<std::string>& hashes,
                  const Located& located);

  RadosCluster& cluster_;
  RadosThread& thread_;
  std::map<std::string, Tenant> tenants_;
  std::map<std::pair<std::string, std::string>, Batch> batches_;  // by namespace and object
};

}  // namespace kvtier
