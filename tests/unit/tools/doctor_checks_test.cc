// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/doctor_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <fstream>
#include <thread>

#include "base/units.h"
#include "tests/fakes/denied_call.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

// A machine whose files in /proc and /sys a test writes.
class DoctorChecksTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  [[nodiscard]] std::filesystem::path root() const { return directory_.path(); }

  const TemporaryDirectory directory_ = *TemporaryDirectory::Create();
};

// A check's finding is of use only if it comes with advice.
void ExpectWarning(const Check& check, const std::string& advice) {
  EXPECT_EQ(check.level, CheckLevel::kWarn) << check.name << ": " << check.found;
  EXPECT_THAT(check.advice, HasSubstr(advice));
}

TEST_F(DoctorChecksTest, HugePagesThatAreOffAreWarnedOf) {
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  ExpectWarning(HugepageCheck(root()), "echo madvise");
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  Write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "[never] advise\n");
  ExpectWarning(HugepageCheck(root()), "echo advise");
  EXPECT_THAT(HugepageCheck(root()).found, HasSubstr("shared memory: never"));
  Write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "never [advise]\n");
  EXPECT_EQ(HugepageCheck(root()).level, CheckLevel::kOk);
}

TEST_F(DoctorChecksTest, LimitsAreThoseOfTheProcessThatIsLookedAt) {
  Write("proc/42/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 524288               files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n");
  EXPECT_EQ(LimitOfProcess(root(), 42, "Max open files", /*hard=*/false), 1024u);
  EXPECT_EQ(LimitOfProcess(root(), 42, "Max open files", /*hard=*/true), 524288u);
  EXPECT_EQ(LimitOfProcess(root(), 42, "Max locked memory", /*hard=*/false), UINT64_MAX);
  EXPECT_EQ(LimitOfProcess(root(), 43, "Max open files", /*hard=*/true), std::nullopt);
}

TEST_F(DoctorChecksTest, AContainersMemoryLimitIsNamed) {
  Write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n");
  EXPECT_EQ(MemoryCheck(root()).level, CheckLevel::kOk);
  Write("proc/self/cgroup", "0::/box\n");
  Write("sys/fs/cgroup/box/memory.max", "1073741824\n");
  ExpectWarning(MemoryCheck(root()), "raise the limit");
  EXPECT_THAT(MemoryCheck(root()).found, HasSubstr("limited by the control group /box"));
}

TEST_F(DoctorChecksTest, AQuotaBelowTwoCoresIsWarnedOf) {
  EXPECT_EQ(CpuCheck(root()).level, CheckLevel::kOk);
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuCheck(root()).found, "no quota");
  Write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(CpuCheck(root()).found, "a quota of 4 cores");
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  ExpectWarning(CpuCheck(root()), "two cores");
}

TEST_F(DoctorChecksTest, BalancingBetweenNodesIsWarnedOf) {
  EXPECT_EQ(NumaCheck(root()).found, "one node");
  Write("sys/devices/system/node/online", "0-1\n");
  Write("proc/sys/kernel/numa_balancing", "0\n");
  EXPECT_EQ(NumaCheck(root()).level, CheckLevel::kOk);
  Write("proc/sys/kernel/numa_balancing", "1\n");
  ExpectWarning(NumaCheck(root()), "numa_balancing=0");
}

TEST_F(DoctorChecksTest, LimitsOfTheProcessAreJudged) {
  ExpectWarning(MemlockCheck(8 * kMiB), "ulimit -l unlimited");
  EXPECT_EQ(MemlockCheck(UINT64_MAX).level, CheckLevel::kOk);
  ExpectWarning(DescriptorCheck(1024), "LimitNOFILE");
  EXPECT_EQ(DescriptorCheck(524288).level, CheckLevel::kOk);
}

TEST_F(DoctorChecksTest, AProfileThatForbidsUserfaultfdIsWarnedOf) {
  std::thread([] {
    DenyCall(__NR_userfaultfd);
    ExpectWarning(LentMemoryCheck(), "seccomp profile");
  }).join();
}

TEST_F(DoctorChecksTest, TheDiskIsMeasuredAndNothingIsLeftThere) {
  const std::vector<Check> checks = DiskChecks(root(), 4 * kMiB);
  ASSERT_GE(checks.size(), 2u);
  EXPECT_EQ(checks.front().name, "disk");
  EXPECT_THAT(checks.front().found, HasSubstr(root().string()));
  EXPECT_EQ(checks.back().name, "disk speed");
  EXPECT_THAT(checks.back().found, HasSubstr("GB/s"));
  EXPECT_TRUE(std::filesystem::is_empty(root()));
}

TEST_F(DoctorChecksTest, ADirectoryThatIsNotThereYetIsJudgedByTheOneAboveItAlone) {
  for (const char* const made : {"a", "a/"}) {
    const std::vector<Check> checks = DiskChecks(root() / made, 1 * kMiB);
    EXPECT_THAT(checks.front().found, HasSubstr(root().string() + ":"));
  }
  Write("file", "");
  for (const char* const wrong : {"a/b", "file", "file/a"}) {
    const std::vector<Check> checks = DiskChecks(root() / wrong, 1 * kMiB);
    ASSERT_EQ(checks.size(), 1u) << wrong;
    EXPECT_EQ(checks.front().level, CheckLevel::kFail) << wrong;
    EXPECT_THAT(checks.front().advice, HasSubstr("make the directory above it"));
  }
}

TEST_F(DoctorChecksTest, ADirectoryThatCannotBeWrittenFails) {
  const std::vector<Check> checks = DiskChecks("/proc/self", 1 * kMiB);
  EXPECT_EQ(checks.back().level, CheckLevel::kFail);
  EXPECT_NE(checks.back().advice, "");
}

}  // namespace
}  // namespace kvtier
