// SPDX-License-Identifier: Apache-2.0
// A bucket as cold_backend.h has a store: calls that return at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/cold/cold_backend.h"
#include "daemon/cold/s3/s3_credentials.h"
#include "daemon/cold/s3/s3_endpoint.h"
#include "daemon/cold/s3/s3_lane.h"
#include "daemon/cold/s3/s3_places.h"

namespace kvtier {

// For one thread. Questions, reads and writes have connections and a thread each, so that a short
// answer does not stand behind a long one. Objects do not end by themselves: the bucket's rules are
// to end them, and their headers say when they count no more.
class S3Store {
 public:
  S3Store(S3Endpoint endpoint, std::string credentials_file, kvt_cold_done done, void* context);

  void Exists(uint64_t number, std::vector<std::string> names, bool each, int64_t timeout_ms);
  void Get(uint64_t number, const std::string& name, void* into, uint64_t bytes,
           int64_t timeout_ms);
  void Put(uint64_t number, const std::string& name, const void* data, size_t bytes,
           int64_t /*ttl_s*/, bool replaces, int64_t timeout_ms);
  void Remove(uint64_t number, const std::vector<std::string>& names, int64_t timeout_ms);
  void RemoveSome(uint64_t number, std::string prefix, uint64_t cursor, int64_t timeout_ms);
  // Calls begin at once.
  void Send() {}
  // As `close` of the table: all lanes at once, before each is waited for.
  [[nodiscard]] bool Stop();

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Asked;
  [[nodiscard]] S3Call CallFor(S3Verb verb, const std::string& name, Time deadline) const;
  [[nodiscard]] std::function<void(S3Outcome)> TellerOf(uint64_t number) const;
  void AskNext(const std::shared_ptr<Asked>& asked);
  // Deletes them all and tells a success, or an error.
  void RemoveAll(const std::vector<std::string>& names, int64_t timeout_ms,
                 const std::function<void(S3Outcome)>& tell);

  const S3Endpoint endpoint_;
  S3CredentialSource credentials_;
  const kvt_cold_done done_;
  void* const context_;
  S3Places places_;
  S3Lane questions_;
  S3Lane reads_;
  S3Lane writes_;
};

}  // namespace kvtier
