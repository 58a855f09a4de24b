// SPDX-License-Identifier: Apache-2.0
// The mistakes of a configuration, all of which are told at once, so that an administrator need not
// try a file again for each.
#pragma once

#include <optional>
#include <utility>

#include "base/result.h"

namespace kvtier {

// Plain data, for one thread.
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

}  // namespace kvtier
