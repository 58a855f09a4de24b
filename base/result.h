// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error. Every call that can fail returns one; exceptions end in the file
// that calls the library throwing them.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "base/error.h"

namespace kvtier {

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
