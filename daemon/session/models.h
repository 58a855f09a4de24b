// SPDX-License-Identifier: Apache-2.0
// The models that clients have registered, by tenant.
//
// Event loop only. The registry belongs to the daemon and outlives every session. Models are never
// removed: sessions and pools refer to them, and max_models_per_tenant bounds what a tenant can
// make the registry hold.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "daemon/session/model_labels.h"
#include "protocol/model_record.h"
#include "protocol/session_messages.h"

namespace kvtier {

// One registered model. The registry owns it; it does not change after its registration.
struct RegisteredModel {
  wire::ModelId id;
  ModelRecord record;
  ModelFingerprint fingerprint;
  // What the cache knows each group by, as the record's groups.
  std::vector<wire::RegisterModelReply::Group> groups;
  uint32_t label = 0;  // among the registry's labels
};

// Ids are a tenant's own, count from 1 and last as long as the daemon's process. The returned
// pointers stay valid as long as the registry.
class ModelRegistry {
 public:
  // Metrics give at most `max_labels_per_tenant` models of a tenant a label of their own.
  ModelRegistry(uint32_t max_models_per_tenant, uint32_t max_labels_per_tenant)
      : max_models_per_tenant_(max_models_per_tenant), labels_(max_labels_per_tenant) {}

  // The same record gives the same id. REQUIRES: record.Validate() passed. Errors: kLimitExceeded
  // "too_many_models".
  [[nodiscard]] Result<const RegisteredModel*> Register(const std::string& tenant,
                                                        const ModelRecord& record);
  // How many the tenant has registered.
  [[nodiscard]] size_t count(const std::string& tenant) const;
  // Errors: kNotFound "unknown_model".
  [[nodiscard]] Result<const RegisteredModel*> Find(const std::string& tenant,
                                                    wire::ModelId id) const;
  // A group of a registered model.
  struct Group {
    const RegisteredModel* model = nullptr;
    uint32_t index = 0;  // of the model's groups
  };
  // Nothing if no model of the tenant has a group of this fingerprint.
  [[nodiscard]] std::optional<Group> FindGroup(const std::string& tenant,
                                               const ModelFingerprint& fingerprint) const;
  // The name of the model that has a group with this fingerprint, or an empty text.
  [[nodiscard]] std::string NameOf(const std::string& tenant,
                                   const std::string& fingerprint_hex) const;
  [[nodiscard]] const std::vector<ModelLabel>& labels() const { return labels_.all(); }

 private:
  struct TenantModels {
    std::deque<RegisteredModel> models;  // in the order of their ids
    // Of all models; a group that several have, as ranks do a replicated one, is the first one's.
    std::unordered_map<ModelFingerprint, Group> groups;
  };

  const uint32_t max_models_per_tenant_;
  ModelLabels labels_;
  std::unordered_map<std::string, TenantModels> tenants_;
};

}  // namespace kvtier
