// SPDX-License-Identifier: Apache-2.0
// Each case starts processes one after the other as a unit would, with the descriptors that the
// last one left.
#include "daemon/keeper/systemd_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "tests/unit/daemon/fake_systemd.h"

namespace kvtier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr size_t kUnitsMax = 16;

UniqueFd MemoryWith(const std::string& text) {
  UniqueFd memory(::memfd_create("kept", MFD_CLOEXEC));
  (void)!::pwrite(memory.get(), text.data(), text.size(), 0);
  return memory;
}

std::string TextOf(const std::optional<UniqueFd>& memory) {
  if (!memory) return "nothing";
  char text[64] = {};
  return ::pread(memory->get(), text, sizeof(text) - 1, 0) < 0 ? "unreadable" : text;
}

// A process's result as its exit code: each bit is an assertion that failed.
int Failures(std::initializer_list<bool> expected) {
  int failures = 0;
  int bit = 1;
  for (const bool held : expected) {
    if (!held) failures |= bit;
    bit <<= 1;
  }
  return failures;
}

// systemd has read all that this process has sent.
bool IsThrough() { return ::sd_notify_barrier(0, 60'000'000) > 0; }

int KeepBoth() {
  const auto store = SystemdStore::Open(/*probe=*/true);
  if (store == nullptr) return 100;
  return Failures({store->passed() == 0, !store->Take(kHostArenaName),
                   store->Keep(kHostArenaName, MemoryWith("blocks").get()).has_value(),
                   store->Keep(kHostTableName, MemoryWith("old table").get()).has_value(),
                   store->Keep(kHostTableName, MemoryWith("table").get()).has_value(),
                   IsThrough()});
}

class SystemdStoreTest : public testing::TestWithParam<bool> {
 protected:
  int Start(const std::function<int()>& process) { return systemd_.Start(process, GetParam()); }

  FakeSystemd systemd_{kUnitsMax};
};

TEST_P(SystemdStoreTest, PassesWhatWasKeptToTheNextProcess) {
  ASSERT_EQ(Start(KeepBoth), 0);
  ASSERT_EQ(Start([] {
              const auto store = SystemdStore::Open(true);
              return store == nullptr ? 100 : Failures({store->passed() == 2});
            }),
            0);
  EXPECT_THAT(systemd_.Names(), ElementsAre("host-arena", "host-table"));
  EXPECT_EQ(
      Start([] {
        const auto store = SystemdStore::Open(true);
        if (store == nullptr) return 100;
        return Failures({TextOf(store->Take(kHostArenaName)) == "blocks",
                         TextOf(store->Take(kHostTableName)) == "table",
                         !store->Take(kHostArenaName), !store->Take("pool"),
                         store->holder().name == "systemd", std::getenv("LISTEN_FDS") == nullptr});
      }),
      0);
  EXPECT_THAT(systemd_.Names(), ElementsAre("host-arena", "host-table"))
      << "a process that dies before it has kept them again must lose nothing";
}

// A process that is killed between two messages must not have lost the memory.
TEST_P(SystemdStoreTest, WhatItHasAndIsToldToKeepIsNeverAbsent) {
  ASSERT_EQ(Start(KeepBoth), 0);
  ASSERT_EQ(Start([] {
              const auto store = SystemdStore::Open(true);
              if (store == nullptr) return 100;
              const auto arena = store->Take(kHostArenaName);
              const auto table = store->Take(kHostTableName);
              return Failures({arena && store->Keep(kHostArenaName, arena->get()),
                               table && store->Keep(kHostTableName, MemoryWith("new").get()),
                               store->Keep(kHostTableName, MemoryWith("newer").get()).has_value(),
                               IsThrough()});
            }),
            0);
  EXPECT_THAT(systemd_.Messages(), Not(HasSubstr("FDNAME=host-arena")));
  EXPECT_EQ(Start([] {
              const auto store = SystemdStore::Open(true);
              if (store == nullptr) return 100;
              return Failures({TextOf(store->Take(kHostArenaName)) == "blocks",
                               TextOf(store->Take(kHostTableName)) == "newer"});
            }),
            0);
}

// As the memory of GPUs is, for the numbers of files.
TEST_P(SystemdStoreTest, FilesOfADriverAreToldApart) {
  const auto keep = [] {
    const auto store = SystemdStore::Open(true);
    if (store == nullptr) return 100;
    const std::optional<UniqueFd> left = store->Take("pool-0");
    const UniqueFd driver(::open("/dev/null", O_RDWR | O_CLOEXEC));
    return Failures({store->Keep("pool-0", driver.get()).has_value(), IsThrough()});
  };
  ASSERT_EQ(Start(keep), 0);
  ASSERT_EQ(Start(keep), 0);
  EXPECT_THAT(systemd_.Messages(), HasSubstr("FDSTORE=1\nFDNAME=pool-0"));
  EXPECT_THAT(systemd_.Names(), ElementsAre("pool-0"));
}

TEST_P(SystemdStoreTest, ForgetsWhatTheNextProcessDoesNotClaim) {
  ASSERT_EQ(Start(KeepBoth), 0);
  ASSERT_EQ(Start([] {
              const auto store = SystemdStore::Open(true);
              if (store == nullptr) return 100;
              const bool taken = store->Take(kHostArenaName).has_value();
              store->ReleaseUnclaimed();
              return Failures({taken, IsThrough()});
            }),
            0);
  EXPECT_THAT(systemd_.Names(), ElementsAre("host-arena"));
}

TEST_P(SystemdStoreTest, ReleasingAllLeavesNothing) {
  ASSERT_EQ(Start(KeepBoth), 0);
  ASSERT_EQ(Start([] {
              const auto store = SystemdStore::Open(true);
              if (store == nullptr) return 100;
              const bool taken = store->Take(kHostArenaName).has_value();
              store->ReleaseAll();
              return Failures({taken, IsThrough()});
            }),
            0);
  EXPECT_THAT(systemd_.Names(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Systemd, SystemdStoreTest, testing::Bool(), [](const auto& info) {
  return info.param ? "SaysThatItKeeps" : "IsAsked";
});

TEST(SystemdWithoutStore, IsFoundOutByAsking) {
  FakeSystemd systemd(/*max_descriptors=*/0);
  EXPECT_EQ(systemd.Start([] { return Failures({SystemdStore::Open(true) == nullptr}); }, false),
            0);
}

TEST(SystemdWithoutStore, OutsideOfAUnitThereIsNone) {
  ::unsetenv("FDSTORE");
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_EQ(SystemdStore::Open(true), nullptr);
}

}  // namespace
}  // namespace kvtier
