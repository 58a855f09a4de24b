// make_corpus DIRECTORY: writes the fuzzer's seeds there, one file for each sample message, one for
// the model record, one with all messages in a row and one of frame lengths. Run it when a message
// changes.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fuzz/sample_messages.h"

namespace {

void Write(const std::filesystem::path& path, char mode, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.put(mode);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path directory(argv[1]);
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
  Write(directory / "model_record", '\xff', kvtier::wire::SampleModelRecord().Encode());
}
