// SPDX-License-Identifier: Apache-2.0
// The library's store for S3 and a server for it, for tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cold/s3/s3_store.h"
#include "tests/fakes/s3_server.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {

inline const auto kNoAnswer = testing::AnyOf(KVT_COLD_LATE, KVT_COLD_UNAVAILABLE);
inline constexpr int64_t kTimeoutMs = 60'000;
inline constexpr int64_t kShortMs = 200;
inline const std::string kName = "kvtier/1/alice%2F~x/model-4096/abcdef";

class S3StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    Credentials("AKIDTEST", "secret/+of=tests");
    Open(server_.Endpoint());
  }
  // Before the server, whose scripts may wait for the store's end.
  void TearDown() override { store_.reset(); }

  void Open(const std::string& endpoint) {
    auto parsed = S3Endpoint::Parse(endpoint);
    ASSERT_TRUE(parsed);
    store_ = std::make_unique<S3Store>(*std::move(parsed), file_, &S3StoreTest::OnDone, this);
  }
  // Writes them to the file, as a program does that renews them.
  void Credentials(const std::string& key_id, const std::string& secret,
                   const std::string& token = {}) {
    std::ofstream(file_ + ".new") << "[other]\naws_access_key_id = no\n[default]\n"
                                  << "aws_access_key_id = " << key_id
                                  << "\naws_secret_access_key=" << secret << '\n'
                                  << (token.empty() ? "" : "aws_session_token = " + token + "\n");
    std::filesystem::rename(file_ + ".new", file_);
  }
  using Waiting = std::future<S3Outcome>;
  // A call's number, and its end to come.
  std::pair<uint64_t, Waiting> Begin() {
    const std::lock_guard lock(mutex_);
    const uint64_t number = ++last_;
    return {number, ends_[number].get_future()};
  }
  Waiting Get(const std::string& name, std::string* into, int64_t timeout_ms = kTimeoutMs) {
    auto [number, end] = Begin();
    store_->Get(number, name, into->data(), into->size() - 1, timeout_ms);
    return std::move(end);
  }
  Waiting Put(const std::string& name, const std::string& bytes, int64_t timeout_ms = kTimeoutMs,
              bool replaces = false) {
    auto [number, end] = Begin();
    const std::string& kept = kept_.emplace_back(bytes);
    store_->Put(number, name, kept.data(), kept.size(), /*ttl_s=*/60, replaces, timeout_ms);
    return std::move(end);
  }
  Waiting Exists(std::vector<std::string> names, bool each, int64_t timeout_ms = kTimeoutMs) {
    auto [number, end] = Begin();
    store_->Exists(number, std::move(names), each, timeout_ms);
    return std::move(end);
  }
  Waiting Remove(const std::vector<std::string>& names) {
    auto [number, end] = Begin();
    store_->Remove(number, names, kTimeoutMs);
    return std::move(end);
  }
  Waiting RemoveSome(const std::string& prefix, uint64_t cursor = 0) {
    auto [number, end] = Begin();
    store_->RemoveSome(number, prefix, cursor, kTimeoutMs);
    return std::move(end);
  }
  static uint64_t CursorOf(const S3Outcome& outcome) {
    uint64_t cursor = UINT64_MAX;
    if (outcome.text.size() == sizeof(cursor)) {
      std::memcpy(&cursor, outcome.text.data(), sizeof(cursor));
    }
    return cursor;
  }
  static std::vector<std::string> Numbered(size_t count) {
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) names.push_back("kvtier/1/a/m/" + std::to_string(1000 + i));
    return names;
  }
  // Bytes that show where a piece is missing.
  static std::string Counted(size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
    return text;
  }

 private:
  static void OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes,
                     int /*more*/) {
    auto* const test = static_cast<S3StoreTest*>(context);
    S3Outcome outcome{.status = status, .text = {}, .bytes = bytes};
    if (data != nullptr) outcome.text.assign(static_cast<const char*>(data), bytes);
    const std::lock_guard lock(test->mutex_);
    test->ends_.at(call).set_value(std::move(outcome));
  }

  TestDirectory directory_;
  std::list<std::string> kept_;  // as long as calls read them
  std::mutex mutex_;
  std::map<uint64_t, std::promise<S3Outcome>> ends_;
  uint64_t last_ = 0;

 protected:
  const std::string file_ = directory_.path().string() + "/credentials";
  S3Server server_;
  std::unique_ptr<S3Store> store_;
};

}  // namespace kvtier
