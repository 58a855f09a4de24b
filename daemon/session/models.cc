// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/models.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtier {

Result<const RegisteredModel*> ModelRegistry::Register(const std::string& tenant,
                                                       const ModelRecord& record) {
  TenantModels& own = tenants_[tenant];
  std::deque<RegisteredModel>& models = own.models;
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
  model.label = labels_.LabelFor(tenant, record.name, record.revision);
  for (uint32_t i = 0; i < record.groups.size(); ++i) {
    model.groups.push_back({record.GroupFingerprint(i), record.groups[i].BlockBytes()});
    own.groups.try_emplace(model.groups.back().fingerprint, Group{&model, i});
  }
  return &model;
}

size_t ModelRegistry::count(const std::string& tenant) const {
  const auto models = tenants_.find(tenant);
  return models == tenants_.end() ? 0 : models->second.models.size();
}

Result<const RegisteredModel*> ModelRegistry::Find(const std::string& tenant,
                                                   wire::ModelId id) const {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end() || id.value == 0 || id.value > models->second.models.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_model",
                     fmt::format("no model {} was registered", id.value));
  }
  return &models->second.models[id.value - 1];
}

std::optional<ModelRegistry::Group> ModelRegistry::FindGroup(
    const std::string& tenant, const ModelFingerprint& fingerprint) const {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end()) return std::nullopt;
  const auto group = models->second.groups.find(fingerprint);
  if (group == models->second.groups.end()) return std::nullopt;
  return group->second;
}

std::string ModelRegistry::NameOf(const std::string& tenant,
                                  const std::string& fingerprint_hex) const {
  const auto fingerprint = ModelFingerprint::FromHex(fingerprint_hex);
  if (!fingerprint) return {};
  const auto group = FindGroup(tenant, *fingerprint);
  return group ? group->model->record.name : std::string();
}

}  // namespace kvtier
