// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "client/examples/model.h"
#include "tests/unit/client/generate_fixture.h"

namespace kvtier::generate {
namespace {

constexpr size_t kTokens = 200;
constexpr size_t kBlocks = 13;

struct Outcome {
  std::vector<uint32_t> logits;  // bits
  std::vector<uint32_t> keys_and_values;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// The bytes of all tokens, in the sequence's order wherever the blocks are.
std::vector<uint32_t> KvBits(const ModelShape& shape, const KvView& kv) {
  std::vector<uint32_t> bits;
  for (size_t layer = 0; layer < shape.layers; ++layer) {
    for (size_t position = 0; position < kTokens; ++position) {
      for (size_t head = 0; head < shape.kv_heads; ++head) {
        for (const float* vector :
             {kv.Key(layer, position, head), kv.Value(layer, position, head)}) {
          const std::vector<uint32_t> more = BitsOf(std::span(vector, kHeadDim));
          bits.insert(bits.end(), more.begin(), more.end());
        }
      }
    }
  }
  return bits;
}

// Computes the same tokens in pieces of the given sizes, the last of which is repeated.
Outcome ComputeIn(const std::vector<size_t>& pieces, KvMemory memory, size_t threads = 1) {
  const Model model(RandomWeights(SmallShape()), threads);
  const std::vector<Token> tokens = RandomTokens(kTokens, 3);
  const KvView kv = memory.view();
  std::vector<float> logits(model.shape().vocabulary);
  size_t piece = 0;
  for (size_t done = 0; done < kTokens;) {
    const size_t count = std::min(pieces[std::min(piece++, pieces.size() - 1)], kTokens - done);
    model.Compute(std::span(tokens).subspan(done, count), done, kv, logits);
    done += count;
  }
  return {BitsOf(logits), KvBits(model.shape(), kv)};
}

KvMemory InOrder() { return KvMemory(DenseLayout(SmallShape()), kBlocks); }

TEST(ModelTest, AnyWayToSplitThePromptGivesTheSameBits) {
  const Outcome whole = ComputeIn({kTokens}, InOrder());
  EXPECT_EQ(ComputeIn({1}, InOrder()), whole) << "one by one, as in decoding";
  EXPECT_EQ(ComputeIn({1, kTokens}, InOrder()), whole) << "one, then the rest";
  EXPECT_EQ(ComputeIn({kTokens - 1, 1}, InOrder()), whole) << "all but one, then one";
  EXPECT_EQ(ComputeIn({kBlockTokens}, InOrder()), whole) << "block by block";
  EXPECT_EQ(ComputeIn({kBlockTokens + 1}, InOrder()), whole) << "across blocks";
}

TEST(ModelTest, RandomSplitsGiveTheSameBits) {
  const Outcome whole = ComputeIn({kTokens}, InOrder());
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    std::vector<size_t> pieces;
    for (int i = 0; i < 20; ++i) pieces.push_back(1 + random() % 70);
    EXPECT_EQ(ComputeIn(pieces, InOrder()), whole) << "round " << round;
  }
}

TEST(ModelTest, AnyNumberOfThreadsGivesTheSameBits) {
  const Outcome one = ComputeIn({kTokens}, InOrder(), 1);
  for (const size_t threads : {2, 3, 7}) {
    EXPECT_EQ(ComputeIn({kTokens}, InOrder(), threads), one) << threads;
    EXPECT_EQ(ComputeIn({5, 64}, InOrder(), threads), one) << threads;
  }
}

TEST(ModelTest, PermutedBlockTableGivesTheSameBits) {
  const Outcome in_order = ComputeIn({kTokens}, InOrder());
  std::vector<int32_t> table(40);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(5));
  table.resize(kBlocks);
  EXPECT_EQ(ComputeIn({kTokens}, KvMemory(DenseLayout(SmallShape()), 40, table)), in_order);
}

TEST(ModelTest, EarlierTokenChangesWhatFollows) {
  const Model model(RandomWeights(SmallShape()), 1);
  std::vector<Token> tokens = RandomTokens(kTokens, 3);
  std::vector<float> logits(256);
  std::vector<float> other(256);
  KvMemory memory = InOrder();
  model.Compute(tokens, 0, memory.view(), logits);
  tokens[0] ^= 1;
  KvMemory fresh = InOrder();
  model.Compute(tokens, 0, fresh.view(), other);
  EXPECT_NE(BitsOf(logits), BitsOf(other));
}

TEST(ModelTest, WritesOnlyTheSlotsOfItsTokens) {
  const Model model(RandomWeights(SmallShape()), 2);
  KvMemory memory = InOrder();
  std::vector<float> logits(256);
  model.Compute(RandomTokens(20, 1), 0, memory.view(), logits);
  const std::vector<uint32_t> before = BitsOf(memory.floats());
  model.Compute(RandomTokens(20, 2), 20, memory.view(), logits);
  const KvView kv = memory.view();
  for (size_t position = 0; position < kBlocks * kBlockTokens; ++position) {
    const size_t at = static_cast<size_t>(kv.Key(0, position, 0) - memory.floats().data());
    const bool changed = std::bit_cast<uint32_t>(memory.floats()[at]) != before[at];
    EXPECT_EQ(changed, position >= 20 && position < 40) << position;
  }
}

}  // namespace
}  // namespace kvtier::generate
