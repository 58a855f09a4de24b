// SPDX-License-Identifier: Apache-2.0
#include "protocol/socket_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>

namespace kvtier::wire {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

class SocketIo : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    left_ = UniqueFd(fds[0]);
    right_ = UniqueFd(fds[1]);
  }

  // The bytes that the right side gets, as text; descriptors go to descriptors_.
  std::string ReceiveText() {
    const auto received = Receive(right_.get(), namespace_id_, &descriptors_);
    if (!received || !*received) return "";
    return std::string(reinterpret_cast<const char*>(namespace_id_.data()), **received);
  }

  UniqueFd left_, right_;
  std::array<std::byte, 4096> namespace_id_;
  std::vector<UniqueFd> descriptors_;
};

TEST_F(SocketIo, BytesArrive) {
  EXPECT_EQ(**Send(left_.get(), BytesOf("hello")), 5u);
  EXPECT_EQ(ReceiveText(), "hello");
  EXPECT_TRUE(descriptors_.empty());
}

TEST_F(SocketIo, ReceivingNothingIsNotAnError) {
  const auto received = Receive(right_.get(), namespace_id_, nullptr);
  ASSERT_TRUE(received.has_value());
  EXPECT_FALSE(received->has_value());
}

TEST_F(SocketIo, ADescriptorArrivesWithItsFirstByteAndIsTheSameFile) {
  const UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
  const int descriptor = memory.get();
  ASSERT_EQ(::pwrite(memory.get(), "shared", 6, 0), 6);
  ASSERT_TRUE(Send(left_.get(), BytesOf("before ")).has_value());
  ASSERT_TRUE(Send(left_.get(), BytesOf("with"), {&descriptor, 1}).has_value());
  std::string text = ReceiveText();
  while (descriptors_.empty()) {
    const std::string more = ReceiveText();
    ASSERT_FALSE(more.empty());
    text += more;
  }
  EXPECT_EQ(text, "before with");
  ASSERT_EQ(descriptors_.size(), 1u);
  char content[6];
  ASSERT_EQ(::pread(descriptors_[0].get(), content, sizeof(content), 0), 6);
  EXPECT_EQ(std::string(content, 6), "shared");
  EXPECT_NE(::fcntl(descriptors_[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(SocketIo, UnwantedDescriptorsAreClosed) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  const int sent = write_end.get();
  ASSERT_TRUE(Send(left_.get(), BytesOf("x"), {&sent, 1}).has_value());
  write_end.Reset();
  ASSERT_TRUE(Receive(right_.get(), namespace_id_, nullptr)->has_value());
  // End of file: no write end is open anywhere.
  EXPECT_EQ(::read(read_end.get(), namespace_id_.data(), 1), 0);
}

TEST_F(SocketIo, MoreDescriptorsThanAllowedDoNotLeak) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  constexpr size_t kCount = 20;
  alignas(cmsghdr) char control[CMSG_SPACE(kCount * sizeof(int))] = {};
  char byte = 'x';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(kCount * sizeof(int));
  for (size_t i = 0; i < kCount; ++i) {
    const int fd = write_end.get();
    std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(int));
  }
  ASSERT_EQ(::sendmsg(left_.get(), &message, 0), 1);
  write_end.Reset();
  ASSERT_TRUE(Receive(right_.get(), namespace_id_, &descriptors_)->has_value());
  EXPECT_LE(descriptors_.size(), kMaxDescriptorsPerReceive);
  descriptors_.clear();
  EXPECT_EQ(::read(read_end.get(), namespace_id_.data(), 1), 0);
}

TEST_F(SocketIo, AFullSocketWouldBlock) {
  const std::vector<std::byte> much(1 << 20);
  size_t sent = 0;
  while (true) {
    const auto count = Send(left_.get(), much);
    ASSERT_TRUE(count.has_value());
    if (!count->has_value()) break;
    sent += **count;
  }
  EXPECT_GT(sent, 0u);
}

TEST_F(SocketIo, AClosedPeerIsSeenOnBothWays) {
  right_.Reset();
  const auto sent = Send(left_.get(), BytesOf("x"));
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().reason, "peer_closed");
  EXPECT_EQ(**Receive(left_.get(), namespace_id_, nullptr), 0u);
}

TEST(SocketIoErrors, ABadSocketIsAnIoError) {
  std::array<std::byte, 1> name_space;
  EXPECT_EQ(Receive(-1, name_space, nullptr).error().reason, "receive_failed");
  EXPECT_EQ(Send(-1, name_space).error().reason, "send_failed");
}

}  // namespace
}  // namespace kvtier::wire
