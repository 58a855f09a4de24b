// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/models.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtier {

uint32_t ModelLabels::LabelFor(const std::string& tenant, const std::string& name) {
  const auto position_of = [this](const ModelLabel& label) {
    return static_cast<uint32_t>(std::ranges::find(all_, label) - all_.begin());
  };
  const ModelLabel own{tenant, name};
  uint32_t position = position_of(own);
  if (position < all_.size()) return position;
  uint32_t& named = named_[tenant];
  if (named < most_per_tenant_) {
    ++named;
    all_.push_back(own);
    return position;
  }
  const ModelLabel others{tenant, ""};
  position = position_of(others);
  if (position == all_.size()) all_.push_back(others);
  return position;
}

Result<ModelRegistry::Registration> ModelRegistry::Register(const std::string& tenant,
                                                            const ModelRecord& record) {
  TenantModels& own = tenants_[tenant];
  const ModelFingerprint fingerprint = record.Fingerprint();
  if (const auto known = own.ids.find(fingerprint); known != own.ids.end()) {
    const auto place = own.by_id.at(known->second);
    own.models.splice(own.models.end(), own.models, place);
    return Registration{*place, false};
  }
  const auto idle = static_cast<size_t>(std::ranges::count_if(own.models, IsIdle));
  // Without a bound a client could register records that differ in a byte until the daemon's memory
  // is used up.
  if (own.models.size() - idle >= max_held_per_tenant_) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_models",
                     fmt::format("sessions of tenant \"{}\" use {} models, the most allowed",
                                 tenant, own.models.size() - idle));
  }
  if (idle >= kMaxIdleModels) Erase(&own, std::ranges::find_if(own.models, IsIdle));
  RegisteredModel model{wire::ModelId(++own.last_id), record, fingerprint, {}};
  model.label = labels_.LabelFor(tenant, record.name);
  for (uint32_t i = 0; i < record.groups.size(); ++i) {
    model.groups.push_back({record.GroupFingerprint(i), record.groups[i].BlockBytes()});
  }
  const auto place = own.models.insert(own.models.end(),
                                       std::make_shared<const RegisteredModel>(std::move(model)));
  const RegisteredModel& added = **place;
  own.by_id.emplace(added.id, place);
  own.ids.emplace(fingerprint, added.id);
  for (uint32_t i = 0; i < added.groups.size(); ++i) {
    own.groups.try_emplace({added.groups[i].fingerprint, added.id}, Group{&added, i});
  }
  return Registration{*place, true};
}

size_t ModelRegistry::count(const std::string& tenant) const {
  const auto models = tenants_.find(tenant);
  return models == tenants_.end() ? 0 : models->second.models.size();
}

Result<ModelHold> ModelRegistry::Find(const std::string& tenant, wire::ModelId id) const {
  const auto models = tenants_.find(tenant);
  if (models != tenants_.end()) {
    const auto found = models->second.by_id.find(id);
    if (found != models->second.by_id.end()) return *found->second;
  }
  return MakeError(ErrorCode::kNotFound, "unknown_model",
                   fmt::format("no model {} is registered", id.value));
}

std::optional<ModelRegistry::Group> ModelRegistry::FindGroup(
    const std::string& tenant, const ModelFingerprint& fingerprint) const {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end()) return std::nullopt;
  const auto& groups = models->second.groups;
  const auto group = groups.lower_bound({fingerprint, wire::ModelId(0)});
  if (group == groups.end() || group->first.first != fingerprint) return std::nullopt;
  return group->second;
}

std::string ModelRegistry::NameOf(const std::string& tenant,
                                  const std::string& fingerprint_hex) const {
  const auto fingerprint = ModelFingerprint::FromHex(fingerprint_hex);
  if (!fingerprint) return {};
  const auto group = FindGroup(tenant, *fingerprint);
  return group ? group->model->record.name : std::string();
}

void ModelRegistry::NoteNamespace(NamespaceId id, const RegisteredModel& model) {
  if (id.value >= namespace_labels_.size()) namespace_labels_.resize(id.value + 1);
  namespace_labels_[id.value] = model.label;
}

std::optional<uint32_t> ModelRegistry::LabelOf(NamespaceId id) const {
  return id.value < namespace_labels_.size() ? namespace_labels_[id.value] : std::nullopt;
}

bool ModelRegistry::IsHeld(const RegisteredModel& model, const std::string& tenant) const {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end()) return false;
  const auto found = models->second.by_id.find(model.id);
  return found != models->second.by_id.end() && !IsIdle(*found->second);
}

void ModelRegistry::Forget(const std::string& tenant, wire::ModelId id) {
  const auto models = tenants_.find(tenant);
  if (models == tenants_.end()) return;
  const auto found = models->second.by_id.find(id);
  if (found == models->second.by_id.end() || !IsIdle(*found->second)) return;
  Erase(&models->second, found->second);
}

void ModelRegistry::Erase(TenantModels* own, std::list<ModelHold>::iterator model) {
  const ModelHold erased = *model;
  own->by_id.erase(erased->id);
  own->ids.erase(erased->fingerprint);
  own->models.erase(model);
  for (const wire::RegisterModelReply::Group& group : erased->groups) {
    own->groups.erase({group.fingerprint, erased->id});
  }
}

}  // namespace kvtier
