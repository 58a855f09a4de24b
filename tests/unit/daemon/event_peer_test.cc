// SPDX-License-Identifier: Apache-2.0
// One peer over a real socket, whose turns come when the test says so, as if others had theirs.
#include "daemon/events/event_peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tests/fakes/fake_loop.h"

namespace kvtier {
namespace {

class EventPeerTest : public ::testing::Test {
 protected:
  // A TCP connection has buffers of MiBs.
  void Connect() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(listener.get(), any, size), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener.get(), any, &size), 0);
    client_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(client_.get(), any, size), 0);
    UniqueFd server(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    ::fcntl(client_.get(), F_SETFL, O_NONBLOCK);
    peer_ = std::make_unique<EventPeer>(
        EventPeer::Environment{
            .loop = &loop_, .turns = &turns_, .clock = &clock_, .counters = &counters_},
        EventPeerRole::kSubscriber, std::move(server), [] {});
    peer_->Start();
    std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\x03\x01NULL", 16);
    greeting.resize(64, '\0');
    unsent_ = greeting + std::string("\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB", 27);
  }
  // False if the other side takes nothing.
  bool Send() {
    const ssize_t sent = ::send(client_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent > 0) unsent_.erase(0, static_cast<size_t>(sent));
    return sent > 0;
  }
  [[nodiscard]] size_t Read() {
    std::array<char, 65536> bytes;
    size_t read = 0;
    for (ssize_t count = 1; count > 0; read += count > 0 ? static_cast<size_t>(count) : 0) {
      count = ::recv(client_.get(), bytes.data(), bytes.size(), 0);
    }
    return read;
  }
  // All that the socket is ready for.
  void RunEvents() {
    int left = 20;
    Timer again(&loop_);
    std::function<void()> tick = [&] {
      again.Start(1, tick);
      --left;
    };
    tick();
    loop_.RunUntil([&] { return left == 0; });
  }

  EventLoop loop_;
  FakeLoop turn_events_;
  FairTurns turns_{&turn_events_};
  const SystemClock clock_;
  EventPeerCounters counters_;
  UniqueFd client_;
  std::string unsent_;
  std::unique_ptr<EventPeer> peer_;
};

TEST_F(EventPeerTest, OneThatHasNotReadForLongIsReadAgainWhenItDoes) {
  Connect();
  constexpr size_t kPongBytes = 23;
  const std::string ping = std::string("\x04\x17\x04PING\0\0", 9) + std::string(16, 'x');
  size_t pings = 0, read = 0;
  const auto send = [&] {
    if (unsent_.empty()) {
      for (int i = 0; i < 10'000; ++i) unsent_ += ping;
      pings += 10'000;
    }
    return Send();
  };
  for (int idle = 0; idle < 3;) {
    idle = send() ? 0 : idle + 1;
    RunEvents();
  }
  // Its turns come late, when its socket has been heard of.
  for (int idle = 0; idle < 50 && read < pings * kPongBytes;) {
    const size_t now = Read();
    read += now;
    idle = now > 0 ? 0 : idle + 1;
    RunEvents();
    turn_events_.RunAll();
    if (!unsent_.empty()) (void)Send();
  }
  EXPECT_FALSE(peer_->over());
  EXPECT_GE(read, pings * kPongBytes);
}

}  // namespace
}  // namespace kvtier
