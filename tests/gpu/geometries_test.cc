// Models of every kind in a GPU's memory.
#include "tests/integration/harness/geometries.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "gpu/cuda_device.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {
namespace {

class DeviceGeometriesTest : public testing::TestWithParam<KvGeometry> {};

TEST_P(DeviceGeometriesTest, IsServedByteByByteFromAllTiers) {
  const auto presence = FindCudaDevices();
  ASSERT_TRUE(presence) << presence.error().ToString();
  if (presence->devices == 0) GTEST_SKIP() << presence->why_none;
  const auto directory = TemporaryDirectory::Create();
  ASSERT_TRUE(directory) << directory.error().ToString();
  const std::string kvtierd =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kvtierd";
  ExpectServedFromAllTiers(GetParam(), kvtierd, "cuda:0", directory->path());
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceGeometriesTest, testing::ValuesIn(kKvGeometries),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvtier
