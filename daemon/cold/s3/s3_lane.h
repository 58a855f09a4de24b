// SPDX-License-Identifier: Apache-2.0
// A thread with connections of its own, each of which has one request under way.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "daemon/cold/s3/curl_loop.h"
#include "daemon/cold/s3/s3_credentials.h"
#include "daemon/cold/s3/s3_signature.h"
#include "daemon/cold/s3/s3_transfer.h"
#include "daemon/cold/tenant_line.h"
#include "daemon/config/s3_endpoint.h"

namespace kvtier {

// Any thread may call. A call that the server keeps waiting holds one connection until its deadline
// and no thread.
class S3Lane {
 public:
  // Both are borrowed; `most` requests are under way at once.
  S3Lane(const S3Endpoint* endpoint, S3CredentialSource* credentials, size_t most);
  // Ends all calls as KVT_COLD_UNAVAILABLE.
  ~S3Lane();
  S3Lane(const S3Lane&) = delete;
  S3Lane& operator=(const S3Lane&) = delete;

  void Add(S3Call call);
  // Calls that come later end at once; returns before the thread has ended.
  void Interrupt();

 private:
  using Time = std::chrono::steady_clock::time_point;

  void Work();
  // False at the end.
  [[nodiscard]] bool TakeCalls();
  void StartCalls();
  void Start(S3Call call);
  void EndOne(const CurlLoop::Ended& ended);
  // Whether the call is tried again, and then it is in the queue again.
  [[nodiscard]] bool TryAgain(S3Call* call, S3Next next);
  void FailAll();
  [[nodiscard]] std::chrono::milliseconds TimeToWait() const;

  const S3Endpoint& endpoint_;
  S3CredentialSource& source_;
  const size_t most_;
  CurlLoop loop_;
  // The thread alone uses these.
  S3Signer signer_;
  bool knows_conditions_ = true;  // the server, as far as is known
  TenantLine<S3Call> queue_;
  std::map<void*, std::unique_ptr<S3Transfer>> running_;  // by handle
  std::vector<std::unique_ptr<S3Transfer>> idle_;
  // A store that asked for less is asked for nothing until then.
  Time held_until_;
  std::chrono::milliseconds hold_{0};
  std::mutex mutex_;  // guards what follows
  std::vector<S3Call> added_;
  bool stopping_ = false;
  std::thread thread_;  // last
};

}  // namespace kvtier
