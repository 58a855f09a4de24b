// SPDX-License-Identifier: Apache-2.0
// Finds the namespaces that a request on the admin socket means by tenant, model and epoch. One
// name may stand for several fingerprints, and a model has one for each of its groups.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/admin/admin_operation.h"
#include "daemon/admin/admin_request.h"
#include "daemon/session/models.h"
#include "tiers/cache.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// An operation on the namespaces of the request's tenant, model and epoch; on all if it names none.
// A model is found by its name, and by its epoch, only if the registry knows it: on disk there are
// fingerprints, but no names.
//
// It chooses them in steps, because a daemon may have come to know hundreds of thousands, and does
// nothing if its caller has gone meanwhile. Event loop only.
class OperationOnModels : public AdminOperation {
 public:
  // `models` is borrowed and outlives this.
  OperationOnModels(const OperationBasics& basics, const ModelRegistry* models,
                    std::shared_ptr<AdminCall> call, AdminRequestBody request)
      : AdminOperation(basics, std::move(call)), models_(*models), request_(std::move(request)) {}

  void Run() override;

 protected:
  // Called once, with the namespaces in rising order.
  virtual void OnChosen(std::vector<NamespaceId> chosen) = 0;
  // Every namespace is one of them.
  [[nodiscard]] bool ChoosesAll() const {
    return request_.tenant.empty() && request_.model.empty() && request_.epoch.empty();
  }

  const ModelRegistry& models_;
  const AdminRequestBody request_;

 private:
  [[nodiscard]] bool IsChosen(const NamespaceIdentity& name_space) const;

  uint32_t next_ = 0;
  std::vector<NamespaceId> chosen_;
};

}  // namespace kvtier
