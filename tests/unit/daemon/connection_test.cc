// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/net/acceptor.h"
#include "protocol/messages.h"
#include "protocol/socket_io.h"
#include "tests/fakes/lingering_socket.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

class RecordingListener final : public ConnectionListener {
 public:
  void OnFrame(const wire::Frame& frame) override {
    frames.push_back(frame.request_id);
    if (on_frame) on_frame(frame);
  }
  void OnClosed(const Error& why) override {
    ++closings;
    reason = why.reason;
  }

  std::vector<uint64_t> frames;
  std::function<void(const wire::Frame&)> on_frame;
  int closings = 0;
  std::string reason;
};

TEST(Acceptor, TheFileOfOneThatListensThereSinceStays) {
  EventLoop loop;
  Log log(LogConfig{.level = LogLevel::kError});
  const TestDirectory directory;
  const std::string path = directory.path() / "socket";
  const auto listen = [&] {
    return *Acceptor::Listen(&loop, &log, path, 0600, /*descriptors=*/true, [](UniqueFd) {});
  };
  auto first = listen();
  std::filesystem::remove(path);
  auto second = listen();
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path));
  second.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Acceptor, AFileInTheSocketsPlaceKeepsItsMode) {
  const TestDirectory directory;
  const std::string file = directory.path() / "file";
  const std::string link = directory.path() / "socket";
  const UniqueFd made(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  std::filesystem::create_symlink(file, link);
  EXPECT_EQ(Acceptor::SetMode(link, 0666).error().reason, "ENOTSOCK");
  EXPECT_EQ(Acceptor::SetMode(file, 0666).error().reason, "ENOTSOCK");
  struct stat found {};
  ASSERT_EQ(::fstat(made.get(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

// As after a kill, when engines that come back fill the queue from which no process takes any more.
TEST(Acceptor, AListenerWhoseQueueIsFullIsWaitedForUntilTheDeadline) {
  const TestDirectory directory;
  const std::string path = directory.path() / "socket";
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto* const to = reinterpret_cast<sockaddr*>(&address);
  const auto make = [] {
    return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  };
  UniqueFd listener = make();
  ASSERT_EQ(::bind(listener.get(), to, sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  std::vector<UniqueFd> queue;
  do {
    queue.push_back(make());
  } while (::connect(queue.back().get(), to, sizeof(address)) == 0);
  ASSERT_EQ(errno, EAGAIN);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  EXPECT_EQ(Acceptor::CheckFree(path, deadline).error().reason, "socket_in_use");
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  listener.Reset();
  EXPECT_TRUE(Acceptor::CheckFree(path));
}

class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    client_ = UniqueFd(fds[0]);
    connection_ = std::make_unique<Connection>(
        &network_, "tenant", UniqueFd(fds[1]),
        ConnectionLimits{.max_outbound_bytes = 64 << 10, .slow_reader_timeout_ms = 60'000},
        &listener_);
    connection_->Start();
  }

  void SendPings(uint64_t first, uint64_t count) {
    std::vector<std::byte> bytes;
    for (uint64_t id = first; id < first + count; ++id) wire::Encode(wire::Ping{}, id, &bytes);
    const auto sent = wire::Send(client_.get(), bytes);
    EXPECT_EQ(sent.value(), bytes.size());
  }
  void RunUntilFrames(size_t count) {
    loop_.RunUntil([&] { return listener_.frames.size() == count; });
  }
  void RunUntilClosed() {
    loop_.RunUntil([&] { return listener_.closings > 0; });
  }
  // Takes the bytes that have arrived; returns their number.
  size_t Drain() {
    std::vector<std::byte> name_space(1 << 20);
    size_t total = 0;
    while (const auto received = wire::Receive(client_.get(), name_space, nullptr).value()) {
      if (*received == 0) break;
      total += *received;
    }
    return total;
  }
  // Lets the loop run for a moment in which nothing is expected to happen.
  void RunIdly() {
    Timer timer(&loop_);
    bool expired = false;
    timer.Start(5, [&] { expired = true; });
    loop_.RunUntil([&] { return expired; });
  }

  EventLoop loop_;
  Network network_{&loop_};
  RecordingListener listener_;
  UniqueFd client_;
  std::unique_ptr<Connection> connection_;
};

wire::LookupReply ReplyOf(size_t bytes) {
  wire::LookupReply reply;
  reply.presence.resize(bytes);
  return reply;
}

TEST_F(ConnectionTest, FramesAreHandedOutInOrder) {
  SendPings(1, 1000);
  RunUntilFrames(1000);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(listener_.frames[i], i + 1);
}

TEST_F(ConnectionTest, PausedConnectionHandsOutNothing) {
  listener_.on_frame = [&](const wire::Frame&) {
    if (listener_.frames.size() == 3) connection_->Pause();
  };
  SendPings(1, 10);
  RunUntilFrames(3);
  RunIdly();
  EXPECT_EQ(listener_.frames.size(), 3u);
  connection_->Resume();
  EXPECT_EQ(listener_.frames.size(), 3u) << "called back from within Resume";
  RunUntilFrames(10);
}

TEST_F(ConnectionTest, PeerThatGoesWhilePausedIsSeenToGo) {
  listener_.on_frame = [&](const wire::Frame&) { connection_->Pause(); };
  SendPings(1, 5);
  RunUntilFrames(1);
  client_.Reset();
  RunUntilClosed();
  EXPECT_EQ(listener_.reason, "peer_closed");
  EXPECT_EQ(listener_.frames.size(), 1u);
}

TEST_F(ConnectionTest, WhatAPeerSentBeforeItWentIsHandedOutThoughNoReplyCanBeSent) {
  listener_.on_frame = [&](const wire::Frame& frame) {
    connection_->Send(frame.request_id, ReplyOf(100));
  };
  // More than one turn reads.
  SendPings(1, 5000);
  client_.Reset();
  connection_->Send(0, ReplyOf(100));
  EXPECT_TRUE(connection_->deaf());
  RunUntilClosed();
  EXPECT_EQ(listener_.reason, "peer_closed");
  EXPECT_EQ(listener_.frames.size(), 5000u);
}

TEST_F(ConnectionTest, APeerThatTakesNoRepliesIsCutOffBehindWhatItHadSent) {
  SendPings(1, 10);
  ASSERT_EQ(::shutdown(client_.get(), SHUT_RD), 0);
  connection_->Send(0, ReplyOf(100));
  ASSERT_TRUE(connection_->deaf());
  RunUntilClosed();
  EXPECT_EQ(listener_.frames.size(), 10u);
}

TEST_F(ConnectionTest, RequestsAreNotReadWhileRepliesPileUp) {
  listener_.on_frame = [&](const wire::Frame& frame) {
    connection_->Send(frame.request_id, ReplyOf(16'000));
  };
  SendPings(1, 500);
  // Asked after an event, that is when all was sent that the socket takes.
  loop_.RunUntil([&] { return connection_->congested(); });
  const size_t handled = listener_.frames.size();
  EXPECT_LT(handled, 500u);
  RunIdly();
  EXPECT_EQ(listener_.frames.size(), handled);
  bool told = false;
  connection_->OnceUncongested([&] { told = true; });
  size_t taken = 0;
  loop_.RunUntil([&] {
    taken += Drain();
    return listener_.frames.size() == 500;
  });
  EXPECT_TRUE(told);
  loop_.RunUntil([&] {
    taken += Drain();
    return taken == 500 * (wire::kFrameHeaderBytes + sizeof(uint32_t) + 16'000);
  });
}

TEST_F(ConnectionTest, AnEventAmongRepliesThatPileUpDoesNotEndTheReading) {
  listener_.on_frame = [&](const wire::Frame& frame) {
    connection_->Send(frame.request_id, ReplyOf(16'000));
    connection_->Send(frame.request_id, ReplyOf(16'000));
  };
  SendPings(1, 100);
  loop_.RunUntil([&] { return connection_->congested(); });
  // Until so much has gone that less than the limit is unsent, and more than half of it.
  std::vector<std::byte> some(20'000);
  while (wire::Receive(client_.get(), some, nullptr).value() && connection_->congested()) {
    RunIdly();
    connection_->Send(0, ReplyOf(1));
  }
  loop_.RunUntil([&] {
    Drain();
    return listener_.frames.size() == 100;
  });
}

TEST_F(ConnectionTest, OnlyStepsThatSendNothingGoOnWhileRepliesPileUp) {
  for (const auto kind : {Connection::StepKind::kMaySend, Connection::StepKind::kSendsNothing}) {
    constexpr int kSteps = 20;
    int steps = 0;
    listener_.on_frame = [&](const wire::Frame&) {
      const auto step = [&] {
        // One step a turn; events of the daemon pile up behind the first.
        connection_->Spend(1u << 20);
        for (int i = 0; steps == 0 && i < 200; ++i) connection_->Send(0, ReplyOf(16'000));
        return ++steps < kSteps;
      };
      connection_->WorkInSteps(step, kind);
    };
    SendPings(1, 1);
    loop_.RunUntil([&] { return connection_->congested(); });
    if (kind == Connection::StepKind::kSendsNothing) {
      loop_.RunUntil([&] { return steps == kSteps; });
      EXPECT_TRUE(connection_->congested());
    } else {
      RunIdly();
      EXPECT_LT(steps, kSteps);
    }
    loop_.RunUntil([&] {
      Drain();
      return steps == kSteps && !connection_->congested();
    });
  }
}

TEST_F(ConnectionTest, CloseDeliversWhatWasQueuedAndTheReason) {
  connection_->Send(7, ReplyOf(10'000));
  connection_->CloseWith({ErrorCode::kTimeout, "enough", ""});
  connection_->Send(8, ReplyOf(10'000));  // too late
  EXPECT_EQ(listener_.closings, 0) << "called back from within CloseWith";
  RunUntilClosed();
  EXPECT_EQ(listener_.reason, "enough");
  std::vector<std::byte> expected;
  wire::Encode(ReplyOf(10'000), 7, &expected);
  wire::Encode(wire::ErrorReply{{ErrorCode::kTimeout, "enough", ""}}, 0, &expected);
  EXPECT_EQ(Drain(), expected.size());
}

TEST_F(ConnectionTest, EndIsToldOnce) {
  client_.Reset();
  connection_->Send(1, wire::Pong{});
  connection_->CloseWith({ErrorCode::kTimeout, "enough", ""});
  RunUntilClosed();
  RunIdly();
  EXPECT_EQ(listener_.closings, 1);
}

TEST_F(ConnectionTest, ALongRequestIsWorkedOnInStepsOfOneTurnEach) {
  constexpr uint32_t kSteps = 100;
  uint32_t steps = 0;
  listener_.on_frame = [&](const wire::Frame& frame) {
    if (frame.request_id != 1) return;
    connection_->WorkInSteps([&] {
      connection_->Spend(kTurnPrice);
      return ++steps < kSteps;
    });
  };
  // An event between two turns sees one step more at most.
  uint32_t seen = 0;
  uint32_t most = 0;
  std::function<void()> look = [&] {
    most = std::max(most, steps - seen);
    seen = steps;
    if (steps < kSteps) loop_.Post(look);
  };
  SendPings(1, 2);
  loop_.Post(look);
  RunUntilFrames(2);
  EXPECT_EQ(steps, kSteps) << "the next request was handed out too early";
  EXPECT_LE(most, 1u);
}

TEST_F(ConnectionTest, StepsEndWithTheConnection) {
  int steps = 0;
  listener_.on_frame = [&](const wire::Frame&) {
    connection_->WorkInSteps([&] {
      connection_->Spend(kTurnPrice);
      if (++steps == 3) connection_->CloseWith({ErrorCode::kTimeout, "enough", ""});
      return true;
    });
  };
  SendPings(1, 1);
  RunUntilClosed();
  EXPECT_EQ(steps, 3);
}

TEST_F(ConnectionTest, AnIdleConnectionKeepsNoBufferAndGoesOn) {
  SendPings(1, 3);
  RunUntilFrames(3);
  connection_->GiveBackMemory();
  connection_->GiveBackMemory();
  SendPings(4, 3);
  RunUntilFrames(6);
}

UniqueFd MemoryFile() { return UniqueFd(::memfd_create("lent", MFD_CLOEXEC)); }

class ConnectionDescriptors : public ConnectionTest {
 protected:
  ConnectionDescriptors() {
    connection_->AcceptDescriptors();
    listener_.on_frame = [this](const wire::Frame& frame) {
      size_t& came = came_[frame.request_id];
      while (std::optional<UniqueFd> descriptor = connection_->TakeDescriptor()) {
        ++came;
        if (!descriptor->valid()) ++refused_;
      }
    };
  }
  static std::vector<std::byte> PingOf(uint64_t id) {
    std::vector<std::byte> bytes;
    wire::Encode(wire::Ping{}, id, &bytes);
    return bytes;
  }
  void Send(std::span<const std::byte> bytes, const std::vector<int>& descriptors) {
    EXPECT_EQ(wire::Send(client_.get(), bytes, descriptors).value(), bytes.size());
  }
  // As many as the kernel lets a message carry, which wire::Send does not.
  void SendMany(std::span<const std::byte> bytes, const std::vector<int>& descriptors, int flags) {
    std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
    ASSERT_EQ(::sendmsg(client_.get(), &message, flags), static_cast<ssize_t>(bytes.size()));
  }
  void WaitUntilClosed() {
    while (network_.closer.pending() > 0) RunIdly();
  }

  std::map<uint64_t, size_t> came_;  // with each frame
  size_t refused_ = 0;
};

TEST_F(ConnectionDescriptors, ComeWithTheFrameWhoseFirstByteTheyWereSentWith) {
  const UniqueFd memory = MemoryFile();
  SendPings(1, 100);
  Send(PingOf(101), {memory.get(), memory.get()});
  SendPings(102, 100);
  Send(PingOf(202), {memory.get()});
  SendPings(203, 10);
  RunUntilFrames(212);
  for (uint64_t id = 1; id <= 212; ++id) {
    EXPECT_EQ(came_[id], id == 101 ? 2u : id == 202 ? 1u : 0u) << "frame " << id;
  }
  EXPECT_EQ(refused_, 0u);
}

TEST_F(ConnectionDescriptors, WhatNoFrameTakesIsClosed) {
  listener_.on_frame = nullptr;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const UniqueFd memory = MemoryFile();
  Send(PingOf(1), {memory.get(), writing.get()});
  // None of a frame's later bytes brings it any.
  const std::vector<std::byte> second = PingOf(2);
  Send(std::span(second).first(5), {});
  Send(std::span(second).subspan(5), {writing.get(), writing.get()});
  SendMany(PingOf(3), std::vector<int>(250, writing.get()), 0);
  RunUntilFrames(3);
  listener_.on_frame = [&](const wire::Frame&) {
    EXPECT_FALSE(connection_->TakeDescriptor().has_value());
  };
  SendPings(4, 1);
  RunUntilFrames(4);
  // The last writing end is gone: the pipe has ended.
  writing.Reset();
  char byte;
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
}

TEST_F(ConnectionDescriptors, OnlyThoseOfMemoryAreHandedOut) {
  TestDirectory directory;
  const UniqueFd memory = MemoryFile();
  const UniqueFd file(::open((directory.path() / "nvidia0").c_str(), O_CREAT | O_RDWR, 0600));
  const UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  Send(PingOf(1), {memory.get(), client_.get()});
  Send(PingOf(2), {file.get(), device.get()});
  RunUntilFrames(2);
  EXPECT_EQ(came_[1] + came_[2], 4u);
  EXPECT_EQ(refused_, 3u);
}

TEST_F(ConnectionDescriptors, ThatLingerHoldUpNothing) {
  const auto begun = std::chrono::steady_clock::now();
  for (uint64_t id = 1; id <= 3; ++id) {
    const UniqueFd lingering = LingeringSocket().TakeWithinAnother();
    Send(PingOf(id), {lingering.get()});
  }
  // An urgent byte brings its descriptors like any other.
  {
    const UniqueFd lingering = LingeringSocket().TakeWithinAnother();
    const std::vector<std::byte> ping = PingOf(4);
    SendMany(std::span(ping).first(1), {lingering.get()}, MSG_OOB);
    Send(std::span(ping).subspan(1), {});
  }
  RunUntilFrames(4);
  WaitUntilClosed();
  EXPECT_LT(std::chrono::steady_clock::now() - begun,
            std::chrono::seconds(LingeringSocket::kLingerSeconds / 2));
}

TEST_F(ConnectionTest, ADescriptorBeforeTheyAreAcceptedEndsTheConnectionUnreceived) {
  const auto begun = std::chrono::steady_clock::now();
  {
    const UniqueFd lingering = LingeringSocket().TakeWithinAnother();
    const int sent = lingering.get();
    std::vector<std::byte> bytes;
    wire::Encode(wire::Ping{}, 1, &bytes);
    ASSERT_TRUE(wire::Send(client_.get(), bytes, {&sent, 1}));
  }
  RunUntilClosed();
  EXPECT_EQ(listener_.reason, "unexpected_descriptor");
  EXPECT_EQ(network_.closer.pending(), 0u) << "it was received";
  connection_.reset();
  while (network_.closer.pending() > 0) RunIdly();
  EXPECT_LT(std::chrono::steady_clock::now() - begun,
            std::chrono::seconds(LingeringSocket::kLingerSeconds / 2));
}

TEST(ConnectionClosing, ATenantWhoseDescriptorsHangIsCutOffAndNoOther) {
  std::promise<void> going_on;
  const std::shared_future<void> go_on = going_on.get_future().share();
  EventLoop loop;
  Network network(&loop, [go_on](UniqueFd) { go_on.wait(); });
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  struct Client {
    Client(EventLoop* loop, Network* network, const std::string& tenant) {
      int fds[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      socket = UniqueFd(fds[0]);
      connection = std::make_unique<Connection>(
          network, tenant, UniqueFd(fds[1]),
          ConnectionLimits{.max_outbound_bytes = 64 << 10, .slow_reader_timeout_ms = 60'000},
          &listener);
      connection->AcceptDescriptors();
      connection->Start();
      this->loop = loop;
    }
    void Ping(int descriptor) {
      std::vector<std::byte> bytes;
      wire::Encode(wire::Ping{}, 1, &bytes);
      ASSERT_TRUE(wire::Send(socket.get(), bytes, {&descriptor, 1}));
      const size_t before = listener.frames.size();
      loop->RunUntil([&] { return listener.frames.size() > before || listener.closings > 0; });
    }
    EventLoop* loop;
    RecordingListener listener;
    UniqueFd socket;
    std::unique_ptr<Connection> connection;
  };
  Client hostile(&loop, &network, "hostile");
  for (int i = 0; i < 1000 && hostile.listener.closings == 0; ++i) hostile.Ping(null.get());
  EXPECT_EQ(hostile.listener.reason, "too_many_descriptors");
  EXPECT_LT(hostile.listener.frames.size(), 300u);
  const size_t pending = network.closer.pending();
  Client again(&loop, &network, "hostile");
  again.Ping(null.get());
  EXPECT_EQ(again.listener.reason, "too_many_descriptors");
  EXPECT_EQ(network.closer.pending(), pending) << "it was received";
  Client other(&loop, &network, "other");
  other.Ping(null.get());
  EXPECT_EQ(other.listener.closings, 0);
  going_on.set_value();
}

}  // namespace
}  // namespace kvtier
