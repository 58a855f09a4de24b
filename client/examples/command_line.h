// SPDX-License-Identifier: Apache-2.0
// What kvtier-generate was asked to do.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "kvtier/kvtier.h"

namespace kvtier::generate {

struct CommandLine {
  std::optional<std::string> socket_path;  // none: no cache
  std::string prompt;
  size_t count = 0;  // tokens to generate
  std::string weights_path;
  size_t threads = 1;
  kvt_retention retention = KVT_RETENTION_EXTENDED;
  bool on_gpu = false;  // the pool, and with it attention
  bool json = false;
};

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// Reads the prompt's file too. Nothing if the program is to end with `*exit_code`; help or the
// complaint has then been printed.
[[nodiscard]] std::optional<CommandLine> ParseCommandLine(int argc, char** argv, int* exit_code);

}  // namespace kvtier::generate
