// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_daemon_fixture.h"

#include <filesystem>
#include <utility>

#include "gpu/cuda_device.h"

namespace kvtier {

std::string ProgramBeside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

void GpuDaemonFixture::SetUp() {
  const auto presence = FindCudaDevices();
  ASSERT_TRUE(presence) << presence.error().ToString();
  if (presence->devices == 0) GTEST_SKIP() << presence->why_none;
  gpus_ = presence->devices;
  auto directory = TemporaryDirectory::Create();
  ASSERT_TRUE(directory) << directory.error().ToString();
  directory_.emplace(std::move(*directory));
}

PrivateDaemonOptions GpuDaemonFixture::OptionsWith(std::vector<std::string> settings) const {
  PrivateDaemonOptions options;
  options.program = Program();
  options.directory = directory_->path();
  options.settings = std::move(settings);
  return options;
}

void GpuDaemonFixture::StartDaemon(std::vector<std::string> settings) {
  auto daemon = PrivateDaemon::Start(OptionsWith(std::move(settings)));
  ASSERT_TRUE(daemon) << daemon.error().ToString();
  daemon_.emplace(std::move(*daemon));
}

}  // namespace kvtier
