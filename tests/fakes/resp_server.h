// SPDX-License-Identifier: Apache-2.0
// A server on a socket that answers to RESP as the test says.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace kvtier {

// `answer` is asked once for each part that is received, by one connection's thread at a time, and
// says what to send; with nothing the connection ends. Clients end before the server does.
class RespServer {
 public:
  // An empty one ends the connection.
  using Answer = std::function<std::string(std::string_view received)>;
  // The answer comes with the next commands.
  static constexpr const char* kLater = "later";

  RespServer(const std::string& path, Answer answer)
      : answer_(std::move(answer)), listener_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    Listen(&address, sizeof(address));
  }
  // On a free port of 127.0.0.1 alone.
  explicit RespServer(Answer answer)
      : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Listen(&address, sizeof(address));
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = ntohs(address.sin_port);
  }
  ~RespServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (std::thread& client : clients_) client.join();
    ::close(listener_);
  }
  RespServer(const RespServer&) = delete;
  RespServer& operator=(const RespServer&) = delete;

  [[nodiscard]] int port() const { return port_; }
  // Sends answers byte by byte, each so long after the last.
  void Drip(std::chrono::milliseconds pace) { pace_ = pace; }

 private:
  void Listen(const void* address, socklen_t bytes) {
    EXPECT_EQ(::bind(listener_, static_cast<const sockaddr*>(address), bytes), 0);
    EXPECT_EQ(::listen(listener_, 4), 0);
    thread_ = std::thread([this] { Accept(); });
  }
  void Accept() {
    for (int client = AcceptOne(); client >= 0; client = AcceptOne()) {
      clients_.emplace_back([this, client] { Serve(client); });
    }
  }
  void Serve(int client) {
    std::array<char, 65536> part;
    for (ssize_t got = Read(client, &part); got > 0; got = Read(client, &part)) {
      const std::string text = AnswerTo({part.data(), static_cast<size_t>(got)});
      if (text == kLater) continue;
      if (text.empty() || !Write(client, text)) break;
    }
    ::close(client);
  }
  [[nodiscard]] std::string AnswerTo(std::string_view received) {
    const std::lock_guard lock(mutex_);
    return answer_(received);
  }
  [[nodiscard]] int AcceptOne() const { return ::accept(listener_, nullptr, nullptr); }
  static ssize_t Read(int client, std::array<char, 65536>* part) {
    return ::recv(client, part->data(), part->size(), 0);
  }
  [[nodiscard]] bool Write(int client, std::string_view text) const {
    while (!text.empty()) {
      const std::chrono::milliseconds pace = pace_;
      const size_t bytes = pace.count() == 0 ? text.size() : 1;
      pollfd ended{.fd = client, .events = POLLRDHUP, .revents = 0};
      (void)::poll(&ended, 1, static_cast<int>(pace.count()));
      const ssize_t sent = ::send(client, text.data(), bytes, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  const Answer answer_;
  const int listener_;
  int port_ = 0;
  std::atomic<std::chrono::milliseconds> pace_ = std::chrono::milliseconds(0);
  std::mutex mutex_;  // held while the test answers
  std::vector<std::thread> clients_;
  std::thread thread_;
};

}  // namespace kvtier
