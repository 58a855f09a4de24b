// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu/copy_threads.h"

namespace kvtier {
namespace {

TEST(FastCopyTest, CopiesEverySizeAndAlignmentAndNothingElse) {
  constexpr size_t kMargin = 256;
  const size_t sizes[] = {0, 1, 31, 4096, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 127, 300'001};
  for (const size_t size : sizes) {
    for (const size_t from_shift : {0, 1, 17, 64}) {
      for (const size_t to_shift : {0, 1, 31, 33}) {
        std::vector<uint8_t> source(size + kMargin);
        for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 31 + 7);
        std::vector<uint8_t> target(size + kMargin, 0xcc);
        std::vector<uint8_t> expected = target;
        std::copy_n(source.data() + from_shift, size, expected.data() + to_shift);
        FastCopy(target.data() + to_shift, source.data() + from_shift, size);
        ASSERT_EQ(target, expected) << size << " " << from_shift << " " << to_shift;
      }
    }
  }
}

}  // namespace
}  // namespace kvtier
