// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/examples/generator.h"
#include "client/examples/kv_store.h"
#include "tests/unit/client/generate_fixture.h"

namespace kvtier::generate {
namespace {

constexpr size_t kPromptTokens = 300;
constexpr size_t kCount = 40;

const Model& TestModel() {
  static const Model* const kModel = new Model(RandomWeights(SmallShape()), 2);
  return *kModel;
}

KvLayout TestLayout() { return DenseLayout(SmallShape()); }

// A store whose first `cached` tokens are computed beforehand, and which is lost at the given call:
// its memory is then overwritten, as others may do, before the error is told.
class CacheDouble final : public HostKvStore {
 public:
  struct Plan {
    size_t cached = 0;
    int failing_append = -1;
    int failing_mark = -1;
    int failing_view = -1;
    bool failing_finish = false;
  };

  CacheDouble(std::span<const Token> prompt, const Plan& plan, uint64_t* marked)
      : plan_(plan), marked_(marked), memory_(TestLayout(), kBlocks) {
    std::vector<float> logits(TestModel().shape().vocabulary);
    if (plan.cached > 0) {
      TestModel().Compute(prompt.first(plan.cached), 0, memory_.view(), logits);
    }
  }

  [[nodiscard]] CachedTokens cached_tokens() const override { return {.host = plan_.cached}; }
  [[nodiscard]] Result<KvView> View() override {
    if (views_++ == plan_.failing_view) return tl::unexpected(Lose());
    return memory_.view();
  }
  [[nodiscard]] Status Append(Token) override {
    if (appends_++ == plan_.failing_append) return tl::unexpected(Lose());
    return {};
  }
  [[nodiscard]] Status MarkComputed(uint64_t tokens) override {
    if (marks_++ == plan_.failing_mark) return tl::unexpected(Lose());
    *marked_ = tokens;
    return {};
  }
  [[nodiscard]] Status Finish() override {
    if (plan_.failing_finish) return tl::unexpected(Lose());
    return {};
  }

 private:
  static constexpr size_t kBlocks = 32;

  Error Lose() {
    std::fill(memory_.floats().begin(), memory_.floats().end(), 0.25f);
    return Error{ErrorCode::kStaleHandle, "connection_lost", ""};
  }

  const Plan plan_;
  uint64_t* const marked_;
  KvMemory memory_;
  int views_ = 0;
  int appends_ = 0;
  int marks_ = 0;
};

struct Told {
  Generation generation;
  std::string tokens;  // as they were told one by one
  uint64_t marked = 0;
};

Told GenerateWith(const Generator::OpenStore& open_store) {
  Told told;
  Generator generator(TestModel(), TestLayout(), open_store);
  told.generation = generator.Run(RandomTokens(kPromptTokens, 3), kCount, [&](Token token) {
    told.tokens.push_back(static_cast<char>(token));
  });
  return told;
}

Told GenerateFrom(const CacheDouble::Plan& plan) {
  uint64_t marked = 0;
  Told told = GenerateWith([&](std::span<const Token> prompt) -> Result<std::unique_ptr<KvStore>> {
    return std::make_unique<CacheDouble>(prompt, plan, &marked);
  });
  told.marked = marked;
  return told;
}

const std::string& ExpectedText() {
  static const std::string* const kText = new std::string(GenerateWith({}).generation.text);
  return *kText;
}

TEST(GeneratorTest, WithoutACacheEverythingIsComputed) {
  const Told told = GenerateWith({});
  EXPECT_EQ(told.generation.text.size(), kCount);
  EXPECT_EQ(told.tokens, told.generation.text);
  EXPECT_EQ(told.generation.prompt_tokens, kPromptTokens);
  EXPECT_EQ(told.generation.prefilled_tokens, kPromptTokens);
  EXPECT_EQ(told.generation.cached.total(), 0u);
  EXPECT_FALSE(told.generation.cache_error);
}

TEST(GeneratorTest, CachedPrefixOfAnyLengthGivesTheSameText) {
  for (const size_t cached : {size_t{0}, size_t{1}, size_t{16}, size_t{160}, kPromptTokens - 1}) {
    const Told told = GenerateFrom({.cached = cached});
    EXPECT_EQ(told.generation.text, ExpectedText()) << cached;
    EXPECT_EQ(told.generation.cached.host, cached);
    EXPECT_EQ(told.generation.prefilled_tokens, kPromptTokens - cached);
    EXPECT_FALSE(told.generation.cache_error);
  }
}

TEST(GeneratorTest, AllButTheLastTokenAreMarkedComputed) {
  EXPECT_EQ(GenerateFrom({.cached = 16}).marked, kPromptTokens + kCount - 1);
}

TEST(GeneratorTest, RefusedOpenMeansPrivateMemory) {
  const Told told = GenerateWith([](std::span<const Token>) -> Result<std::unique_ptr<KvStore>> {
    return MakeError(ErrorCode::kResourceExhausted, "pool_full");
  });
  EXPECT_EQ(told.generation.text, ExpectedText());
  ASSERT_TRUE(told.generation.cache_error);
  EXPECT_EQ(told.generation.cache_error->reason, "pool_full");
}

void ExpectSameTextDespiteLoss(const CacheDouble::Plan& plan) {
  const Told told = GenerateFrom(plan);
  EXPECT_EQ(told.generation.text, ExpectedText());
  EXPECT_EQ(told.tokens, ExpectedText());
  EXPECT_EQ(told.generation.cached.total(), 0u);
  EXPECT_EQ(told.generation.prefilled_tokens, kPromptTokens);
  ASSERT_TRUE(told.generation.cache_error);
  EXPECT_EQ(told.generation.cache_error->reason, "connection_lost");
}

TEST(GeneratorTest, CacheLostWhileThePromptIsComputedCostsNoByteOfTheText) {
  ExpectSameTextDespiteLoss({.cached = 32, .failing_mark = 0});
  ExpectSameTextDespiteLoss({.cached = 0, .failing_mark = 1});
  ExpectSameTextDespiteLoss({.cached = 32, .failing_view = 0});
}

TEST(GeneratorTest, CacheLostWhileDecodingCostsNoByteOfTheText) {
  for (const int moment : {0, 1, 7, static_cast<int>(kCount) - 2}) {
    ExpectSameTextDespiteLoss({.cached = 160, .failing_append = moment});
    ExpectSameTextDespiteLoss({.cached = 160, .failing_mark = moment + 1});
    ExpectSameTextDespiteLoss({.cached = 160, .failing_view = moment + 1});
  }
}

TEST(GeneratorTest, CacheLostAfterTheTextWasCompleteIsOnlyTold) {
  const Told told = GenerateFrom({.cached = 160, .failing_finish = true});
  EXPECT_EQ(told.generation.text, ExpectedText());
  EXPECT_EQ(told.tokens, ExpectedText());
  EXPECT_EQ(told.generation.cached.host, 160u);
  EXPECT_TRUE(told.generation.cache_error);
}

}  // namespace
}  // namespace kvtier::generate
