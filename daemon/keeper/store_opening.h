// SPDX-License-Identifier: Apache-2.0
// Which holder of descriptors this process can have.
#pragma once

#include <memory>

#include "daemon/keeper/descriptor_store.h"

namespace kvtier {

// With the holder that this process can have: systemd if it offers its store, else a keeper, which
// is started if none runs; else one that keeps nothing and says why. Never null. It blocks
// for some milliseconds as a rule and some seconds at most, so the loop must not run yet.
[[nodiscard]] std::unique_ptr<DescriptorStore> OpenDescriptorStore(
    const DescriptorStoreOptions& options);

}  // namespace kvtier
