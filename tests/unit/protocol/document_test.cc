// SPDX-License-Identifier: Apache-2.0
// docs/PROTOCOL.md is the contract for clients in other languages: its examples must be the truth.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>

#include "protocol/message_type.h"
#include "tests/fuzz/sample_messages.h"
#include "tests/unit/protocol/hex.h"

#ifndef KVTIER_DOCS
#error "KVTIER_DOCS is not defined"
#endif

namespace kvtier::wire {
namespace {

// The hexadecimal digits of each "```hex NAME" block, without spaces and comments.
std::map<std::string, std::string> ExamplesInDocument() {
  static const std::string kFence = "```hex ";
  std::ifstream file(KVTIER_DOCS "/PROTOCOL.md");
  std::map<std::string, std::string> examples;
  std::string* current = nullptr;
  for (std::string line; std::getline(file, line);) {
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
  std::ifstream file(KVTIER_DOCS "/PROTOCOL.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (uint16_t type = 0; type < 100; ++type) {
    if (MessageTypeName(type) == "unknown") continue;
    const std::string entry = std::string(MessageTypeName(type));
    EXPECT_NE(text.find(entry), std::string::npos) << entry;
    EXPECT_NE(text.find("**" + entry + "** (" + std::to_string(type) + ")"), std::string::npos)
        << entry;
  }
}

}  // namespace
}  // namespace kvtier::wire
