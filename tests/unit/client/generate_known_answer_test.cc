// SPDX-License-Identifier: Apache-2.0
// The committed model, word for word: another text means other weights or other arithmetic, and
// then the cache's blocks must have another identity too (kArithmetic in pooled_kv.cc).

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/digest.h"
#include "client/examples/generator.h"
#include "tests/unit/client/generate_fixture.h"

namespace kvtier::generate {
namespace {

const Model& CommittedModel() {
  static const Model* const kModel = [] {
    Result<Weights> weights = LoadWeights(KVT_WEIGHTS_PATH);
    KVT_CHECK(weights.has_value());
    return new Model(*std::move(weights), 2);
  }();
  return *kModel;
}

std::string Continue(std::string_view prompt, size_t count) {
  Generator generator(CommittedModel(), DenseLayout(CommittedModel().shape()), {});
  return generator.Run(TokensOf(prompt), count, [](Token) {}).text;
}

TEST(KnownAnswerTest, BibleIsContinuedWordForWord) {
  EXPECT_EQ(Continue("And it came to pass in those days, that ", 100),
            "the LORD said unto him, Thus saith the LORD, I will give thee a strange land for a "
            "sword, and a stra");
}

TEST(KnownAnswerTest, NovelIsContinuedWordForWord) {
  EXPECT_EQ(Continue("\"My dear Jane,\" said Elizabeth, ", 100),
            "\"that I am not at all afraid of her being able to see you again. I am sure you will "
            "not be afraid of");
}

TEST(KnownAnswerTest, LogitsAreTheSameToTheBit) {
  KvMemory memory(DenseLayout(CommittedModel().shape()), 8);
  std::vector<float> logits(256);
  CommittedModel().Compute(TokensOf("In the beginning God created the heaven and the earth."), 0,
                           memory.view(), logits);
  EXPECT_EQ(Sha256(std::as_bytes(std::span(logits))).Hex(),
            "042c66d14a24e907b439912a8d4c5cfe0f9f9f27330bf38f4f2c66d2d0615152");
}

}  // namespace
}  // namespace kvtier::generate
