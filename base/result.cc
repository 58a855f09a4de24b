// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <fmt/format.h>

#include "base/enum_names.h"

namespace kvtier {

namespace {

constexpr EnumNames<ErrorCode, kErrorCodeCount> kErrorCodeNames({
    {ErrorCode::kInvalidArgument, "invalid_argument"},
    {ErrorCode::kNotFound, "not_found"},
    {ErrorCode::kAlreadyExists, "already_exists"},
    {ErrorCode::kPermissionDenied, "permission_denied"},
    {ErrorCode::kResourceExhausted, "resource_exhausted"},
    {ErrorCode::kStaleHandle, "stale_handle"},
    {ErrorCode::kNotOwner, "not_owner"},
    {ErrorCode::kWrongState, "wrong_state"},
    {ErrorCode::kLimitExceeded, "limit_exceeded"},
    {ErrorCode::kUnavailable, "unavailable"},
    {ErrorCode::kIoError, "io_error"},
    {ErrorCode::kCorrupt, "corrupt"},
    {ErrorCode::kTimeout, "timeout"},
    {ErrorCode::kUnsupported, "unsupported"},
    {ErrorCode::kCancelled, "cancelled"},
    {ErrorCode::kInternal, "internal"},
});

}  // namespace

std::string_view ErrorCodeName(ErrorCode code) { return kErrorCodeNames.Of(code); }

std::string Error::ToString() const {
  if (context.empty()) return fmt::format("{}: {}", ErrorCodeName(code), reason);
  return fmt::format("{}: {} ({})", ErrorCodeName(code), reason, context);
}

}  // namespace kvtier
