// SPDX-License-Identifier: Apache-2.0
// Says of an error at the start which configuration key it is about, where that stands, and what to
// do.
#pragma once

#include <string_view>
#include <utility>

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// `error` with the context "PLACE: KEY: what went wrong; the remedy". The key is the one that the
// error's reason is known to be about, else `key`, "section.name".
[[nodiscard]] Error BlameKey(const Config& config, std::string_view key, Error error);

template <typename Value>
[[nodiscard]] Result<Value> BlameKey(const Config& config, std::string_view key,
                                     Result<Value> result) {
  if (result) return result;
  return tl::unexpected(BlameKey(config, key, std::move(result).error()));
}

// Whether a start that failed so is the configuration's fault, so that trying again will not help.
[[nodiscard]] bool IsConfigurationError(const Error& error);

}  // namespace kvtier
