// SPDX-License-Identifier: Apache-2.0
// A server that speaks as much of S3 as the cold tier's library does, over HTTP on this machine. It
// checks each signature by code of its own, and plays what a test wants of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kvtier {

struct S3ServerRequest {
  std::string method;
  std::string path;                            // as it was sent
  std::string query;                           // as it was sent
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;
};

struct S3ServerReply {
  int status = 200;
  std::string body = {};
  std::vector<std::string> headers = {};
  // The connection ends after so many bytes of the body, which is told to be longer.
  std::optional<size_t> cut_at = {};
};

// Any thread.
class S3Server {
 public:
  // Is asked before the objects are; nothing: they are to answer.
  using Script = std::function<std::optional<S3ServerReply>(const S3ServerRequest&)>;
  static constexpr const char* kBucket = "blocks";
  static constexpr const char* kRegion = "eu-test-1";

  S3Server();
  // Scripts that wait have to be let go before.
  ~S3Server();
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  // As S3Endpoint reads it.
  [[nodiscard]] std::string Endpoint() const;
  [[nodiscard]] int port() const { return port_; }
  void Play(Script script);
  // From now on these alone are good.
  void SetCredentials(std::string key_id, std::string secret, std::string token = {});
  // For a test of another service than S3.
  void TakeUnsigned() { takes_unsigned_ = true; }
  void SetClock(std::time_t ahead_s) { ahead_s_ = ahead_s; }
  // Answers nothing while it stands still.
  void StandStill(bool stands_still);
  void EndConnections();

  [[nodiscard]] std::vector<std::string> Names() const;
  [[nodiscard]] std::optional<std::string> Find(const std::string& name) const;
  void Set(const std::string& name, std::string bytes);
  [[nodiscard]] size_t requests() const { return requests_; }
  [[nodiscard]] size_t connections() const { return connections_; }

 private:
  struct Client {
    int socket = -1;
    std::thread thread;
  };
  void Accept();
  void Serve(int client);
  [[nodiscard]] S3ServerReply Answer(const S3ServerRequest& request);
  [[nodiscard]] std::optional<S3ServerReply> Check(const S3ServerRequest& request) const;
  [[nodiscard]] S3ServerReply AnswerWithObject(const S3ServerRequest& request,
                                               const std::string& name);
  [[nodiscard]] S3ServerReply List(const std::string& query) const;

  int listener_ = -1;
  int port_ = 0;
  std::atomic<size_t> requests_ = 0, connections_ = 0;
  std::atomic<std::time_t> ahead_s_ = 0;
  std::atomic<bool> takes_unsigned_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, std::string> objects_;
  std::string key_id_ = "AKIDTEST", secret_ = "secret/+of=tests", token_;
  Script script_;
  std::list<Client> clients_;
  bool is_ending_ = false;
  std::mutex standing_;  // held while it stands still
  std::thread thread_;   // last
};

[[nodiscard]] S3ServerReply S3ErrorReply(int status, const std::string& code);

}  // namespace kvtier
