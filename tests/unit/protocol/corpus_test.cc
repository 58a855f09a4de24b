// SPDX-License-Identifier: Apache-2.0
// The committed corpus of the fuzzer must know today's messages.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/sample_messages.h"

#ifndef KVTIER_FUZZ_CORPUS
#error "KVTIER_FUZZ_CORPUS is not defined"
#endif

namespace kvtier::wire {
namespace {

TEST(FuzzCorpus, HoldsEverySampleAsItIsNow) {
  for (const Sample& sample : SampleMessages()) {
    std::ifstream file(KVTIER_FUZZ_CORPUS "/" + sample.name, std::ios::binary);
    ASSERT_TRUE(file.is_open()) << sample.name << ": run make_corpus";
    const std::string seed{std::istreambuf_iterator<char>(file), {}};
    // One byte in front tells the fuzzer what to do with the rest.
    const std::string frame(reinterpret_cast<const char*>(sample.frame.data()),
                            sample.frame.size());
    EXPECT_EQ(seed.substr(1), frame) << sample.name << ": run make_corpus";
  }
}

}  // namespace
}  // namespace kvtier::wire
