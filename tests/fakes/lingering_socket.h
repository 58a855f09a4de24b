// SPDX-License-Identifier: Apache-2.0
// Descriptors whose close() takes as long as their maker likes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "protocol/socket_io.h"

namespace kvtier {

// A TCP connection whose close() takes a minute: unsent data, and a peer that does not read.
class LingeringSocket {
 public:
  static constexpr int kLingerSeconds = 60;

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
    const linger long_enough{.l_onoff = 1, .l_linger = kLingerSeconds};
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &long_enough, sizeof(long_enough)),
              0);
    const std::vector<char> much(1 << 20);
    while (::send(socket_.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
  }

  [[nodiscard]] UniqueFd Take() { return std::move(socket_); }
  // Within a Unix socket, where no receiver can set its options; the other end of that one is
  // closed.
  [[nodiscard]] UniqueFd TakeWithinAnother() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd outer(ends[0]);
    const UniqueFd socket = Take();
    const int sent = socket.get();
    const std::array<std::byte, 1> byte{};
    EXPECT_TRUE(wire::Send(outer.get(), byte, {&sent, 1}));
    return UniqueFd(ends[1]);
  }

 private:
  UniqueFd listener_;
  UniqueFd peer_;
  UniqueFd socket_;
};

}  // namespace kvtier
