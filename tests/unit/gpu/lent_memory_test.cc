// SPDX-License-Identifier: Apache-2.0
// Host memory that another process lends, and anything that process does to it meanwhile.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "base/units.h"
#include "gpu/host_device.h"
#include "gpu/lent_mapping.h"
#include "tests/fakes/denied_call.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 8 * kMiB;

UniqueFd MemoryFile() {
  UniqueFd file(::memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::fallocate(file.get(), 0, 0, kBytes), 0);
  return file;
}

LentMemory Lent(const UniqueFd& file, const std::string& owner = "owner",
                std::function<void(UniqueFd)> close = nullptr) {
  LentMemory lent{.owner = owner, .bytes = kBytes};
  lent.descriptor =
      LentDescriptor(UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)), std::move(close));
  return lent;
}

class LentMemoryTest : public testing::Test {
 protected:
  std::unique_ptr<DevicePool> Borrow(LentMemory lent) {
    Result<std::unique_ptr<DevicePool>> borrowed = device_->Borrow(&lent);
    EXPECT_TRUE(borrowed) << borrowed.error().ToString();
    return std::move(*borrowed);
  }
  std::string RefusalOf(LentMemory lent) {
    const auto borrowed = device_->Borrow(&lent);
    return borrowed ? "none" : borrowed.error().reason;
  }
  // "copied", or the reason why not.
  std::string Copy(DevicePool* pool, CopyDirection direction, std::vector<BlockCopy> copies) {
    std::optional<Status> outcome;
    device_->Copy({.pool = pool,
                   .direction = direction,
                   .copies = std::move(copies),
                   .done = [&](Status status) { outcome = std::move(status); }});
    loop_.RunUntil([&] { return outcome.has_value(); });
    return *outcome ? "copied" : outcome->error().reason;
  }

  BlockingLoop loop_;
  std::unique_ptr<HostDevice> device_ = std::make_unique<HostDevice>(&loop_);
};

TEST_F(LentMemoryTest, IsCopiedFromAndToInPiecesOfAnySize) {
  const UniqueFd file = MemoryFile();
  const auto lent = Borrow(Lent(file));
  std::vector<std::byte> host(kBytes);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i % 251);
  std::vector<BlockCopy> copies;
  uint64_t offset = 0;
  for (; offset < 3 * kMiB; offset += 701) copies.push_back({offset, host.data() + offset, 701});
  copies.push_back({offset, host.data() + offset, kBytes - offset});
  ASSERT_EQ(Copy(lent.get(), CopyDirection::kHostToPool, copies), "copied");
  std::vector<std::byte> seen(kBytes);
  ASSERT_EQ(::pread(file.get(), seen.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
  EXPECT_EQ(seen, host);
  std::vector<std::byte> back(kBytes);
  ASSERT_EQ(Copy(lent.get(), CopyDirection::kPoolToHost, {{0, back.data(), kBytes}}), "copied");
  EXPECT_EQ(back, host);
}

TEST_F(LentMemoryTest, ThatIsCutCostsTheCopyAlone) {
  const UniqueFd file = MemoryFile();
  const auto lent = Borrow(Lent(file));
  std::vector<std::byte> host(kBytes);
  for (const auto direction : {CopyDirection::kHostToPool, CopyDirection::kPoolToHost}) {
    ASSERT_EQ(::fallocate(file.get(), 0, 0, kBytes), 0);
    EXPECT_EQ(Copy(lent.get(), direction, {{0, host.data(), kBytes}}), "copied");
    ASSERT_EQ(::ftruncate(file.get(), kBytes / 2), 0);
    EXPECT_EQ(Copy(lent.get(), direction, {{0, host.data(), kBytes}}), "lent_memory_failed");
    EXPECT_EQ(Copy(lent.get(), direction, {{0, host.data(), kBytes / 2}}), "copied");
  }
}

uint64_t PageBytesOf(const UniqueFd& file) {
  struct stat facts {};
  EXPECT_EQ(::fstat(file.get(), &facts), 0);
  return static_cast<uint64_t>(facts.st_blocks) * 512;
}

// The control group of the process that makes a page pays for it.
TEST_F(LentMemoryTest, GetsNoPagesThatItsOwnerHasNotMade) {
  const UniqueFd file = MemoryFile();
  const auto lent = Borrow(Lent(file));
  std::vector<std::byte> host(kBytes, std::byte{7});
  for (int i = 0; i < 2; ++i) {
    // Before anything was written, and after.
    ASSERT_EQ(
        ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kBytes / 2, kBytes / 2),
        0);
    EXPECT_EQ(Copy(lent.get(), CopyDirection::kHostToPool, {{0, host.data(), kBytes / 2}}),
              "copied");
    EXPECT_EQ(Copy(lent.get(), CopyDirection::kHostToPool, {{kBytes / 2, host.data(), kBytes / 2}}),
              "lent_memory_failed");
    EXPECT_EQ(PageBytesOf(file), kBytes / 2);
    // Its owner's own pages are no less than others.
    ASSERT_EQ(::fallocate(file.get(), 0, 0, kBytes), 0);
    EXPECT_EQ(Copy(lent.get(), CopyDirection::kHostToPool, {{0, host.data(), kBytes}}), "copied");
  }
}

TEST_F(LentMemoryTest, IsReadAsZerosWhereItsOwnerHasMadeNoPages) {
  const UniqueFd file = MemoryFile();
  const auto lent = Borrow(Lent(file));
  ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes / 2), 0);
  std::vector<std::byte> host(kBytes, std::byte{7});
  ASSERT_EQ(Copy(lent.get(), CopyDirection::kPoolToHost, {{0, host.data(), kBytes}}), "copied");
  EXPECT_TRUE(std::ranges::all_of(host, [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(PageBytesOf(file), kBytes / 2);
}

TEST_F(LentMemoryTest, ThatIsCutAndMadeAgainAllTheTimeCostsCopiesAlone) {
  const UniqueFd file = MemoryFile();
  const auto lent = Borrow(Lent(file));
  std::jthread owner([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      ASSERT_EQ(::ftruncate(file.get(), kBytes / 4), 0);
      ASSERT_EQ(::fallocate(file.get(), 0, 0, kBytes), 0);
    }
  });
  std::vector<std::byte> host(kBytes, std::byte{7});
  int failed = 0;
  for (int i = 0; i < 1000 && failed < 20; ++i) {
    const auto direction = i % 2 == 0 ? CopyDirection::kHostToPool : CopyDirection::kPoolToHost;
    if (Copy(lent.get(), direction, {{0, host.data(), kBytes}}) != "copied") ++failed;
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(Copy(lent.get(), CopyDirection::kHostToPool, {{0, host.data(), kBytes / 4}}), "copied");
}

TEST(LentMemoryOfABlockedProcess, CostsTheCopyAloneWhenItIsCut) {
  std::thread([] {
    sigset_t all;
    ::sigfillset(&all);
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &all, nullptr), 0);
    BlockingLoop loop;
    HostDevice device(&loop);
    const UniqueFd file = MemoryFile();
    LentMemory memory = Lent(file);
    const auto lent = device.Borrow(&memory).value();
    ASSERT_EQ(::ftruncate(file.get(), 0), 0);
    std::vector<std::byte> host(kBytes);
    std::optional<Status> outcome;
    device.Copy({.pool = lent.get(),
                 .direction = CopyDirection::kHostToPool,
                 .copies = {{0, host.data(), kBytes}},
                 .done = [&](Status status) { outcome = std::move(status); }});
    loop.RunUntil([&] { return outcome.has_value(); });
    EXPECT_FALSE(*outcome);
  }).join();
}

// As in a container whose profile forbids the one, or both.
TEST(LentMemoryUnderAFilter, IsCopiedByTheCallsThatAreLeft) {
  for (const bool writes_denied : {false, true}) {
    std::thread([writes_denied] {
      DenyCall(__NR_userfaultfd);
      if (writes_denied) DenyCall(__NR_process_vm_writev);
      BlockingLoop loop;
      HostDevice device(&loop);
      const UniqueFd file = MemoryFile();
      LentMemory memory = Lent(file);
      const auto lent = device.Borrow(&memory).value();
      std::vector<std::byte> host(kBytes, std::byte{7});
      std::vector<std::byte> back(kBytes);
      for (const auto& [direction, bytes] : {std::pair{CopyDirection::kHostToPool, host.data()},
                                             std::pair{CopyDirection::kPoolToHost, back.data()}}) {
        std::optional<Status> outcome;
        device.Copy({.pool = lent.get(),
                     .direction = direction,
                     .copies = {{0, bytes, kBytes}},
                     .done = [&](Status status) { outcome = std::move(status); }});
        loop.RunUntil([&] { return outcome.has_value(); });
        EXPECT_TRUE(*outcome);
      }
      EXPECT_EQ(back, host);
    }).join();
  }
}

// A write to the file waits for its lock, which its owner can hold for as long as it likes.
TEST_F(LentMemoryTest, IsNotWrittenThroughTheFile) {
  const UniqueFd file = MemoryFile();
  const auto lent = Borrow(Lent(file));
  std::vector<std::byte> host(kBytes, std::byte{7});
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const ssize_t through_the_file = ::pwrite(file.get(), host.data(), 1, 0);
  const std::string copied =
      Copy(lent.get(), CopyDirection::kHostToPool, {{0, host.data(), kBytes}});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(through_the_file, -1);
  EXPECT_EQ(copied, "copied");
}

TEST_F(LentMemoryTest, ThatIsNoMemoryOrCannotBeWrittenIsRefused) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  EXPECT_EQ(RefusalOf(Lent(reading)), "bad_region_memory");
  const UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(RefusalOf(Lent(device)), "bad_region_memory");
  for (const int seal : {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE}) {
    const UniqueFd sealed = MemoryFile();
    ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, seal), 0);
    EXPECT_EQ(RefusalOf(Lent(sealed)), "bad_region_memory");
  }
  const UniqueFd small = MemoryFile();
  ASSERT_EQ(::ftruncate(small.get(), kBytes - 1), 0);
  EXPECT_EQ(RefusalOf(Lent(small)), "bad_region_memory");
  const UniqueFd sealed = MemoryFile();
  ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(RefusalOf(Lent(sealed)), "none");
}

TEST(LentPages, AreSaidToBeMadeWhereTheSystemForbidsUserfaultfd) {
  std::thread([] {
    DenyCall(__NR_userfaultfd);
    const Status forbidden = CheckNoNewPages();
    ASSERT_FALSE(forbidden);
    EXPECT_EQ(forbidden.error().reason, "EPERM");
  }).join();
}

// The threads of an owner hang in closing its memory, as they may in all that they do with it.
TEST_F(LentMemoryTest, WhoseOwnerHangsHoldsUpNoOtherAndNotTheEnd) {
  struct Hanging {
    std::promise<void> going_on;
    std::shared_future<void> go_on = going_on.get_future().share();
    std::atomic<int> threads = 0;
  };
  const auto hanging = std::make_shared<Hanging>();
  const auto close = [hanging](UniqueFd) {
    ++hanging->threads;
    hanging->go_on.wait();
  };
  const UniqueFd file = MemoryFile();
  std::vector<std::unique_ptr<DevicePool>> closed;
  for (int i = 0; i < DefaultCopyThreads(); ++i) {
    closed.push_back(Borrow(Lent(file, "hostile", close)));
  }
  const auto stays = Borrow(Lent(file, "hostile"));
  closed.clear();
  while (hanging->threads < DefaultCopyThreads()) std::this_thread::yield();

  std::vector<std::byte> host(kBytes);
  const auto other = Borrow(Lent(file, "other"));
  EXPECT_EQ(Copy(other.get(), CopyDirection::kHostToPool, {{0, host.data(), kBytes}}), "copied");

  std::optional<Status> outcome;
  device_->Copy({.pool = stays.get(),
                 .direction = CopyDirection::kPoolToHost,
                 .copies = {{0, host.data(), kBytes}},
                 .done = [&](Status status) { outcome = std::move(status); }});
  device_.reset();
  loop_.RunPosted();
  ASSERT_TRUE(outcome.has_value()) << "it is told before the device's end";
  EXPECT_EQ(outcome->error().reason, "device_closed");
  hanging->going_on.set_value();
}

}  // namespace
}  // namespace kvtier
