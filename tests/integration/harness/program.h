// SPDX-License-Identifier: Apache-2.0
// Running the project's programs and others from tests, as a shell would.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace kvtier {

struct ProgramResult {
  int exit_code = -1;  // minus the signal, if one ended it
  std::string output;  // standard output
  std::string errors;  // standard error
};

// Runs `arguments[0]` and waits for it. With `uid`, as that user. Fails the test when it cannot be
// started.
[[nodiscard]] ProgramResult RunProgram(const std::vector<std::string>& arguments,
                                       std::optional<unsigned> uid = std::nullopt);

// Skips the test, and says why, where a program of others is not installed: `tools/setup.sh --all`
// installs those that tests use. Not within a function that a test calls.
#define REQUIRE_PROGRAM(program)                                                              \
  if (RunProgram({"sh", "-c", "command -v " program " >/dev/null"}).exit_code != 0) {         \
    GTEST_SKIP() << program " is not installed; tools/setup.sh --all installs what it is in"; \
  }

// The programs under test, from the build tree.
[[nodiscard]] std::string KvtierdPath();
[[nodiscard]] std::string KvtierctlPath();
[[nodiscard]] std::string ToyEnginePath();

}  // namespace kvtier
