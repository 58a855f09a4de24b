// SPDX-License-Identifier: Apache-2.0
// The base of tests with a real daemon whose pools are on GPUs.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/support/private_daemon.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {

// A program that was built with this one, wherever they were copied to.
[[nodiscard]] std::string ProgramBeside(const std::string& name);

class GpuDaemonFixture : public testing::Test {
 protected:
  // Skips the test where there is no GPU, and makes its directory.
  void SetUp() override;

  // Two GPUs where there are two, else a GPU and host memory, as a setting.
  [[nodiscard]] std::string TwoDevices() const {
    return gpus_ > 1 ? R"(pool.device=["cuda:0", "cuda:1"])" : R"(pool.device=["cuda:0", "host"])";
  }
  // The daemon's.
  [[nodiscard]] virtual std::string Program() const { return ProgramBeside("kvtierd"); }
  [[nodiscard]] PrivateDaemonOptions OptionsWith(std::vector<std::string> settings) const;
  // In the test's directory. Fails the test if it does not come.
  void StartDaemon(std::vector<std::string> settings);

  int gpus_ = 0;
  std::optional<TemporaryDirectory> directory_;
  std::optional<PrivateDaemon> daemon_;
};

}  // namespace kvtier
