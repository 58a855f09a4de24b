// SPDX-License-Identifier: Apache-2.0
// A bucket as cold_backend.h has a store: calls that return at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cold/cold_backend.h"
#include "daemon/cold/prefix_search.h"
#include "daemon/cold/s3/s3_answer.h"
#include "daemon/cold/s3/s3_credentials.h"
#include "daemon/cold/s3/s3_lane.h"
#include "daemon/cold/unsure_puts.h"
#include "daemon/config/s3_endpoint.h"

namespace kvtier {

// Which of many objects are there: a request for each that a search asks for. Any thread. A prefix
// begins with a few questions, and each object that is there allows two more: a store that has
// nothing of it is hardly asked.
class S3Question {
 public:
  S3Question(size_t count, bool each);

  // The positions to be asked for next, each once.
  [[nodiscard]] std::vector<size_t> TakeNext();
  // The first object of a prefix that was not answered for ends it, if those before it are there.
  void Answer(size_t position, const S3Outcome& outcome);
  // True once, as soon as the answer is known; then it is in `outcome`.
  [[nodiscard]] bool TakeEnd(S3Outcome* outcome);

 private:
  const bool each_;
  std::mutex mutex_;  // guards what follows
  PrefixSearch search_;
  size_t allowed_ = 0;  // as many more may be asked for
  S3Outcome failure_;   // that ends all of it
  bool is_told_ = false;
};

// Where walks over a bucket's names go on: a cursor is a number, and the place behind it is a name.
// Any thread.
class S3Places {
 public:
  // The cursor of a walk that goes on behind `name`, never 0. The oldest beyond some hundred are
  // forgotten: walks that were given up leave theirs.
  [[nodiscard]] uint64_t Add(std::string name) {
    const std::lock_guard lock(mutex_);
    names_[++last_] = std::move(name);
    if (names_.size() > kMost) names_.erase(names_.begin());
    return last_;
  }
  // The name is empty for 0, and for a cursor that was forgotten: the walk begins anew then, and
  // names that it has deleted are not listed again.
  [[nodiscard]] std::string Find(uint64_t cursor) const {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find(cursor);
    return found == names_.end() ? std::string() : found->second;
  }

 private:
  static constexpr size_t kMost = 256;

  mutable std::mutex mutex_;  // guards what follows
  std::map<uint64_t, std::string> names_;
  uint64_t last_ = 0;
};

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
  UnsurePuts unsure_;
  S3Lane questions_;
  S3Lane reads_;
  S3Lane writes_;
};

}  // namespace kvtier
