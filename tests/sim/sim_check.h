// SPDX-License-Identifier: Apache-2.0
// Ends the simulation of a seed with a message; the runner adds the seed and how to reproduce it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvtier {

[[noreturn]] inline void FailSimulation(const std::string& message) {
  std::fprintf(stderr, "simulation: %s\n", message.c_str());
  std::abort();
}

}  // namespace kvtier

// `message` is evaluated only on failure.
#define SIM_CHECK(condition, message)                                                     \
  do {                                                                                    \
    if (!(condition)) ::kvtier::FailSimulation(std::string(#condition ": ") + (message)); \
  } while (false)
