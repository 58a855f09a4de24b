// SPDX-License-Identifier: Apache-2.0
// make_corpus DIRECTORY: writes the fuzzer's seeds there, one file for each sample message, one for
// the model record, one with all messages in a row and one of frame lengths; and those of
// fuzz_attend_plan to DIRECTORY_attend_plan. Run it when a message changes.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "protocol/frame.h"
#include "protocol/messages.h"
#include "tests/fuzz/sample_messages.h"

namespace {

void Write(const std::filesystem::path& path, char mode, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.put(mode);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

// A geometry of this type of cache, then a message that fits it.
void WriteAttendPlan(const std::filesystem::path& path, kvtier::KvDtype dtype,
                     const kvtier::wire::Attend& message) {
  std::vector<std::byte> frame;
  kvtier::wire::Encode(message, 1, &frame);
  // 4 layers, 2 KV heads of 128, 17 tokens a block; a workspace of 1 MiB.
  std::vector<std::byte> plan;
  for (const int byte : {1, 127, 1, 0, 4, static_cast<int>(dtype) - 1, 8}) {
    plan.push_back(static_cast<std::byte>(byte));
  }
  plan.insert(plan.end(), frame.begin() + kvtier::wire::kFrameHeaderBytes, frame.end());
  Write(path, 3, plan);
}

void WriteAttendPlans(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  kvtier::wire::Attend attend;
  attend.q_heads = 8;
  attend.softmax_scale = 0.125F;
  attend.output_offset = 65536;
  attend.sequences = {{1, 21}, {3, 13}};
  for (uint32_t i = 0; i < 3; ++i) {
    attend.blocks.push_back({.index = kvtier::BlockIndex(i), .generation = 1});
  }
  attend.lse_offset = kvtier::wire::kNoLse;
  WriteAttendPlan(directory / "without_lse", kvtier::KvDtype::kBfloat16, attend);
  attend.lse_offset = 131072;
  WriteAttendPlan(directory / "with_lse", kvtier::KvDtype::kBfloat16, attend);
  attend.key_scales = {0.5F};
  attend.value_scales = {2.0F, 2.0F};
  WriteAttendPlan(directory / "with_scales", kvtier::KvDtype::kFloat8E4m3, attend);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path directory(argv[1]);
  std::filesystem::create_directories(directory);
  std::vector<std::byte> all;
  for (const kvtier::wire::Sample& sample : kvtier::wire::SampleMessages()) {
    Write(directory / sample.name, 0, sample.frame);
    all.insert(all.end(), sample.frame.begin(), sample.frame.end());
  }
  Write(directory / "all_messages", 16, all);
  std::vector<std::byte> lengths;
  for (const int length : {2, 250, 0, 251, 128, 33, 254, 255, 4, 7, 200}) {
    lengths.push_back(static_cast<std::byte>(length));
  }
  Write(directory / "lengths", '\xfe', lengths);
  WriteAttendPlans(directory.string() + "_attend_plan");
  Write(directory / "model_record", '\xff', kvtier::wire::SampleModelRecord().Encode());
}
