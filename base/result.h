// SPDX-License-Identifier: Apache-2.0
// How a call fails. A call that can fail because of its input, the machine or another process
// returns Result<T>: a value or an Error. Exceptions end in the file that calls the library
// throwing them. KVT_CHECK is for assumptions that only a fault of this program can break.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

// Ends the process when a programmer's assumption does not hold. Never for input: bad input is an
// Error, since a client must not be able to end the daemon.
#define KVT_CHECK(condition)                                                             \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

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

// A failure, described for programs (code, reason) and for people (context).
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  // A short stable identifier, for example "frame_too_long"; also the label of the error's counter.
  std::string reason;
  // The particulars for a person: which object, which value, which bound.
  std::string context;

  // "code: reason (context)".
  [[nodiscard]] std::string ToString() const;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

[[nodiscard]] inline tl::unexpected<Error> MakeError(ErrorCode code, std::string reason,
                                                     std::string context = {}) {
  return tl::unexpected<Error>(Error{code, std::move(reason), std::move(context)});
}

}  // namespace kvtier

#define KVT_CONCAT_INNER(a, b) a##b
#define KVT_CONCAT(a, b) KVT_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Status or Result) from the calling function.
#define KVT_RETURN_IF_ERROR(expression)                                        \
  do {                                                                         \
    if (auto kvt_status = (expression); !kvt_status)                           \
      return ::tl::unexpected<::kvtier::Error>(std::move(kvt_status).error()); \
  } while (false)

// KVT_ASSIGN_OR_RETURN(auto x, MayFail()): declares x, or returns the error.
#define KVT_ASSIGN_OR_RETURN(declaration, expression) \
  KVT_ASSIGN_OR_RETURN_IMPL(KVT_CONCAT(kvt_result_, __LINE__), declaration, expression)
#define KVT_ASSIGN_OR_RETURN_IMPL(result, declaration, expression)                  \
  auto result = (expression);                                                       \
  if (!result) return ::tl::unexpected<::kvtier::Error>(std::move(result).error()); \
  declaration = std::move(result).value()
