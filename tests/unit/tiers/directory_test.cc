// SPDX-License-Identifier: Apache-2.0
// The directory's rows, and names of blocks that outlive them.
#include "tiers/directory/directory.h"

#include <gtest/gtest.h>

#include "tests/fakes/derived_bytes.h"

namespace kvtier {
namespace {

BlockKey Key(uint32_t number) { return {NamespaceId(0), TestHash(1, number)}; }

TEST(Directory, NameOfABlockFindsItsEntryWhileItLives) {
  Directory directory;
  const EntryIndex entry = directory.Insert(Key(1));
  const EntryRef name = directory.RefOf(entry);
  EXPECT_EQ(directory.Resolve(name), entry);
  directory.Erase(entry);
  EXPECT_EQ(directory.Resolve(name), kNoEntry);
}

TEST(Directory, NameOfAForgottenBlockDoesNotFindTheNextOneInItsRow) {
  Directory directory;
  const EntryIndex first = directory.Insert(Key(1));
  const EntryRef name = directory.RefOf(first);
  directory.Erase(first);
  const EntryIndex second = directory.Insert(Key(2));
  ASSERT_EQ(second, first);
  EXPECT_EQ(directory.Resolve(name), kNoEntry);
  EXPECT_EQ(directory.Resolve(directory.RefOf(second)), second);
}

TEST(Directory, NameOfNoBlockFindsNone) {
  const Directory directory;
  EXPECT_EQ(directory.Resolve(EntryRef{}), kNoEntry);
}

}  // namespace
}  // namespace kvtier
