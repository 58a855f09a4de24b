// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/model_labels.h"

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

}  // namespace kvtier
