// SPDX-License-Identifier: Apache-2.0
// What went wrong, for programs (code, reason) and for people (context).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvtier {

// Codes are part of the wire protocol and of the C ABI: values never change, new ones are appended.
enum class ErrorCode : uint16_t {
  kInvalidArgument = 1,
  kNotFound = 2,
  kAlreadyExists = 3,
  kPermissionDenied = 4,
  kResourceExhausted = 5,
  kStaleHandle = 6,
  kNotOwner = 7,
  kWrongState = 8,
  kLimitExceeded = 9,
  kUnavailable = 10,
  kIoError = 11,
  kCorrupt = 12,
  kTimeout = 13,
  kUnsupported = 14,
  kCancelled = 15,
  kInternal = 16,
};
// Codes are 1 to this.
inline constexpr size_t kErrorCodeCount = 16;

// The code's name as it appears in logs and JSON, for example "stale_handle".
[[nodiscard]] std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  // A short stable identifier, for example "frame_too_long"; also the label of the error's counter.
  std::string reason;
  // The particulars for a person: which object, which value, which bound.
  std::string context;

  // "code: reason (context)".
  [[nodiscard]] std::string ToString() const;
};

}  // namespace kvtier
