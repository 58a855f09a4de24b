// What the server refused and why.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/error.h"

namespace kvtier {

struct ServerCounters {
  uint64_t connections = 0;
  uint64_t sessions = 0;  // those that were greeted
  uint64_t requests = 0;
  // By Error::reason: a finite list, since reasons are constants of the program.
  std::map<std::string, uint64_t> refusals;

  void CountRefusal(const Error& error) { ++refusals[error.reason]; }
};

}  // namespace kvtier
