// SPDX-License-Identifier: Apache-2.0
// Descriptors that a connection sends: how many may be on their way, and sends that fail.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/net/connection.h"
#include "protocol/messages.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

class Listener final : public ConnectionListener {
 public:
  void OnFrame(const wire::Frame& frame) override {
    ++frames;
    on_frame(frame);
  }
  void OnClosed(const Error& why) override {
    ++closings;
    reason = why.reason;
  }

  size_t frames = 0;
  std::function<void(const wire::Frame&)> on_frame;
  int closings = 0;
  std::string reason;
};

// A peer whose every frame is answered with a descriptor.
class Receiver {
 public:
  Receiver(Network* network, const std::string& tenant, int64_t slow_reader_timeout_ms = 60'000) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    socket = UniqueFd(fds[0]);
    connection = std::make_unique<Connection>(
        network, tenant, UniqueFd(fds[1]),
        ConnectionLimits{.max_outbound_bytes = 1 << 20,
                         .slow_reader_timeout_ms = slow_reader_timeout_ms},
        &listener);
    listener.on_frame = [this](const wire::Frame& frame) { Answer(frame.request_id); };
    connection->Start();
  }
  void Answer(uint64_t id) {
    const auto memory =
        std::make_shared<const UniqueFd>(UniqueFd(::memfd_create("sent", MFD_CLOEXEC)));
    connection->SendWithDescriptors(id, wire::Pong{}, {memory->get()}, memory);
  }
  void Ask(uint64_t count) {
    std::vector<std::byte> bytes;
    for (uint64_t id = 1; id <= count; ++id) wire::Encode(wire::Ping{}, id, &bytes);
    EXPECT_EQ(wire::Send(socket.get(), bytes).value(), bytes.size());
  }
  // Takes in all that has arrived; returns how many descriptors came so far.
  size_t Take() {
    std::vector<std::byte> space(64 << 10);
    std::vector<UniqueFd> descriptors;
    while (wire::Receive(socket.get(), space, &descriptors).value().value_or(0) > 0) {
    }
    return taken += descriptors.size();
  }

  Listener listener;
  UniqueFd socket;
  std::unique_ptr<Connection> connection;
  size_t taken = 0;
};

class ConnectionSending : public testing::Test {
 protected:
  void RunIdly() {
    Timer timer(&loop_);
    bool expired = false;
    timer.Start(5, [&] { expired = true; });
    loop_.RunUntil([&] { return expired; });
  }
  EventLoop loop_;
};

TEST_F(ConnectionSending, APeerThatReadsNothingIsSentFewDescriptorsAndAskedForNoMore) {
  Network network(&loop_);
  Receiver receiver(&network, "tenant");
  receiver.Ask(1000);
  loop_.RunUntil([&] { return receiver.connection->congested(); });
  RunIdly();
  EXPECT_LE(network.sent.unread("tenant"), kMaxUnreadDescriptors);
  EXPECT_LE(receiver.listener.frames, 2 * kMaxUnreadDescriptors + 1);
  loop_.RunUntil([&] { return receiver.Take() == 1000; });
  loop_.RunUntil([&] { return network.sent.unread("tenant") == 0; });
  EXPECT_EQ(receiver.listener.closings, 0);
}

TEST_F(ConnectionSending, APeerThatReadsNoDescriptorsIsCutOff) {
  Network network(&loop_);
  Receiver receiver(&network, "tenant", /*slow_reader_timeout_ms=*/1);
  for (size_t i = 0; i <= kMaxUnreadDescriptors; ++i) receiver.Answer(i);
  loop_.RunUntil([&] { return receiver.listener.closings > 0; });
  EXPECT_EQ(receiver.listener.reason, "slow_reader");
}

TEST_F(ConnectionSending, DescriptorsCountAfterTheConnectionUntilThePeerHasTakenThem) {
  Network network(&loop_);
  for (const bool reads : {true, false}) {
    Receiver receiver(&network, "tenant");
    receiver.Ask(3);
    loop_.RunUntil([&] { return network.sent.unread("tenant") == 3; });
    receiver.connection.reset();
    RunIdly();
    EXPECT_EQ(network.sent.unread("tenant"), 3u);
    if (reads) {
      EXPECT_EQ(receiver.Take(), 3u);
      char byte;
      EXPECT_EQ(::read(receiver.socket.get(), &byte, 1), 0) << "the end was not to be seen";
    } else {
      receiver.socket.Reset();
    }
    loop_.RunUntil([&] { return network.sent.unread("tenant") == 0; });
  }
}

TEST_F(ConnectionSending, ATenantThatReadsNothingLeavesDescriptorsToOthers) {
  Network network(&loop_, {.unread_descriptors = 8});
  Receiver hostile(&network, "hostile");
  Receiver its_other(&network, "hostile");
  Receiver other(&network, "other");
  hostile.Ask(10);
  loop_.RunUntil([&] { return network.sent.unread("hostile") == 4; });
  its_other.Ask(1);
  loop_.RunUntil([&] { return its_other.listener.frames == 1; });
  other.Ask(1);
  loop_.RunUntil([&] { return other.Take() == 1; });
  EXPECT_EQ(its_other.Take(), 0u);
  EXPECT_EQ(network.sent.unread("hostile"), 4u);
  loop_.RunUntil([&] { return hostile.Take() == 10 && its_other.Take() == 1; });
}

// While it lives, the kernel sends no descriptors of this user: more than a process may have open
// are on their way, and nothing exempts this thread.
class NothingMayBeSent {
 public:
  NothingMayBeSent() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    ends_ = {UniqueFd(fds[0]), UniqueFd(fds[1])};
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit_), 0);
    const std::array<int, 2> sent = {fds[0], fds[1]};
    constexpr rlim_t kFew = 64;
    for (rlim_t i = 0; i <= kFew; ++i) {
      EXPECT_TRUE(wire::Send(fds[0], std::as_bytes(std::span("x", 1)), sent));
    }
    EXPECT_EQ(::syscall(SYS_capget, &header_, capabilities_.data()), 0);
    auto fewer = capabilities_;
    for (const int capability : {CAP_SYS_RESOURCE, CAP_SYS_ADMIN}) {
      fewer[CAP_TO_INDEX(capability)].effective &= ~CAP_TO_MASK(capability);
    }
    EXPECT_EQ(::syscall(SYS_capset, &header_, fewer.data()), 0);
    const rlimit few{.rlim_cur = kFew, .rlim_max = limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~NothingMayBeSent() {
    ::setrlimit(RLIMIT_NOFILE, &limit_);
    ::syscall(SYS_capset, &header_, capabilities_.data());
  }
  NothingMayBeSent(const NothingMayBeSent&) = delete;
  NothingMayBeSent& operator=(const NothingMayBeSent&) = delete;

 private:
  std::array<UniqueFd, 2> ends_;
  rlimit limit_{};
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> capabilities_{};
};

TEST_F(ConnectionSending, DescriptorsThatTheKernelDoesNotTakeAreSentLater) {
  Network network(&loop_);
  Receiver receiver(&network, "tenant");
  {
    const NothingMayBeSent nothing;
    receiver.Ask(2);
    loop_.RunUntil([&] { return receiver.listener.frames == 2; });
    RunIdly();
    EXPECT_EQ(receiver.Take(), 0u);
    EXPECT_FALSE(receiver.connection->deaf());
  }
  loop_.RunUntil([&] { return receiver.Take() == 2; });
  EXPECT_EQ(receiver.listener.closings, 0);
}

TEST_F(ConnectionSending, ASendThatFailsIsNoPeerThatHasClosed) {
  Network network(&loop_);
  Receiver receiver(&network, "tenant");
  receiver.connection->SendWithDescriptors(1, wire::Pong{}, {-1}, std::make_shared<int>());
  loop_.RunUntil([&] { return receiver.listener.closings > 0; });
  EXPECT_EQ(receiver.listener.reason, "send_failed");
}

}  // namespace
}  // namespace kvtier
