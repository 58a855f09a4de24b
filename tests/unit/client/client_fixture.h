// SPDX-License-Identifier: Apache-2.0
// A fake daemon and a client connected to it over the public interface.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvtier/kvtier.hpp"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/client/fake_daemon.h"

namespace kvtier::client {

inline constexpr uint32_t kBlockTokens = 4;

// Whether `lasts`, which returns how long something took, finds it shorter than `limit` once in a
// few tries: a busy machine adds to the measured times, and takes nothing away.
[[nodiscard]] inline bool CanBeWithin(std::chrono::milliseconds limit,
                                      const std::function<std::chrono::nanoseconds()>& lasts) {
  constexpr int kTries = 8;
  for (int i = 0; i < kTries; ++i) {
    if (lasts() < limit) return true;
  }
  return false;
}

class ClientFixture : public ::testing::Test {
 protected:
  void SetUp() override { StartDaemon({}); }
  void TearDown() override {
    pool_.reset();
    connection_.reset();
    // The daemon's thread ends before members of a test's own fixture go, which interceptors use.
    daemon_.reset();
  }

  void StartDaemon(FakeDaemonOptions options) {
    daemon_.reset();
    daemon_ = std::make_unique<FakeDaemon>(socket_path(), options);
  }

  // Never pauses between tries to reconnect, and waits for what a busy machine does late.
  [[nodiscard]] static kvt_connect_options Options() {
    kvt_connect_options options;
    kvt_connect_options_init(&options);
    options.reconnect_min_ms = 0;
    options.reconnect_max_ms = 0;
    options.connect_timeout_ms = 60'000;
    options.request_timeout_ms = 60'000;
    options.resume_wait_ms = 60'000;
    return options;
  }
  // For a request that is never answered. The others of the connection have the same time, which is
  // why it is long enough for them on a busy machine.
  [[nodiscard]] static kvt_connect_options ImpatientOptions() {
    kvt_connect_options options = Options();
    options.request_timeout_ms = 2000;
    return options;
  }

  [[nodiscard]] static kvt_model_record Record() {
    kvt_model_record record;
    kvt_model_record_init(&record);
    record.name = "tiny";
    record.groups[0].layers = 1;
    record.groups[0].kv_heads = 1;
    record.groups[0].k_head_dim = 4;
    record.groups[0].v_head_dim = 4;
    record.groups[0].dtype = KVT_DTYPE_FLOAT32;
    record.groups[0].block_tokens = kBlockTokens;
    return record;
  }

  void Attach(const kvt_connect_options& options = Options()) {
    pool_.reset();
    connection_.reset();
    auto connection = kvt::Connection::Connect(socket_path(), &options);
    ASSERT_TRUE(connection) << connection.error().ToString();
    connection_.emplace(*std::move(connection));
    const auto model = connection_->RegisterModel(Record());
    ASSERT_TRUE(model) << model.error().ToString();
    auto pool = connection_->Attach(model->model, 0, 0);
    ASSERT_TRUE(pool) << pool.error().ToString();
    pool_.emplace(*std::move(pool));
  }

  [[nodiscard]] std::string socket_path() const { return (directory_.path() / "sock").string(); }

  // A hash that is all one byte.
  [[nodiscard]] static kvt_hash Hash(uint8_t byte) {
    kvt_hash hash;
    std::fill(std::begin(hash.bytes), std::end(hash.bytes), byte);
    return hash;
  }
  [[nodiscard]] static BlockHash WireHash(uint8_t byte) {
    BlockHash hash;
    hash.bytes.fill(byte);
    return hash;
  }
  [[nodiscard]] static std::vector<kvt_hash> Hashes(uint8_t first, uint8_t count) {
    std::vector<kvt_hash> hashes;
    for (uint8_t i = 0; i < count; ++i) hashes.push_back(Hash(static_cast<uint8_t>(first + i)));
    return hashes;
  }
  [[nodiscard]] static std::vector<uint32_t> Tokens(uint32_t count, uint32_t first = 1000) {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < count; ++i) tokens.push_back(first + i);
    return tokens;
  }

  // Commits one new block per hash, each filled with its hash's byte, and releases them.
  void Fill(const std::vector<kvt_hash>& hashes) {
    auto acquired = pool_->Acquire({}, {}, static_cast<uint32_t>(hashes.size()));
    ASSERT_TRUE(acquired) << acquired.error().ToString();
    std::vector<kvt_commit_entry> entries;
    for (size_t i = 0; i < hashes.size(); ++i) {
      const auto bytes = pool_->Bytes(acquired->new_blocks[i]);
      ASSERT_TRUE(bytes);
      std::fill(bytes->begin(), bytes->end(), std::byte{hashes[i].bytes[0]});
      kvt_commit_entry entry{};
      entry.block = acquired->new_blocks[i];
      entry.hash = hashes[i];
      entry.depth = static_cast<uint32_t>(i);
      entry.tokens = kBlockTokens;
      entry.retention = KVT_RETENTION_EXTENDED;
      entries.push_back(entry);
    }
    ASSERT_TRUE(pool_->Commit(entries));
  }

  // References held after everything sent so far has been served.
  [[nodiscard]] uint32_t References() {
    EXPECT_TRUE(connection_->Ping());
    return daemon_->references();
  }

  TestDirectory directory_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::optional<kvt::Connection> connection_;
  std::optional<kvt::Pool> pool_;
};

}  // namespace kvtier::client
