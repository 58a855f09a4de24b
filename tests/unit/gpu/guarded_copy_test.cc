// SPDX-License-Identifier: Apache-2.0
#include "gpu/guarded_copy.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/posix.h"
#include "base/units.h"

namespace kvtier {
namespace {

// A file in memory, half of which is cut off once it is mapped.
class GuardedCopyTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 1 * kMiB;

  [[nodiscard]] static std::span<std::byte> Map(const UniqueFd& file) {
    void* const address =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    EXPECT_NE(address, MAP_FAILED);
    return {static_cast<std::byte*>(address), kBytes};
  }
  GuardedCopyTest() {
    EXPECT_EQ(::ftruncate(file_.get(), kBytes), 0);
    mapping_ = Map(file_);
    EXPECT_EQ(::ftruncate(file_.get(), kBytes / 2), 0);
  }
  ~GuardedCopyTest() override { ::munmap(mapping_.data(), mapping_.size()); }

  const UniqueFd file_{::memfd_create("cut", MFD_CLOEXEC)};
  std::span<std::byte> mapping_;
  std::vector<std::byte> own_ = std::vector<std::byte>(kBytes, std::byte{7});
};

TEST_F(GuardedCopyTest, FailsEachTimeWhereTheMappingHasNoPages) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(GuardedCopy(mapping_.data(), own_.data(), kBytes / 2, mapping_));
    EXPECT_FALSE(GuardedCopy(mapping_.data(), own_.data(), kBytes, mapping_));
    EXPECT_TRUE(GuardedCopy(own_.data(), mapping_.data(), kBytes / 2, mapping_));
    EXPECT_FALSE(GuardedCopy(own_.data(), mapping_.data() + kBytes / 2, 1, mapping_));
  }
}

TEST_F(GuardedCopyTest, BlocksNoSignalThatWasNotBlocked) {
  sigset_t before;
  sigset_t after;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  EXPECT_FALSE(GuardedCopy(mapping_.data(), own_.data(), kBytes, mapping_));
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  for (int signal = 1; signal < SIGRTMAX; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

TEST_F(GuardedCopyTest, DoesNotSaveFromBusErrorsElsewhere) {
  EXPECT_TRUE(GuardedCopy(mapping_.data(), own_.data(), 1, mapping_));
  EXPECT_DEATH((void)*static_cast<volatile std::byte*>(mapping_.data() + kBytes / 2), "");
  // The destination lies in another mapping.
  const std::span<std::byte> other = Map(file_);
  EXPECT_DEATH((void)GuardedCopy(other.data() + kBytes / 2, mapping_.data(), 1, mapping_), "");
  EXPECT_DEATH(::raise(SIGBUS), "");
  ::munmap(other.data(), other.size());
}

}  // namespace
}  // namespace kvtier
