// SPDX-License-Identifier: Apache-2.0
#include "protocol/text.h"

#include <gtest/gtest.h>

#include <string>

namespace kvtier {
namespace {

using std::string_literals::operator""s;

TEST(PlainText, AcceptsUtf8OfAllLengths) {
  for (const char* text : {"", "a", " ~", "\u00a0", "\u07ff", "\u0800", "\ud7ff", "\ue000",
                           "\uffff", "\U00010000", "\U0010ffff", "mixed Größe 漢字 \U0001f600"}) {
    EXPECT_TRUE(IsPlainText(text)) << text;
  }
}

TEST(PlainText, RefusesControlCharacters) {
  for (const std::string& text :
       {"\0"s, "\t"s, "a\n"s, "\x1b[31m"s, "\x7f"s, "\xc2\x80"s, "\xc2\x9f"s}) {
    EXPECT_FALSE(IsPlainText(text));
  }
}

TEST(PlainText, RefusesWhatIsNotUtf8) {
  for (const std::string& text :
       {"\x80"s, "\xc3"s, "\xc3\x28"s, "\xc0\xaf"s, "\xc1\xbf"s, "\xe0\x9f\xbf"s, "\xe2\x82"s,
        "\xed\xa0\x80"s, "\xed\xbf\xbf"s, "\xf0\x8f\xbf\xbf"s, "\xf4\x90\x80\x80"s,
        "\xf5\x80\x80\x80"s, "\xff"s, "ok\xe2"s}) {
    EXPECT_FALSE(IsPlainText(text));
  }
}

TEST(CutText, KeepsShortTextsWhole) {
  EXPECT_EQ(CutText("abc", 3), "abc");
  EXPECT_EQ(CutText("", 0), "");
}

TEST(CutText, NeverEndsWithinACharacter) {
  const std::string text = "a\u00df\u6f22\U0001f600";  // 1 + 2 + 3 + 4 bytes
  const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (size_t max = 0; max <= text.size(); ++max) {
    EXPECT_EQ(CutText(text, max).size(), ends[max]) << max;
  }
}

TEST(CutText, SurvivesTextsOfContinuationsOnly) { EXPECT_EQ(CutText("\x80\x80\x80", 2), ""); }

}  // namespace
}  // namespace kvtier
