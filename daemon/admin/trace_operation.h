// SPDX-License-Identifier: Apache-2.0
// The admin operation that tells the trace events of a while.
#pragma once

#include <memory>

#include "base/result.h"
#include "daemon/admin/admin_operation.h"
#include "daemon/admin/admin_request.h"

namespace kvtier {

// Events from request.cursor on, or, where that is 0, of the last request.since_ms (0: all there
// are); request.limit at most. Replies with
//   {"schema":"kvtier.trace/1","now_us":,"wall_ms":,"cursor":,"end":,"lost":,"sessions":[{"id":,
//    "tenant":,"client":,"pid":},...],"events":[{...},...]}
// "cursor" is for the next call; when it equals "end", there are no more. "lost" says how many
// events from request.cursor on had been overwritten. Times are monotonic; now_us and wall_ms name
// the same moment. Members of an event that are zero are left out. Errors: kUnsupported
// "trace_off", kInvalidArgument "bad_request".
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeTraceListing(
    const ServiceContext& context, const AdminRequestBody& request,
    std::shared_ptr<AdminCall> call);

}  // namespace kvtier
