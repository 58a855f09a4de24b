// SPDX-License-Identifier: Apache-2.0
// play_sessions: hostile sessions without a fuzzer, from files of input bytes and from seeds, the
// same in every run and with any compiler. When a game aborts, the last line says which it was.
//
//   play_sessions [--seeds FROM TO] [FILE or DIRECTORY]...
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/fuzz/hostile_sessions.h"

namespace kvtier {
namespace {

// The name of the file being played; read by the signal handler.
char now_playing[512];

void SayWhatWasPlayed(int signal) {
  (void)!::write(STDERR_FILENO, now_playing, std::char_traits<char>::length(now_playing));
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

void PlayFile(const std::filesystem::path& path) {
  std::snprintf(now_playing, sizeof(now_playing), "play_sessions: %s aborts\n", path.c_str());
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  PlayHostileSessions({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

void PlaySeed(uint64_t seed) {
  std::snprintf(now_playing, sizeof(now_playing),
                "play_sessions: seed %llu aborts; again with --seeds %llu %llu\n",
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(seed));
  SeededRandom random(seed);
  std::vector<uint8_t> bytes(random.Between(50, 1500));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  PlayHostileSessions(bytes);
}

int Run(const std::vector<std::string>& arguments) {
  uint64_t played = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--seeds") {
      if (i + 2 >= arguments.size()) return 2;
      const uint64_t last = std::strtoull(arguments[i + 2].c_str(), nullptr, 10);
      uint64_t seed = std::strtoull(arguments[i + 1].c_str(), nullptr, 10);
      for (; seed <= last; ++seed, ++played) PlaySeed(seed);
      i += 2;
    } else if (std::filesystem::is_directory(arguments[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(arguments[i])) {
        PlayFile(entry.path());
        ++played;
      }
    } else {
      PlayFile(arguments[i]);
      ++played;
    }
  }
  std::printf("play_sessions: %llu games, nothing found\n",
              static_cast<unsigned long long>(played));
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  std::signal(SIGABRT, kvtier::SayWhatWasPlayed);
  std::signal(SIGSEGV, kvtier::SayWhatWasPlayed);
  return kvtier::Run({argv + 1, argv + argc});
}
