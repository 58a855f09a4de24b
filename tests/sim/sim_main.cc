// SPDX-License-Identifier: Apache-2.0
// kvtier-sim: runs the simulation over a range of seeds.
//
// Each worker process runs seeds one after the other; when one dies, the parent says which seed it
// was and how to see it again. Exit codes: 0 all seeds hold, 1 some do not, 2 usage.

#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/simulator.h"

namespace kvtier {
namespace {

struct SimArguments {
  uint64_t first_seed = 1;
  uint64_t last_seed = 1;
  uint32_t steps = 400;
  uint64_t max_failures = 5;  // then it gives up
  bool verbose = false;
};

// A worker's message to its parent, in memory that both map.
struct SimShared {
  uint64_t seed;  // under way
  uint64_t done;  // seeds that held
  uint64_t events, crashes, survivors, adopted, floors, erasures, transfers;
  uint64_t onloads, offloads, disk_writes;
};

bool ParseNumber(std::string_view text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseSeeds(std::string_view text, SimArguments* arguments) {
  const size_t dots = text.find("..");
  return dots != std::string_view::npos &&
         ParseNumber(text.substr(0, dots), &arguments->first_seed) &&
         ParseNumber(text.substr(dots + 2), &arguments->last_seed) &&
         arguments->first_seed <= arguments->last_seed;
}

std::optional<SimArguments> ParseArguments(const std::vector<std::string_view>& words) {
  SimArguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--verbose") {
      arguments.verbose = true;
      continue;
    }
    if (i + 1 == words.size()) return std::nullopt;
    const std::string_view name = words[i];
    const std::string_view value = words[++i];
    uint64_t number = 0;
    if (name == "--seeds") {
      if (!ParseSeeds(value, &arguments)) return std::nullopt;
    } else if (name == "--seed") {
      if (!ParseNumber(value, &number)) return std::nullopt;
      arguments.first_seed = arguments.last_seed = number;
    } else if (name == "--steps") {
      if (!ParseNumber(value, &number) || number > UINT32_MAX) return std::nullopt;
      arguments.steps = static_cast<uint32_t>(number);
    } else if (name == "--max-failures") {
      if (!ParseNumber(value, &arguments.max_failures)) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  return arguments;
}

void RunSeed(uint64_t seed, const SimArguments& arguments, SimShared* shared) {
  const SimPlan plan = MakeSimPlan(seed, arguments.steps);
  if (arguments.verbose) std::fprintf(stderr, "%s\n", Describe(plan).c_str());
  Simulator simulator(plan, arguments.verbose);
  const SimReport report = simulator.Run();
  ++shared->done;
  shared->events += report.events;
  shared->crashes += report.crashes;
  shared->survivors += report.survivors;
  shared->adopted += report.adopted;
  shared->floors += report.floors;
  shared->erasures += report.erasures;
  shared->transfers += report.transfers;
  shared->onloads += report.stats.onload_blocks;
  shared->offloads += report.stats.offload_blocks;
  shared->disk_writes += report.stats.disk_write_blocks;
}

[[noreturn]] void Work(const SimArguments& arguments, SimShared* shared) {
  // Each seed allocates and frees the same megabytes; keep them instead of faulting them in anew.
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  for (; shared->seed <= arguments.last_seed; ++shared->seed) {
    RunSeed(shared->seed, arguments, shared);
  }
  std::_Exit(0);
}

// Runs seeds from shared->seed on in a process of their own; true if it came to the end.
bool RunWorker(const SimArguments& arguments, SimShared* shared) {
  std::fflush(nullptr);
  const pid_t worker = fork();
  if (worker < 0) {
    std::perror("fork");
    std::exit(1);
  }
  if (worker == 0) Work(arguments, shared);
  int status = 0;
  while (waitpid(worker, &status, 0) < 0) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int Run(const SimArguments& arguments) {
  void* const memory =
      mmap(nullptr, sizeof(SimShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  auto* const shared = new (memory) SimShared{.seed = arguments.first_seed};
  uint64_t failures = 0;
  while (shared->seed <= arguments.last_seed && !RunWorker(arguments, shared)) {
    std::fprintf(stderr,
                 "seed %llu failed; again with: kvtier-sim --seed %llu --steps %u --verbose\n",
                 static_cast<unsigned long long>(shared->seed),
                 static_cast<unsigned long long>(shared->seed), arguments.steps);
    ++shared->seed;
    if (++failures == arguments.max_failures) break;
  }
  std::printf(
      "kvtier-sim: %llu seeds hold, %llu fail; %llu events, %llu crashes, %llu blocks served after "
      "a crash, %llu adopted in host, %llu floors tried, %llu erasures, %llu transfers of regions, "
      "%llu onloads, %llu offloads, %llu disk writes\n",
      static_cast<unsigned long long>(shared->done), static_cast<unsigned long long>(failures),
      static_cast<unsigned long long>(shared->events),
      static_cast<unsigned long long>(shared->crashes),
      static_cast<unsigned long long>(shared->survivors),
      static_cast<unsigned long long>(shared->adopted),
      static_cast<unsigned long long>(shared->floors),
      static_cast<unsigned long long>(shared->erasures),
      static_cast<unsigned long long>(shared->transfers),
      static_cast<unsigned long long>(shared->onloads),
      static_cast<unsigned long long>(shared->offloads),
      static_cast<unsigned long long>(shared->disk_writes));
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  const auto arguments = kvtier::ParseArguments({argv + 1, argv + argc});
  if (!arguments) {
    std::fprintf(stderr,
                 "usage: kvtier-sim [--seeds FROM..TO | --seed S] [--steps N] "
                 "[--max-failures N] [--verbose]\n");
    return 2;
  }
  return kvtier::Run(*arguments);
}
