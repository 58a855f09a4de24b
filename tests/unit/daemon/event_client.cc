// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/event_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>

namespace kvtier {
namespace {

constexpr size_t kGreetingBytes = 64;

UniqueFd ConnectUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

UniqueFd ConnectTcp(uint16_t port, const std::string& from) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  EXPECT_EQ(::inet_pton(AF_INET, from.c_str(), &address.sin_addr), 1);
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Little waits in the kernel, so that the other side soon notices a client that does not read.
  // The kernel keeps some segments' worth for the sender, which over loopback would be megabytes.
  const int buffer_bytes = 4096, segment_bytes = 536;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_MAXSEG, &segment_bytes, sizeof(segment_bytes));
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

}  // namespace

uint64_t SequenceOf(const std::string& part) {
  EXPECT_EQ(part.size(), 8u);
  uint64_t number = 0;
  for (const char byte : part) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

EventClient::EventClient(const std::string& endpoint, std::string_view socket_type,
                         const std::string& from) {
  if (endpoint.starts_with("ipc://")) {
    socket_ = ConnectUnix(endpoint.substr(6));
  } else {
    socket_ = ConnectTcp(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))),
                         from);
  }
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\x03\x01NULL", 16);
  greeting.resize(kGreetingBytes, '\0');
  SendRaw(greeting);
  std::string ready("\x05READY\x0bSocket-Type\0\0\0", 21);
  ready.push_back(static_cast<char>(socket_type.size()));
  SendFrame(4, ready.append(socket_type));
}

void EventClient::Request(uint64_t first) {
  std::string number;
  for (int shift = 56; shift >= 0; shift -= 8) number.push_back(static_cast<char>(first >> shift));
  SendFrame(1, "");
  SendFrame(0, number);
}

void EventClient::SendFrame(uint8_t flags, const std::string& body) {
  std::string frame{static_cast<char>(flags), static_cast<char>(body.size())};
  SendRaw(frame.append(body));
}

// A short message fits into the socket's buffer; the other side may have ended it.
void EventClient::SendRaw(std::string_view bytes) {
  (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void EventClient::ReadSocket() {
  std::array<char, 65536> bytes;
  while (!ended_) {
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) {
      ended_ = true;
      break;
    }
    read_.append(bytes.data(), static_cast<size_t>(count));
  }
}

bool EventClient::TakeFrame() {
  if (!greeted_) {
    if (read_.size() < kGreetingBytes) return false;
    read_.erase(0, kGreetingBytes);
    greeted_ = true;
  }
  if (read_.size() < 2) return false;
  const auto flags = static_cast<uint8_t>(read_[0]);
  const size_t head = (flags & 2) != 0 ? 9 : 2;
  if (read_.size() < head) return false;
  uint64_t length = 0;
  for (size_t i = 1; i < head; ++i) length = length << 8 | static_cast<uint8_t>(read_[i]);
  if (read_.size() < head + length) return false;
  if ((flags & 4) == 0) parts_.push_back(read_.substr(head, length));
  read_.erase(0, head + length);
  if ((flags & 5) == 0) messages_.push_back(std::exchange(parts_, {}));
  return true;
}

std::optional<EventClient::Message> EventClient::Receive() {
  ReadSocket();
  while (TakeFrame()) {
  }
  if (messages_.empty()) return std::nullopt;
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

bool EventClient::ended() {
  ReadSocket();
  return ended_;
}

}  // namespace kvtier
