// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "client/examples/generator.h"
#include "client/examples/pooled_kv.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/client/fake_daemon.h"
#include "tests/unit/client/generate_fixture.h"

namespace kvtier::generate {
namespace {

using client::FakeCache;
using client::FakeDaemon;

constexpr size_t kPromptTokens = 150;
constexpr size_t kCount = 40;

class PooledKvTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = std::make_unique<Model>(RandomWeights(SmallShape()), 2);
    daemon_ = std::make_unique<FakeDaemon>(socket_path());
  }

  [[nodiscard]] std::string socket_path() const { return (directory_.path() / "sock").string(); }

  // As one process does: connects, generates, disconnects. `during` sees the number of tokens so
  // far.
  [[nodiscard]] Generation Generate(std::span<const Token> prompt,
                                    const std::function<void(size_t)>& during = {}) {
    Result<SharedPool> pool = SharedPool::Attach(socket_path(), *model_);
    EXPECT_TRUE(pool) << pool.error().ToString();
    return Generate(prompt, during, [&](std::span<const Token> tokens) {
      return pool->Open(tokens, kCount, KVT_RETENTION_EXTENDED);
    });
  }
  [[nodiscard]] Generation GenerateAlone(std::span<const Token> prompt) {
    return Generate(prompt, {}, {});
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<FakeDaemon> daemon_;
  const std::vector<Token> prompt_ = RandomTokens(kPromptTokens, 1);

 private:
  [[nodiscard]] Generation Generate(std::span<const Token> prompt,
                                    const std::function<void(size_t)>& during,
                                    const Generator::OpenStore& open_store) {
    size_t count = 0;
    Generator generator(*model_, *LayoutOf(*model_), open_store);
    return generator.Run(prompt, kCount, [&](Token) {
      if (during) during(++count);
    });
  }
};

TEST_F(PooledKvTest, LayoutIsBlockFirstWithoutGaps) {
  const Result<KvLayout> layout = LayoutOf(*model_);
  ASSERT_TRUE(layout);
  const KvLayout dense = DenseLayout(SmallShape());
  EXPECT_EQ(layout->block_stride, dense.block_stride);
  EXPECT_EQ(layout->layer_stride, dense.layer_stride);
  EXPECT_EQ(layout->value_offset, dense.value_offset);
  EXPECT_EQ(layout->key_token_stride, dense.key_token_stride);
  EXPECT_EQ(layout->value_head_stride, dense.value_head_stride);
}

TEST_F(PooledKvTest, SecondProcessSkipsWhatTheFirstComputedAndSaysTheSame) {
  const Generation first = Generate(prompt_);
  const Generation second = Generate(prompt_);
  EXPECT_EQ(first.cached.total(), 0u);
  EXPECT_EQ(second.cached.pool, kPromptTokens / kBlockTokens * kBlockTokens);
  EXPECT_EQ(second.prefilled_tokens, kPromptTokens - second.cached.pool);
  EXPECT_EQ(first.text, GenerateAlone(prompt_).text);
  EXPECT_EQ(second.text, first.text);
  EXPECT_FALSE(second.cache_error);
}

TEST_F(PooledKvTest, ContinuationUsesTheCommittedTail) {
  const Generation first = Generate(prompt_);
  std::vector<Token> longer = prompt_;
  for (const char c : first.text) longer.push_back(static_cast<unsigned char>(c));
  const Generation second = Generate(longer);
  // The last token of the first text was never computed.
  EXPECT_EQ(second.cached.total(), longer.size() - 1);
  EXPECT_EQ(second.text, GenerateAlone(longer).text);
}

TEST_F(PooledKvTest, PromptsThatPartInABlockShareTheBlocksBefore) {
  (void)Generate(prompt_);
  std::vector<Token> other = prompt_;
  other[100] ^= 1;
  const Generation generation = Generate(other);
  EXPECT_EQ(generation.cached.total(), 96u);
  EXPECT_EQ(generation.text, GenerateAlone(other).text);
}

TEST_F(PooledKvTest, ConnectionLostAndBlocksOverwrittenOnTheWayDoNotChangeTheText) {
  const std::string expected = Generate(prompt_).text;
  for (const size_t moment : {size_t{1}, size_t{2}, size_t{17}, kCount - 1}) {
    const Generation generation = Generate(prompt_, [&](size_t count) {
      if (count != moment) return;
      daemon_->DropClient();
      daemon_->WithCache([](FakeCache* cache) {
        for (uint32_t block = 0; block < cache->blocks(); ++block) {
          const std::span<std::byte> bytes = cache->Bytes(block);
          std::fill(bytes.begin(), bytes.end(), std::byte{0x3C});
        }
      });
    });
    EXPECT_EQ(generation.text, expected) << moment;
    EXPECT_TRUE(generation.cache_error) << moment;
    daemon_ = nullptr;  // its blocks are spoilt
    daemon_ = std::make_unique<FakeDaemon>(socket_path());
  }
}

TEST_F(PooledKvTest, PoolThatIsTooSmallIsDoneWithout) {
  daemon_ = nullptr;
  daemon_ = std::make_unique<FakeDaemon>(socket_path(), client::FakeDaemonOptions{.blocks = 4});
  const Generation generation = Generate(prompt_);
  ASSERT_TRUE(generation.cache_error);
  EXPECT_EQ(generation.cache_error->code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(generation.text, GenerateAlone(prompt_).text);
}

TEST_F(PooledKvTest, OtherWeightsAreAnotherModel) {
  const auto revisions = std::make_shared<std::vector<std::string>>();
  daemon_->Intercept([revisions](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kRegisterModel)) {
      const auto request = wire::Decode<wire::RegisterModel>(frame.payload);
      if (request) revisions->push_back(request->record.revision);
    }
    return std::nullopt;
  });
  for (const uint8_t byte : {1, 2}) {
    Weights weights = RandomWeights(SmallShape());
    weights.digest.bytes.fill(byte);
    EXPECT_TRUE(SharedPool::Attach(socket_path(), Model(std::move(weights), 1)));
  }
  daemon_->WithCache([&](FakeCache*) {
    ASSERT_EQ(revisions->size(), 2u);
    EXPECT_NE(revisions->front(), revisions->back());
  });
}

TEST_F(PooledKvTest, WithoutADaemonAttachingIsUnavailable) {
  daemon_ = nullptr;
  const Result<SharedPool> pool = SharedPool::Attach(socket_path(), *model_);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvtier::generate
