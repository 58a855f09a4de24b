// SPDX-License-Identifier: Apache-2.0
// Checks of a configuration as a whole: values that do not go together, and errors of the start
// that a key is the reason of.
//
// Pure functions, for any thread. A configuration that passes can be used without further checks;
// only the machine can tell more (free memory, devices, files), when they are opened.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// The mistakes of a configuration, all of which are told at once, so that an administrator need not
// try a file again for each. Plain data, for one thread.
class Mistakes {
 public:
  // Takes the error, if `status` is one. Contexts stand one below the other, in the order of the
  // calls; code and reason are the first one's.
  void Add(Status status) {
    if (status) return;
    if (!first_) {
      first_ = std::move(status).error();
    } else {
      first_->context += "\n" + status.error().context;
    }
  }
  [[nodiscard]] bool empty() const { return !first_; }
  [[nodiscard]] Status Take() && {
    if (!first_) return {};
    return tl::unexpected<Error>(*std::move(first_));
  }

 private:
  std::optional<Error> first_;
};

// Errors: kInvalidArgument "config_conflict"; the context names the place, the keys and the way
// out, a line for each of the values that do not go together.
[[nodiscard]] Status CheckConfig(const Config& config);

// The names in `events.tenants` that no tenant has, each with its place as a sentence: mistyped
// ones are told of nothing. No mistake, because a tenant may come later.
[[nodiscard]] std::vector<std::string> UnknownTenantsTold(const Config& config);

// The key that says where the disk tier is.
[[nodiscard]] std::string_view DirectoryKey(const Config& config);

// Where `key` ("section.name") was given, for complaints about it; "(default)" if it was not.
[[nodiscard]] std::string PlaceOfKey(const Config& config, std::string_view key);

// `error` with the context "PLACE: KEY: what went wrong; the remedy". The key is the one that the
// error's reason is known to be about, else `key`, "section.name".
[[nodiscard]] Error AnnotateWithKey(const Config& config, std::string_view key, Error error);

template <typename Value>
[[nodiscard]] Result<Value> AnnotateWithKey(const Config& config, std::string_view key,
                                            Result<Value> result) {
  if (result) return result;
  return tl::unexpected(AnnotateWithKey(config, key, std::move(result).error()));
}

// Whether a start that failed so fails again until the configuration is changed. The process then
// ends with the exit code on which systemd does not restart it.
[[nodiscard]] bool IsConfigurationError(const Error& error);

}  // namespace kvtier
