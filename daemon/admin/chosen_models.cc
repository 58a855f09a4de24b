// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/chosen_models.h"

namespace kvtier {
namespace {

// Fewer digits of a fingerprint would fit too many models by chance.
constexpr size_t kMinModelDigits = 4;

bool IsChosen(const ModelRegistry& models, const NamespaceIdentity& name_space,
              const AdminRequestBody& request) {
  if (!request.tenant.empty() && name_space.tenant != request.tenant) return false;
  const auto group = models.FindGroup(name_space.tenant, name_space.model);
  if (!request.epoch.empty() && (!group || group->model->record.revision != request.epoch)) {
    return false;
  }
  if (request.model.empty()) return true;
  if (request.model.size() >= kMinModelDigits &&
      name_space.model.Hex().starts_with(request.model)) {
    return true;
  }
  return group && group->model->record.name == request.model;
}

}  // namespace

std::vector<NamespaceId> NamespacesOf(const Cache& cache, const ModelRegistry& models,
                                      const AdminRequestBody& request) {
  std::vector<NamespaceId> ids;
  const std::vector<NamespaceIdentity> namespaces = cache.Namespaces();
  for (uint32_t i = 0; i < namespaces.size(); ++i) {
    const bool is_free = namespaces[i].block_bytes == 0;
    if (!is_free && IsChosen(models, namespaces[i], request)) ids.emplace_back(i);
  }
  return ids;
}

}  // namespace kvtier
