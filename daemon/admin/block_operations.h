// SPDX-License-Identifier: Apache-2.0
// Admin operations on single blocks: listing, looking at, looking up, pinning, evicting.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/admin/admin_operation.h"
#include "daemon/admin/admin_request.h"

namespace kvtier {

// "ls": up to `limit` blocks from `cursor` on, gathered in steps short enough for the event loop.
// The reply carries the cursor for the next. Errors: kInvalidArgument "bad_request".
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeListing(const ServiceContext& context,
                                                                  const AdminRequestBody& request,
                                                                  std::shared_ptr<AdminCall> call);

// These answer at once; they return the reply. Errors: kInvalidArgument "bad_request", and as
// noted.
[[nodiscard]] Result<std::string> InspectBlock(const ServiceContext& context,
                                               const AdminRequestBody& request);
// kNotFound "unknown_namespace" when no block of such a tenant and model was ever cached;
// kInvalidArgument "ambiguous_namespace" when several fit.
[[nodiscard]] Result<std::string> LookUpBlocks(const ServiceContext& context,
                                               const AdminRequestBody& request);
// kLimitExceeded "pin_limit". A time of 0 unpins.
[[nodiscard]] Result<std::string> PinBlocks(const ServiceContext& context,
                                            const AdminRequestBody& request);
[[nodiscard]] Result<std::string> EvictBlocks(const ServiceContext& context,
                                              const AdminRequestBody& request);

}  // namespace kvtier
