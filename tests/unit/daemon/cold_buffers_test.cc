// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/cold_buffers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

TEST(ColdBuffers, GiveTheSameMemoryAgain) {
  ColdBuffers buffers(1000);
  std::shared_ptr<ColdBuffers::Buffer> first = buffers.Take(400);
  const std::byte* const memory = first->data();
  first.reset();
  EXPECT_EQ(buffers.kept_bytes(), 400u);
  const auto again = buffers.Take(300);
  EXPECT_EQ(again->data(), memory);
  EXPECT_EQ(again->size(), 300u);
  EXPECT_EQ(buffers.kept_bytes(), 0u);
}

TEST(ColdBuffers, TwoThatAreTakenAreTwo) {
  ColdBuffers buffers(1000);
  const auto first = buffers.Take(100);
  const auto second = buffers.Take(100);
  EXPECT_NE(first->data(), second->data());
}

TEST(ColdBuffers, KeepNoMoreThanTheyMay) {
  ColdBuffers buffers(1000);
  std::shared_ptr<ColdBuffers::Buffer> first = buffers.Take(600);
  std::shared_ptr<ColdBuffers::Buffer> second = buffers.Take(600);
  first.reset();
  second.reset();
  EXPECT_EQ(buffers.kept_bytes(), 600u);
}

TEST(ColdBuffers, GiveALargerOneWhereNoneThatWaitsIsLargeEnough) {
  ColdBuffers buffers(1000);
  buffers.Take(100).reset();
  EXPECT_EQ(buffers.Take(200)->size(), 200u);
}

// The event loop takes them.
TEST(ColdBuffers, GiveFreshMemoryThatNobodyHasTouched) {
  constexpr size_t kBytes = 64 << 20;
  const auto buffer = ColdBuffers(kBytes).Take(kBytes);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(buffer->data()) / page * page;
  std::vector<unsigned char> resident(kBytes / page);
  ASSERT_EQ(::mincore(reinterpret_cast<void*>(begin), kBytes, resident.data()), 0);
  EXPECT_LT(std::ranges::count(resident, 1), 10);
}

TEST(ColdBuffers, MayBeGivenUpAfterThePoolAndOnAnotherThread) {
  auto buffers = std::make_unique<ColdBuffers>(1000);
  std::shared_ptr<ColdBuffers::Buffer> late = buffers->Take(100);
  buffers.reset();
  (*late)[99] = std::byte{1};
  std::thread([given_up = std::move(late)]() mutable { given_up.reset(); }).join();
}

}  // namespace
}  // namespace kvtier
