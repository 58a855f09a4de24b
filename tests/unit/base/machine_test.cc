// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/units.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

// A machine with 16 GiB, of which 12 are available, as its files in /proc and /sys show it.
class MachineTest : public testing::Test {
 protected:
  MachineTest() {
    Write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable: 12582912 kB\n");
  }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << text;
  }
  void ExpectMemory(uint64_t total_bytes, uint64_t available_bytes,
                    const std::string& limited_by) const {
    const MachineMemory memory = ReadMachineMemory(root_.path());
    EXPECT_EQ(memory.total_bytes, total_bytes);
    EXPECT_EQ(memory.available_bytes, available_bytes);
    EXPECT_EQ(memory.limited_by, limited_by);
  }

  const TestDirectory root_;
};

TEST_F(MachineTest, WithoutControlGroupsTheMachineCounts) {
  ExpectMemory(16 * kGiB, 12 * kGiB, "");
}

TEST_F(MachineTest, ALimitOfVersion2LeavesWhatIsNotUsed) {
  Write("proc/self/cgroup", "0::/user.slice/a\n");
  Write("sys/fs/cgroup/user.slice/a/memory.max", "4294967296\n");
  Write("sys/fs/cgroup/user.slice/a/memory.current", "2147483648\n");
  // One of the two GiB in use is a cache of files that the kernel would drop.
  Write("sys/fs/cgroup/user.slice/a/memory.stat", "anon 1\ninactive_file 1073741824\n");
  ExpectMemory(4 * kGiB, 3 * kGiB, "/user.slice/a");
}

TEST_F(MachineTest, AParentsLimitHoldsToo) {
  Write("proc/self/cgroup", "0::/pod/container\n");
  Write("sys/fs/cgroup/pod/container/memory.max", "max\n");
  Write("sys/fs/cgroup/pod/memory.max", "2147483648\n");
  ExpectMemory(2 * kGiB, 2 * kGiB, "/pod");
}

TEST_F(MachineTest, InAContainerTheLimitStandsAtTheMount) {
  Write("proc/self/cgroup", "0::/docker/0123\n");
  Write("sys/fs/cgroup/memory.max", "1073741824\n");
  ExpectMemory(1 * kGiB, 1 * kGiB, "/");
}

TEST_F(MachineTest, VersionOneIsReadAndItsNoLimitIsNone) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  ExpectMemory(16 * kGiB, 12 * kGiB, "");
  Write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "3221225472\n");
  Write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1073741824\n");
  ExpectMemory(3 * kGiB, 2 * kGiB, "/x");
}

TEST_F(MachineTest, AFullGroupLeavesNothing) {
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/a/memory.max", "1048576\n");
  Write("sys/fs/cgroup/a/memory.current", "2097152\n");
  ExpectMemory(1 * kMiB, 0, "/a");
}

TEST_F(MachineTest, WhatIsNoNumberLimitsNothing) {
  Write("proc/self/cgroup", "nonsense\n0::\n");
  Write("sys/fs/cgroup/memory.max", "\n");
  Write("sys/fs/cgroup/memory.stat", "inactive_file\n");
  ExpectMemory(16 * kGiB, 12 * kGiB, "");
}

TEST_F(MachineTest, TheSmallestQuotaOfProcessorTimeHolds) {
  EXPECT_FALSE(ReadProcessorLimit(root_.path())) << "no control groups";
  Write("proc/self/cgroup", "0::/pod/container\n");
  Write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  EXPECT_FALSE(ReadProcessorLimit(root_.path()));
  Write("sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  EXPECT_EQ(ReadProcessorLimit(root_.path()), 3u) << "two cores and a half";
  Write("sys/fs/cgroup/pod/container/cpu.max", "50000 100000\n");
  EXPECT_EQ(ReadProcessorLimit(root_.path()), 1u);
}

TEST_F(MachineTest, AQuotaOfVersionOneIsReadAndItsNoLimitIsNone) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(ReadProcessorLimit(root_.path()));
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(ReadProcessorLimit(root_.path()), 4u);
}

}  // namespace
}  // namespace kvtier
