// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/prefix_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

using Reply = PrefixSearch::Reply;
using IsThere = std::function<bool(size_t)>;

// Answers up to `at_once` questions in a random order, as a store would that has these objects.
// Returns the answer and how many questions it took.
std::pair<std::string, size_t> Search(size_t count, bool each, const IsThere& is_there,
                                      size_t at_once = 1) {
  PrefixSearch search(count, each);
  std::mt19937 random(static_cast<unsigned>(count + at_once));
  std::vector<size_t> asked;
  size_t questions = 0;
  while (!search.has_ended()) {
    while (asked.size() < at_once) {
      const std::optional<size_t> next = search.TakeNext();
      if (!next) break;
      asked.push_back(*next);
      ++questions;
    }
    if (asked.empty()) ADD_FAILURE() << "neither an answer nor a question";
    if (asked.empty()) break;
    std::swap(asked[random() % asked.size()], asked.back());
    const size_t position = asked.back();
    asked.pop_back();
    (void)search.Answer(position, is_there(position) ? Reply::kThere : Reply::kAbsent);
  }
  return {search.Told(), questions};
}

std::string Prefix(size_t there, size_t count) {
  return std::string(there, '\1') + std::string(count - there, '\0');
}

TEST(PrefixSearch, FindsEveryEndWithFewQuestions) {
  for (const size_t at_once : {1, 4, 32}) {
    for (size_t end = 0; end <= 100; ++end) {
      const auto [told, questions] = Search(
          100, false, [end](size_t i) { return i < end; }, at_once);
      EXPECT_EQ(told, Prefix(end, 100)) << at_once;
      EXPECT_LE(questions, 27u) << end << ", " << at_once;
    }
  }
}

TEST(PrefixSearch, AsksOneOfSixteenOfALongPrefix) {
  const auto [told, questions] = Search(2000, false, [](size_t) { return true; });
  EXPECT_EQ(told, Prefix(2000, 2000));
  EXPECT_LE(questions, 130u);
}

TEST(PrefixSearch, AsksOnceWhereNothingIsThere) {
  const auto [told, questions] = Search(2000, false, [](size_t) { return false; });
  EXPECT_EQ(told, Prefix(0, 2000));
  EXPECT_EQ(questions, 1u);
}

TEST(PrefixSearch, MeetsEachGapOfSixteen) {
  for (size_t gap = 0; gap < 80; ++gap) {
    const IsThere but_a_gap = [gap](size_t i) { return i < gap || i >= gap + 16; };
    EXPECT_EQ(Search(100, false, but_a_gap).first, Prefix(gap, 100));
  }
}

TEST(PrefixSearch, AsksForEachObjectThatIsNoneOfAPrefix) {
  const auto [told, questions] = Search(
      40, true, [](size_t i) { return i % 3 == 0; }, 8);
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], i % 3 == 0 ? 1 : 0);
  EXPECT_EQ(questions, 40u);
}

TEST(PrefixSearch, EndsAPrefixWhereTheStoreDoesNotSay) {
  PrefixSearch search(100, false);
  EXPECT_FALSE(search.Answer(*search.TakeNext(), Reply::kThere));
  EXPECT_FALSE(search.Answer(*search.TakeNext(), Reply::kThere));
  EXPECT_FALSE(search.has_ended());
  EXPECT_FALSE(search.Answer(*search.TakeNext(), Reply::kUnknown));
  EXPECT_TRUE(search.has_ended());
  EXPECT_EQ(search.Told(), Prefix(2, 100));
}

TEST(PrefixSearch, OfNothingEndsAtOnce) {
  const PrefixSearch search(0, false);
  EXPECT_TRUE(search.has_ended());
  EXPECT_EQ(search.Told(), "");
}

}  // namespace
}  // namespace kvtier
