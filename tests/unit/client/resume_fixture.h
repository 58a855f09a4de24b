// SPDX-License-Identifier: Apache-2.0
// A client of a daemon whose blocks outlive it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {

class ResumeTest : public ClientFixture {
 protected:
  void SetUp() override { Begin({.keeps = true}); }
  void Begin(FakeDaemonOptions options) {
    pool_.reset();
    connection_.reset();
    options.keeps = true;
    StartDaemon(options);
    Attach();
    daemon_->Intercept([this](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
      if (frame.type == static_cast<uint16_t>(swallowed_)) return FakeDaemon::Bytes{};
      if (frame.type == static_cast<uint16_t>(refused_)) {
        return FrameOf(wire::ErrorReply{{ErrorCode::kResourceExhausted, "refused", "fake"}},
                       frame.request_id);
      }
      if (frame.type == static_cast<uint16_t>(wire::MessageType::kResume)) {
        resumes_.push_back(*wire::Decode<wire::Resume>(frame.payload));
      }
      return std::nullopt;
    });
  }
  // Requests of this type are neither served nor answered.
  void Swallow(wire::MessageType type) {
    daemon_->WithCache([&](FakeCache*) { swallowed_ = type; });
  }
  // Requests of this type are answered with an error.
  void Refuse(wire::MessageType type) {
    daemon_->WithCache([&](FakeCache*) { refused_ = type; });
  }
  void Lose(uint32_t block) {
    daemon_->WithCache([&](FakeCache* cache) { cache->Lose(block); });
  }
  [[nodiscard]] std::vector<kvt_block> AcquireNew(uint32_t count) {
    return AcquireNewIn(*pool_, count);
  }
  [[nodiscard]] static std::vector<kvt_block> AcquireNewIn(kvt::Pool& pool, uint32_t count) {
    auto acquired = pool.Acquire({}, {}, count);
    EXPECT_TRUE(acquired) << acquired.error().ToString();
    return acquired->new_blocks.Take();
  }
  // The blocks of all claims.
  [[nodiscard]] std::vector<uint32_t> Claimed() const {
    std::vector<uint32_t> blocks;
    for (const wire::Resume& resume : resumes_) {
      for (const ResumeClaim& claim : resume.claims) blocks.push_back(claim.block.index.value);
    }
    return blocks;
  }
  void ExpectStale(kvt::Sequence& sequence) {
    const auto checked = sequence.Check();
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, KVT_STALE_HANDLE);
  }

  wire::MessageType swallowed_{};
  wire::MessageType refused_{};
  std::vector<wire::Resume> resumes_;
};

}  // namespace kvtier::client
