// SPDX-License-Identifier: Apache-2.0
// kvtier-kernel-bench [--json FILE] [--commit ID] [--filter TEXT] [--grid bars|usual|wide]
//
// Times every kernel against the ceilings of the machine, measured in the same run. --quick is
// --grid bars. Exit: 0 done, 1 CUDA failed, 2 usage.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "kernels/bench/bench_harness.h"

namespace {

// The matrix product of the ceilings runs into the card's power limit; its clock needs a while to
// recover.
constexpr std::chrono::milliseconds kRest{500};

using kvtier::kernels::bench::Grid;

struct Options {
  std::string json_path;
  std::string commit = "unknown";
  std::string filter;
  Grid grid = Grid::kUsual;
};

bool ParseGrid(const std::string& name, Grid* grid) {
  if (name != "bars" && name != "usual" && name != "wide") return false;
  *grid = name == "bars" ? Grid::kBars : name == "usual" ? Grid::kUsual : Grid::kWide;
  return true;
}

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      options->grid = Grid::kBars;
      continue;
    }
    if (name == "--grid") {
      if (i + 1 == argc || !ParseGrid(argv[++i], &options->grid)) return false;
      continue;
    }
    std::string* const value = name == "--json"     ? &options->json_path
                               : name == "--commit" ? &options->commit
                               : name == "--filter" ? &options->filter
                                                    : nullptr;
    if (value == nullptr || i + 1 == argc) return false;
    *value = argv[++i];
  }
  return true;
}

void RunBench(const Options& options) {
  using namespace kvtier::kernels::bench;
  BenchRun run(options.filter, options.grid);
  run.set_ceilings(MeasureCeilings());
  std::printf("ceilings: copy %.0f GB/s, read %.0f GB/s, bf16 %.0f TFLOP/s\n",
              run.ceilings().copy_gbps, run.ceilings().read_gbps, run.ceilings().bf16_tflops);
  std::this_thread::sleep_for(kRest);
  for (const auto bench : {BenchDecode, BenchDecodeShared, BenchMla, BenchPrefill, BenchKvWrite,
                           BenchMerge, BenchSuffix}) {
    bench(&run);
  }
  if (!options.json_path.empty()) {
    std::ofstream(options.json_path) << run.Json(options.commit);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: kvtier-kernel-bench [--json FILE] [--commit ID] [--filter TEXT] "
                 "[--grid bars|usual|wide]\n");
    return 2;
  }
  try {
    RunBench(options);
  } catch (const kvtier::kernels::bench::CudaFailure& failure) {
    std::fprintf(stderr, "kvtier-kernel-bench: %s\n", failure.what());
    return 1;
  }
  return 0;
}
