// SPDX-License-Identifier: Apache-2.0
// What the server refused and why.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"

namespace kvtier {

struct ServerCounters {
  uint64_t connections = 0;
  uint64_t sessions = 0;  // those that were greeted
  uint64_t requests = 0;
  // By Error::reason: a finite list, since reasons are constants of the program.
  std::map<std::string, uint64_t> refusals;
  // The same by Error::code less 1: all of them from the start, for the metrics.
  std::array<uint64_t, kErrorCodeCount> refusals_by_code{};

  void CountRefusal(const Error& error) {
    ++refusals[error.reason];
    ++refusals_by_code.at(static_cast<size_t>(error.code) - 1);
  }
};

}  // namespace kvtier
