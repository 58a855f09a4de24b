#include "tiers/endless_cache.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/fakes/derived_bytes.h"

namespace kvtier {
namespace {

constexpr SpaceId kSpace{0};

BlockHash HashOf(uint64_t number) { return TestHash(number, 0); }

TEST(EndlessCache, HitsWhatWasEverStored) {
  EndlessCache endless;
  endless.Store(kSpace, HashOf(1));
  const std::array asked = {HashOf(1), HashOf(2), HashOf(1)};
  endless.Ask(kSpace, asked);
  EXPECT_EQ(endless.asked(), 3u);
  EXPECT_EQ(endless.hits(), 2u);
}

TEST(EndlessCache, AskingIsNotStoring) {
  EndlessCache endless;
  const std::array asked = {HashOf(1)};
  endless.Ask(kSpace, asked);
  endless.Ask(kSpace, asked);
  EXPECT_EQ(endless.hits(), 0u);
}

TEST(EndlessCache, BlocksOfDifferentSpacesNeverMeet) {
  EndlessCache endless;
  endless.Store(kSpace, HashOf(1));
  const std::array asked = {HashOf(1)};
  endless.Ask(SpaceId(1), asked);
  EXPECT_EQ(endless.hits(), 0u);
}

TEST(EndlessCache, IsExactUntilItsBoundIsReached) {
  EndlessCache endless(100);
  for (uint64_t i = 0; i < 100; ++i) endless.Store(kSpace, HashOf(i));
  EXPECT_EQ(endless.sampling_shift(), 0u);
  endless.Store(kSpace, HashOf(100));
  EXPECT_GE(endless.sampling_shift(), 1u);
}

TEST(EndlessCache, EstimatesWhatIsFarBeyondItsBound) {
  constexpr uint64_t kStored = 100'000;
  EndlessCache endless(4096);
  for (uint64_t i = 0; i < kStored; ++i) endless.Store(kSpace, HashOf(i));
  EXPECT_GE(endless.sampling_shift(), 4u);
  // A quarter of what is asked for was stored.
  for (uint64_t i = 0; i < 4 * kStored; ++i) {
    const std::array asked = {HashOf(i)};
    endless.Ask(kSpace, asked);
  }
  const auto share = static_cast<double>(endless.hits()) / static_cast<double>(endless.asked());
  EXPECT_NEAR(share, 0.25, 0.03);
  EXPECT_NEAR(static_cast<double>(endless.asked()), 4.0 * kStored, 0.1 * 4 * kStored);
}

}  // namespace
}  // namespace kvtier
