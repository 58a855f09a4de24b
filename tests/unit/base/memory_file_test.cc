// SPDX-License-Identifier: Apache-2.0
#include "base/memory_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace kvtier {
namespace {

using testing::Eq;
using testing::Optional;

TEST(MemoryFile, IsOfTheSizeAskedForAndAllZeros) {
  const UniqueFd fd = MakeMemoryFile("test", 5000).value();
  EXPECT_EQ(FileBytes(fd.get()), 5000U);
  std::vector<char> bytes(5000, 'x');
  ASSERT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), 5000);
  EXPECT_EQ(bytes, std::vector<char>(5000));
  EXPECT_EQ(MemoryFileRefusal(fd.get(), 5000), std::nullopt);
}

TEST(MemoryFile, CannotBeCutOrMadeLongerByItsHolders) {
  const UniqueFd fd = MakeMemoryFile("test", 4096).value();
  EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 8192), -1);
  EXPECT_EQ(FileBytes(fd.get()), 4096U);
}

TEST(MemoryFile, OfAnotherSizeIsRefused) {
  const UniqueFd fd = MakeMemoryFile("test", 4096).value();
  EXPECT_THAT(MemoryFileRefusal(fd.get(), 8192), Optional(Eq("size_changed")));
}

TEST(MemoryFile, ThatCouldBeCutIsRefused) {
  const UniqueFd open(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(open.get(), 4096), 0);
  EXPECT_THAT(MemoryFileRefusal(open.get(), 4096), Optional(Eq("not_sealed")));
}

TEST(MemoryFile, OtherDescriptorsAreRefused) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  EXPECT_THAT(MemoryFileRefusal(reader.get(), 4096), Optional(Eq("not_sealed")));
  EXPECT_THAT(MemoryFileRefusal(-1, 4096), Optional(Eq("not_sealed")));
  EXPECT_EQ(FileBytes(-1), 0U);
}

TEST(MemoryFile, HasANumberOfItsOwn) {
  const UniqueFd one = MakeMemoryFile("test", 1).value();
  const UniqueFd two = MakeMemoryFile("test", 1).value();
  EXPECT_NE(FileNumber(one.get()), FileNumber(two.get()));
  EXPECT_EQ(FileNumber(UniqueFd(::dup(one.get())).get()), FileNumber(one.get()));
}

TEST(BootId, IsTheSameUntilTheMachineIsStartedAgain) {
  EXPECT_NE(ReadBootId(), Digest128{}) << "the kernel tells it";
  EXPECT_EQ(ReadBootId(), ReadBootId());
}

}  // namespace
}  // namespace kvtier
