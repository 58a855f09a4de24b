// SPDX-License-Identifier: Apache-2.0
// Deletes periods that have ended, in small parts.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cold/rados/rados_cluster.h"
#include "daemon/cold/rados/rados_names.h"
#include "daemon/cold/rados/rados_thread.h"

namespace kvtier {

// Hours of the day (UTC) in which objects are deleted.
struct RadosHours {
  int first = 0;
  int count = 24;

  [[nodiscard]] bool Contains(int hour) const { return (hour - first + 24) % 24 < count; }
};

// The store's thread only; `cluster` and `thread` are borrowed. Every host may do it at any time:
// what another has deleted meanwhile is no error.
class RadosCleaner {
 public:
  RadosCleaner(RadosCluster* cluster, RadosThread* thread, RadosHours hours);

  // Begins with the periods of these tenants now and then; about once a second.
  void Tick(const std::vector<std::string>& tenants);

 private:
  // One index of a period, which is emptied.
  struct Target {
    std::string tenant;
    RadosPeriodKey key;
  };
  struct Part;

  void NextTenant();
  void OnList(const std::string& tenant, int error, const std::vector<std::string>& keys);
  void NextTarget();
  void OnIndex(int error, std::vector<std::string> hashes);
  void OnRemoved(const std::shared_ptr<Part>& part);
  void RemoveIndex();
  void Rest();

  RadosCluster& cluster_;
  RadosThread& thread_;
  const RadosHours hours_;
  std::chrono::steady_clock::time_point begin_at_;
  bool under_way_ = false;
  std::vector<std::string> tenants_;
  std::vector<Target> targets_;
};

}  // namespace kvtier
