// SPDX-License-Identifier: Apache-2.0
// kvtierd as a process of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"

namespace kvtier {

// A running kvtierd whose output can be read. Killed at the end.
class Kvtierd {
 public:
  // Limits the process; 0: as much as the test.
  struct Limits {
    uint64_t address_space_bytes = 0;
    uint64_t descriptors = 0;
    uint64_t file_bytes = 0;
    std::string program = {};  // empty: the built one
  };
  explicit Kvtierd(std::vector<std::string> arguments) : Kvtierd(std::move(arguments), Limits{}) {}
  Kvtierd(std::vector<std::string> arguments, const Limits& limits);
  ~Kvtierd();
  Kvtierd(const Kvtierd&) = delete;
  Kvtierd& operator=(const Kvtierd&) = delete;

  void Signal(int signal) const;
  // Reads output until it contains `text`; false if it ended without.
  bool ReadUntil(const std::string& text);
  // The rest of the output, then the exit code, or minus the signal.
  int Wait();
  [[nodiscard]] const std::string& output() const { return text_; }

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
  std::string text_;
};

// Small tiers in `directory`.
[[nodiscard]] std::vector<std::string> SmallArguments(const std::filesystem::path& directory);

}  // namespace kvtier
