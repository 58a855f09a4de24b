// SPDX-License-Identifier: Apache-2.0
// One request at a time, on a handle of libcurl that is used again and again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/cold/s3/s3_answer.h"
#include "daemon/cold/s3/s3_signature.h"
#include "daemon/config/s3_endpoint.h"

namespace kvtier {

enum class S3Verb : uint8_t { kHead, kGet, kPut, kDelete };

struct S3Call {
  S3Verb verb = S3Verb::kHead;
  std::string path;   // S3Endpoint::PathOf
  std::string query;  // encoded, its parameters in the order of their names
  // Memory of the caller's, until the call has ended.
  std::span<const std::byte> payload;
  std::span<std::byte> into;
  std::chrono::steady_clock::time_point deadline;
  std::string tenant;  // whose turn it takes; the same for calls that are to keep their order
  // Begins when all calls before it have ended, and those behind it when it has.
  bool is_barrier = false;
  // Called once, by the thread of the lane.
  std::function<void(S3Outcome)> ended;
  // A put leaves an object of its name as it is, which is a success.
  bool if_absent = false;
  // For the lane: tries so far, whether one of them may yet be stored, whether it was told that a
  // get is to bring the reason, and whether the server refused the put's condition.
  int tries = 0;
  bool may_come = false;
  bool asks_why = false;
  bool was_refused = false;
  S3Credentials credentials;  // of the last try
};

// One thread.
class S3Transfer {
 public:
  explicit S3Transfer(const S3Endpoint* endpoint);
  ~S3Transfer();
  S3Transfer(const S3Transfer&) = delete;
  S3Transfer& operator=(const S3Transfer&) = delete;

  // The easy handle, which is to be run.
  [[nodiscard]] void* handle() const { return handle_; }
  [[nodiscard]] S3Call& call() { return call_; }
  // Prepares the request; `headers` are lines.
  void Begin(S3Call call, const std::vector<std::string>& headers);
  // The verdict when the request has ended with that CURLcode.
  [[nodiscard]] S3Verdict End(int code);
  [[nodiscard]] static std::string_view MethodOf(const S3Call& call);

 private:
  static size_t OnBytes(char* data, size_t one, size_t bytes, void* self);
  static size_t OnSend(char* into, size_t one, size_t bytes, void* self);
  static int OnSeek(void* self, int64_t offset, int origin);
  void SetVerb();
  [[nodiscard]] bool WasSent() const {
    return call_.verb == S3Verb::kPut && sent_ == call_.payload.size();
  }
  [[nodiscard]] size_t Receive(std::span<const std::byte> part);
  [[nodiscard]] std::string HeaderOf(const char* name) const;

  const S3Endpoint& endpoint_;
  void* const handle_;
  void* headers_ = nullptr;  // curl_slist
  S3Call call_;
  S3Reply reply_;
  size_t sent_ = 0;
  bool is_too_long_ = false;
};

}  // namespace kvtier
