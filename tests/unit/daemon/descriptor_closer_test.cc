// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/descriptor_closer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/lingering_socket.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kFarLessThanALinger = std::chrono::seconds(LingeringSocket::kLingerSeconds / 2);

void WaitUntilClosed(const DescriptorCloser& closer) {
  while (closer.pending() > 0) std::this_thread::yield();
}

UniqueFd AnyDescriptor() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// A close() that hangs until this goes, and how many calls of it hang.
class HangingClose {
 public:
  HangingClose() : state_(std::make_shared<State>()) {}
  ~HangingClose() { state_->going_on.set_value(); }
  HangingClose(const HangingClose&) = delete;
  HangingClose& operator=(const HangingClose&) = delete;

  // It may be called when this has gone.
  [[nodiscard]] DescriptorCloser::CloseCall call() const {
    return [state = state_](UniqueFd) {
      ++state->hanging;
      state->go_on.wait();
    };
  }
  [[nodiscard]] size_t hanging() const { return state_->hanging; }

 private:
  struct State {
    std::promise<void> going_on;
    std::shared_future<void> go_on = going_on.get_future().share();
    std::atomic<size_t> hanging = 0;
  };
  const std::shared_ptr<State> state_;
};

// One whose close hangs, and others whose close does not.
class OneHangs {
 public:
  [[nodiscard]] DescriptorCloser::CloseCall call() {
    return [hangs = hangs_.call(), hanging = descriptor_, closed = closed_](UniqueFd descriptor) {
      if (descriptor.get() == hanging) return hangs(std::move(descriptor));
      ++*closed;
    };
  }
  [[nodiscard]] UniqueFd Take() const { return UniqueFd(descriptor_); }
  [[nodiscard]] size_t hanging() const { return hangs_.hanging(); }
  [[nodiscard]] size_t closed() const { return *closed_; }

 private:
  HangingClose hangs_;
  const int descriptor_ = AnyDescriptor().Release();
  const std::shared_ptr<std::atomic<size_t>> closed_ = std::make_shared<std::atomic<size_t>>(0);
};

TEST(DescriptorCloser, ClosesWhatItIsGiven) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reading(ends[0]);
  DescriptorCloser closer;
  closer.Close(UniqueFd(ends[1]), "a");
  char byte;
  // Ends when the writing end has been closed.
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
  WaitUntilClosed(closer);
}

TEST(DescriptorCloser, ALingeringSocketHoldsUpNeitherTheCallerNorTheOthers) {
  LingeringSocket lingering;
  DescriptorCloser closer;
  const auto begun = SteadyClock::now();
  closer.Close(lingering.Take(), "a");
  WaitUntilClosed(closer);
  EXPECT_LT(SteadyClock::now() - begun, kFarLessThanALinger);
}

TEST(DescriptorCloser, LingeringSocketsWithinOthersAreClosedAtOnce) {
  DescriptorCloser closer;
  std::vector<LingeringSocket> lingering(5);
  const auto begun = SteadyClock::now();
  for (LingeringSocket& one : lingering) closer.Close(one.TakeWithinAnother(), "a");
  WaitUntilClosed(closer);
  EXPECT_LT(SteadyClock::now() - begun, kFarLessThanALinger);
}

TEST(DescriptorCloser, ASocketThatHoldsALingeringOneIsClosedAtOnce) {
  DescriptorCloser closer;
  LingeringSocket lingering;
  const auto begun = SteadyClock::now();
  closer.CloseSocket(lingering.TakeWithinAnother(), "a");
  WaitUntilClosed(closer);
  EXPECT_LT(SteadyClock::now() - begun, kFarLessThanALinger);
}

TEST(DescriptorCloser, ASocketThatHoldsNothingIsClosedWithinTheCall) {
  HangingClose hangs;
  DescriptorCloser closer(hangs.call());
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd other(ends[0]);
  closer.CloseSocket(UniqueFd(ends[1]), "a");
  char byte;
  EXPECT_EQ(::recv(other.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(closer.pending(), 0u);
}

TEST(DescriptorCloser, OneThatHangsHoldsUpNoOtherSender) {
  OneHangs one;
  DescriptorCloser closer(one.call());
  closer.Close(one.Take(), "hostile");
  while (one.hanging() == 0) std::this_thread::yield();
  closer.Close(AnyDescriptor(), "other");
  while (one.closed() == 0) std::this_thread::yield();
  EXPECT_EQ(closer.pending("hostile"), 1u);
  EXPECT_EQ(closer.pending("a third"), 0u);
}

// The thread is given up, and the sender's next descriptors get another.
TEST(DescriptorCloser, OneThatHangsDoesNotHoldUpItsSendersOthers) {
  OneHangs one;
  DescriptorCloser closer(one.call());
  closer.Close(one.Take(), "a");
  while (one.hanging() == 0) std::this_thread::yield();
  closer.Close(AnyDescriptor(), "a");
  size_t given = 1;
  for (auto last = SteadyClock::now(); one.closed() == 0; std::this_thread::yield()) {
    if (SteadyClock::now() - last < std::chrono::milliseconds(20)) continue;
    last = SteadyClock::now();
    closer.Close(AnyDescriptor(), "a");
    ++given;
  }
  while (closer.pending("a") > 1) std::this_thread::yield();
  EXPECT_EQ(one.closed(), given);
}

TEST(DescriptorCloser, ASenderWhoseDescriptorsHangHasAFewThreads) {
  HangingClose hangs;
  DescriptorCloser closer(hangs.call());
  size_t given = 0;
  for (auto last = SteadyClock::time_point(); hangs.hanging() < kMaxThreadsPerSender;
       std::this_thread::yield()) {
    if (SteadyClock::now() - last < std::chrono::milliseconds(20)) continue;
    last = SteadyClock::now();
    closer.Close(AnyDescriptor(), "hostile");
    ++given;
  }
  for (int i = 0; i < 100; ++i) closer.Close(AnyDescriptor(), "hostile");
  EXPECT_EQ(closer.pending("hostile"), given + 100);
  EXPECT_EQ(hangs.hanging(), kMaxThreadsPerSender);
}

TEST(DescriptorCloser, AForeignDescriptorIsClosedWhenItsOwnerGoes) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reading(ends[0]);
  DescriptorCloser closer;
  {
    const ForeignFd first(UniqueFd(ends[1]), &closer, "a");
    EXPECT_EQ(first.get(), ends[1]);
  }
  char byte;
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
}

}  // namespace
}  // namespace kvtier
