// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/block_hash.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ExtraKey Medium(const char* content_hash, int64_t offset) {
  return ExtraKey::Tuple({ExtraKey::Text(content_hash), ExtraKey::Integer(offset)});
}

TEST(PromptIdentity, NothingGivesNoKeys) {
  EXPECT_TRUE(PromptIdentity{}.empty());
  EXPECT_THAT(PromptIdentity{}.KeysOf(0, 16), IsEmpty());
}

TEST(PromptIdentity, SaltIsInTheFirstBlockOnly) {
  PromptIdentity identity;
  identity.cache_salt = "s";
  EXPECT_THAT(identity.KeysOf(0, 16), ElementsAre(ExtraKey::Text("s")));
  EXPECT_THAT(identity.KeysOf(16, 32), IsEmpty());
}

TEST(PromptIdentity, MediaAreInEveryBlockTheyOverlapWithTheirOffset) {
  PromptIdentity identity;
  identity.media = {{"image", 10, 22}, {"sound", 40, 1}};
  EXPECT_THAT(identity.KeysOf(0, 10), IsEmpty());
  EXPECT_THAT(identity.KeysOf(0, 16), ElementsAre(Medium("image", 10)));
  EXPECT_THAT(identity.KeysOf(16, 32), ElementsAre(Medium("image", -6)));
  EXPECT_THAT(identity.KeysOf(32, 40), IsEmpty());
  EXPECT_THAT(identity.KeysOf(32, 48), ElementsAre(Medium("sound", 8)));
}

TEST(PromptIdentity, OrderIsLoraMediaSalt) {
  PromptIdentity identity{"lora", {{"image", 0, 4}}, "salt"};
  EXPECT_THAT(identity.KeysOf(0, 16),
              ElementsAre(ExtraKey::Text("lora"), Medium("image", 0), ExtraKey::Text("salt")));
}

}  // namespace
}  // namespace kvtier
