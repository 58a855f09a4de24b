// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/memory_toucher.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/result.h"
#include "base/units.h"

namespace kvtier {
namespace {

// Reserved memory that no thread has touched.
class Reserved {
 public:
  explicit Reserved(uint64_t bytes) : bytes_(bytes) {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVT_CHECK(address != MAP_FAILED);
    data_ = static_cast<std::byte*>(address);
  }
  ~Reserved() { ::munmap(data_, bytes_); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  const uint64_t bytes_;
  std::byte* data_ = nullptr;
};

bool IsResident(std::span<std::byte> memory) {
  std::vector<unsigned char> pages(memory.size() / static_cast<size_t>(::getpagesize()));
  KVT_CHECK(::mincore(memory.data(), memory.size(), pages.data()) == 0);
  return std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

TEST(MemoryToucherTest, GivesWayBeforeEachStep) {
  const Reserved memory(200 * kMiB);
  std::atomic<int> calls = 0;
  MemoryToucher toucher(memory.span(), 3, [&] { ++calls; });
  ASSERT_EQ(toucher.WaitFor(200 * kMiB), 0);
  EXPECT_GE(calls, 25) << "a step has 8 MiB";
}

TEST(MemoryToucherTest, WhatHasBeenWaitedForIsThere) {
  const Reserved memory(200 * kMiB);
  ASSERT_FALSE(IsResident(memory.span()));
  MemoryToucher toucher(memory.span(), 3);
  for (const uint64_t bytes : {4 * kKiB, 50 * kMiB, 200 * kMiB, 200 * kMiB}) {
    ASSERT_EQ(toucher.WaitFor(bytes), 0);
    EXPECT_TRUE(IsResident(memory.span().first(bytes)));
  }
}

TEST(MemoryToucherTest, WhatCannotBeHadIsAnErrorAndWhatIsBeforeItIsNot) {
  const Reserved memory(256 * kMiB);
  ::munmap(memory.span().data() + 128 * kMiB, 128 * kMiB);
  // One thread, so that all before the hole is done when it meets the hole.
  MemoryToucher toucher(memory.span(), 1);
  EXPECT_EQ(toucher.WaitFor(200 * kMiB), ENOMEM);
  EXPECT_EQ(toucher.WaitFor(128 * kMiB), 0);
}

TEST(MemoryToucherTest, StoppingEndsTheWait) {
  const Reserved memory(512 * kMiB);
  MemoryToucher toucher(memory.span(), 1);
  ASSERT_EQ(toucher.WaitFor(32 * kMiB), 0);
  toucher.Stop();
  const int outcome = toucher.WaitFor(512 * kMiB);
  EXPECT_TRUE(outcome == ECANCELED || outcome == 0) << outcome;
}

}  // namespace
}  // namespace kvtier
