// SPDX-License-Identifier: Apache-2.0
// docs/PROTOCOL.md and the pages beside it are the contract for clients in other languages: their
// examples must be the truth.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "base/acquired.h"
#include "protocol/message_type.h"
#include "tests/fuzz/sample_messages.h"
#include "tests/unit/protocol/hex.h"

#ifndef KVTIER_DOCS
#error "KVTIER_DOCS is not defined"
#endif

namespace kvtier::wire {
namespace {

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The page of the protocol, and those of its messages that have a page of their own.
std::string Document() {
  std::string text;
  for (const char* page : {"PROTOCOL", "PROTOCOL_ATTENTION", "PROTOCOL_KEPT_MEMORY"}) {
    text += TextOf(std::string(KVTIER_DOCS "/") + page + ".md");
  }
  return text;
}

// The hexadecimal digits of each "```hex NAME" block, without spaces and comments.
std::map<std::string, std::string> ExamplesInDocument() {
  static const std::string kFence = "```hex ";
  std::istringstream document(Document());
  std::map<std::string, std::string> examples;
  std::string* current = nullptr;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with(kFence)) {
      current = &examples[line.substr(kFence.size())];
    } else if (line.starts_with("```")) {
      current = nullptr;
    } else if (current != nullptr) {
      for (const char c : line.substr(0, line.find('#'))) {
        if (c != ' ') current->push_back(c);
      }
    }
  }
  return examples;
}

TEST(ProtocolDocument, EveryExampleIsWhatWeEncode) {
  std::map<std::string, std::string> samples;
  for (const Sample& sample : SampleMessages()) samples[sample.name] = HexOf(sample.frame);
  const auto examples = ExamplesInDocument();
  EXPECT_GE(examples.size(), 13u);
  for (const auto& [name, hex] : examples) {
    ASSERT_TRUE(samples.contains(name)) << name;
    EXPECT_EQ(hex, samples[name]) << name;
  }
}

TEST(ProtocolDocument, NamesEveryMessage) {
  const std::string text = Document();
  for (uint16_t type = 0; type < 100; ++type) {
    if (MessageTypeName(type) == "unknown") continue;
    const std::string entry = std::string(MessageTypeName(type));
    EXPECT_NE(text.find(entry), std::string::npos) << entry;
    EXPECT_NE(text.find("**" + entry + "** (" + std::to_string(type) + ")"), std::string::npos)
        << entry;
  }
}

TEST(ProtocolDocument, TheTableOfMessagesHasEachByItsNumber) {
  const std::string text = Document();
  const size_t begin = text.find("\n## Messages\n");
  const std::string table = text.substr(begin, text.find("\n### ", begin) - begin);
  static const std::regex kMessage(R"((\d+) ([A-Z_]+))");
  std::set<int> numbers;
  for (std::sregex_iterator message(table.begin(), table.end(), kMessage), end; message != end;
       ++message) {
    const int number = std::stoi((*message)[1]);
    EXPECT_EQ(MessageTypeName(static_cast<uint16_t>(number)), (*message)[2].str());
    numbers.insert(number);
  }
  for (uint16_t type = 0; type < 100; ++type) {
    const std::string_view name = MessageTypeName(type);
    if (name == "unknown" || name.ends_with("_REPLY")) continue;
    EXPECT_TRUE(numbers.contains(type)) << name;
  }
}

TEST(ProtocolDocument, TellsEveryMissReason) {
  const std::string text = Document();
  std::string table;
  for (int i = 0; i < kMissReasonCount; ++i) {
    const MissReasonText& reason = kMissReasonTexts[i];
    table += "| " + std::to_string(i) + " " + std::string(reason.name) + " | " +
             std::string(reason.meaning) + " |\n";
  }
  EXPECT_NE(text.find(table), std::string::npos) << table;
}

TEST(ProtocolDocument, ExamplesOfThePublicHeadersNameItsSocket) {
  const std::string document = Document();
  const std::string header = TextOf(KVTIER_DOCS "/../client/include/kvtier/kvtier.hpp");
  static const std::regex kPath("\"(/[a-z/]+\\.sock)\"");
  std::smatch path;
  ASSERT_TRUE(std::regex_search(header, path, kPath));
  EXPECT_NE(document.find("| data | `" + path[1].str() + "` |"), std::string::npos) << path[1];
}

}  // namespace
}  // namespace kvtier::wire
