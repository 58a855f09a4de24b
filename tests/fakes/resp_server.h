// SPDX-License-Identifier: Apache-2.0
// A server on a socket that answers to RESP as the test says.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
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
  using Answer = std::function<std::string(std::string_view received)>;

  RespServer(const std::string& path, Answer answer)
      : answer_(std::move(answer)), listener_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 4), 0);
    thread_ = std::thread([this] { Accept(); });
  }
  ~RespServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (std::thread& client : clients_) client.join();
    ::close(listener_);
  }
  RespServer(const RespServer&) = delete;
  RespServer& operator=(const RespServer&) = delete;

 private:
  void Accept() {
    for (int client = AcceptOne(); client >= 0; client = AcceptOne()) {
      clients_.emplace_back([this, client] { Serve(client); });
    }
  }
  void Serve(int client) {
    std::array<char, 65536> part;
    for (ssize_t got = Read(client, &part); got > 0; got = Read(client, &part)) {
      const std::string text = AnswerTo({part.data(), static_cast<size_t>(got)});
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
  static bool Write(int client, std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(client, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  const Answer answer_;
  const int listener_;
  std::mutex mutex_;  // held while the test answers
  std::vector<std::thread> clients_;
  std::thread thread_;
};

}  // namespace kvtier
