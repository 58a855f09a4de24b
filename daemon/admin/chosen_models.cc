// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/chosen_models.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

// Fewer digits of a fingerprint would fit too many models by chance.
constexpr size_t kMinModelDigits = 4;
// One step takes a millisecond or two.
constexpr uint32_t kNamespacesPerStep = 4096;

}  // namespace

void OperationOnModels::Run() {
  if (Cancelled()) return;
  const uint32_t known = cache_.NamespaceCount();
  const uint32_t end = std::min(known, next_ + kNamespacesPerStep);
  for (; next_ < end; ++next_) {
    if (IsChosen(cache_.IdentityOf(NamespaceId(next_)))) chosen_.emplace_back(next_);
  }
  if (next_ >= known) return OnChosen(std::move(chosen_));
  Later(0, [this] { Run(); });
}

bool OperationOnModels::IsChosen(const NamespaceIdentity& name_space) const {
  if (name_space.block_bytes == 0) return false;  // the number is free
  if (!request_.tenant.empty() && name_space.tenant != request_.tenant) return false;
  if (request_.model.empty() && request_.epoch.empty()) return true;
  const auto group = models_.FindGroup(name_space.tenant, name_space.model);
  if (!request_.epoch.empty() && (!group || group->model->record.revision != request_.epoch)) {
    return false;
  }
  if (request_.model.empty()) return true;
  if (request_.model.size() >= kMinModelDigits &&
      name_space.model.Hex().starts_with(request_.model)) {
    return true;
  }
  return group && group->model->record.name == request_.model;
}

}  // namespace kvtier
