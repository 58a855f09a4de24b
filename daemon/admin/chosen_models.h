// SPDX-License-Identifier: Apache-2.0
// Finds the namespaces that a request on the admin socket means by tenant, model and epoch. One
// name may stand for several fingerprints, and a model has one for each of its groups.
#pragma once

#include <vector>

#include "daemon/admin/admin_request.h"
#include "daemon/session/models.h"
#include "tiers/cache.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// The namespaces of the request's tenant, model and epoch, in rising order; all of them if it names
// none. A model is
// found by its name, and by its epoch, only if the registry knows it: on disk there are
// fingerprints, but no names.
[[nodiscard]] std::vector<NamespaceId> NamespacesOf(const Cache& cache, const ModelRegistry& models,
                                                    const AdminRequestBody& request);

}  // namespace kvtier
