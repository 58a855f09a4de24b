// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/descriptor_closer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A TCP connection whose close() takes a minute: unsent data, and a peer that does not read.
class LingeringSocket {
 public:
  LingeringSocket() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    peer_ = UniqueFd(::accept(listener_.get(), nullptr, nullptr));
    const linger minute{.l_onoff = 1, .l_linger = 60};
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &minute, sizeof(minute)), 0);
    const std::vector<char> much(1 << 20);
    while (::send(socket_.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
  }
  [[nodiscard]] UniqueFd Take() { return std::move(socket_); }

 private:
  UniqueFd listener_;
  UniqueFd peer_;
  UniqueFd socket_;
};

void WaitUntilClosed(const DescriptorCloser& closer) {
  while (closer.pending() > 0) std::this_thread::yield();
}

TEST(DescriptorCloser, ClosesWhatItIsGiven) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reading(ends[0]);
  DescriptorCloser closer;
  closer.Close(UniqueFd(ends[1]));
  char byte;
  // Ends when the writing end has been closed.
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
  WaitUntilClosed(closer);
}

TEST(DescriptorCloser, ALingeringSocketHoldsUpNeitherTheCallerNorTheOthers) {
  LingeringSocket lingering;
  DescriptorCloser closer;
  const auto begun = SteadyClock::now();
  closer.Close(lingering.Take());
  WaitUntilClosed(closer);
  EXPECT_LT(SteadyClock::now() - begun, std::chrono::seconds(30));
}

TEST(DescriptorCloser, AForeignDescriptorIsClosedWhenItsOwnerGoes) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reading(ends[0]);
  DescriptorCloser closer;
  {
    const ForeignFd first(UniqueFd(ends[1]), &closer);
    EXPECT_EQ(first.get(), ends[1]);
  }
  char byte;
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
}

}  // namespace
}  // namespace kvtier
