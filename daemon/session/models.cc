// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/models.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtier {

Result<const RegisteredModel*> ModelRegistry::Register(const std::string& tenant,
                                                       const ModelRecord& record) {
  TenantModels& models = tenants_[tenant];
  const ModelFingerprint fingerprint = record.Fingerprint();
  const auto found = std::ranges::find(models, fingerprint, &RegisteredModel::fingerprint);
  if (found != models.end()) return &*found;
  // Without a bound a client could register records that differ in a byte until the daemon's memory
  // is used up. Registering a known record again is free, so that restarting engines never meet the
  // bound.
  if (models.size() >= max_models_per_tenant_) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_models",
                     fmt::format("tenant \"{}\" has registered {} models, the most allowed", tenant,
                                 models.size()));
  }
  const wire::ModelId id(static_cast<uint32_t>(models.size() + 1));
  RegisteredModel& model = models.emplace_back(RegisteredModel{id, record, fingerprint, {}});
  for (uint32_t i = 0; i < record.groups.size(); ++i) {
    model.groups.push_back({record.GroupFingerprint(i), record.groups[i].BlockBytes()});
  }
  return &model;
}

size_t ModelRegistry::count(const std::string& tenant) const {
  const auto models = tenants_.find(tenant);
  return models == tenants_.end() ? 0 : models->second.size();
}

Result<const RegisteredModel*> ModelRegistry::Find(const std::string& tenant,
                                                   wire::ModelId id) const {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end() || id.value == 0 || id.value > models->second.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_model",
                     fmt::format("no model {} was registered", id.value));
  }
  return &models->second[id.value - 1];
}

std::optional<ModelRegistry::Group> ModelRegistry::FindGroup(
    const std::string& tenant, const ModelFingerprint& fingerprint) const {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end()) return std::nullopt;
  for (const RegisteredModel& model : models->second) {
    const auto found =
        std::ranges::find(model.groups, fingerprint, &wire::RegisterModelReply::Group::fingerprint);
    if (found == model.groups.end()) continue;
    return Group{&model, static_cast<uint32_t>(found - model.groups.begin())};
  }
  return std::nullopt;
}

std::string ModelRegistry::NameOf(const std::string& tenant,
                                  const std::string& fingerprint_hex) const {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end()) return {};
  for (const RegisteredModel& model : models->second) {
    for (const wire::RegisterModelReply::Group& group : model.groups) {
      if (group.fingerprint.Hex() == fingerprint_hex) return model.record.name;
    }
  }
  return {};
}

}  // namespace kvtier
