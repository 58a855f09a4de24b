// SPDX-License-Identifier: Apache-2.0
// Models of every kind in a GPU's memory.
#include "tests/integration/harness/geometries.h"

#include <gtest/gtest.h>

#include "tests/gpu/gpu_daemon_fixture.h"

namespace kvtier {
namespace {

class DeviceGeometriesTest : public GpuDaemonFixture,
                             public testing::WithParamInterface<KvGeometry> {};

TEST_P(DeviceGeometriesTest, IsServedByteByByteFromAllTiers) {
  ExpectServedFromAllTiers(GetParam(), ProgramBeside("kvtierd"), "cuda:0", directory_->path());
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceGeometriesTest, testing::ValuesIn(kKvGeometries),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvtier
