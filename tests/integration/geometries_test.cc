// SPDX-License-Identifier: Apache-2.0
// Models of every kind, in host memory; the same on a GPU is tests/gpu/geometries_test.cc.
#include "tests/integration/harness/geometries.h"

#include <gtest/gtest.h>

#include "tests/integration/harness/program.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {
namespace {

class GeometriesTest : public testing::TestWithParam<KvGeometry> {};

TEST_P(GeometriesTest, IsServedByteByByteFromAllTiers) {
  const auto directory = TemporaryDirectory::Create();
  ASSERT_TRUE(directory) << directory.error().ToString();
  ExpectServedFromAllTiers(GetParam(), KvtierdPath(), "host", directory->path());
}

INSTANTIATE_TEST_SUITE_P(Models, GeometriesTest, testing::ValuesIn(kKvGeometries),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvtier
