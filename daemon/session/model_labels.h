// SPDX-License-Identifier: Apache-2.0
// The labels that metrics give the models that clients register. Clients choose names, and each of
// these makes series that a monitoring system keeps for weeks: so there are only so many of them.
// Revisions have none, since a running engine may get other weights thousands of times.
//
// Event loop only. Labels are never removed, so that counters under a label never fall.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvtier {

// Everything that a tenant registered under one name: the ranks, layouts and weights of a model
// share one. Without a name: the models of the tenant that found no label of their own left.
struct ModelLabel {
  std::string tenant;
  std::string name;
  friend bool operator==(const ModelLabel&, const ModelLabel&) = default;
};

class ModelLabels {
 public:
  explicit ModelLabels(uint32_t most_per_tenant) : most_per_tenant_(most_per_tenant) {}

  // The position in all() of the label for such a model: a new one, if the tenant has not as many
  // as it may, else the one without a name. REQUIRES: `name` is not empty.
  uint32_t LabelFor(const std::string& tenant, const std::string& name);
  [[nodiscard]] const std::vector<ModelLabel>& all() const { return all_; }

 private:
  const uint32_t most_per_tenant_;
  std::vector<ModelLabel> all_;
  std::unordered_map<std::string, uint32_t> named_;  // labels with a name, by tenant
};

}  // namespace kvtier
