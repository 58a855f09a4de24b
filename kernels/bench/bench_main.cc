// kvtier-kernel-bench [--json FILE] [--commit ID] [--filter TEXT] [--quick]
//
// Times every kernel against the ceilings of the machine, measured in the same run; --quick keeps
// to the cells that have bars. Exit: 0 done, 1 CUDA failed, 2 usage.

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

struct Options {
  std::string json_path;
  std::string commit = "unknown";
  std::string filter;
  bool quick = false;
};

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      options->quick = true;
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

}  // namespace

int main(int argc, char** argv) {
  using namespace kvtier::kernels::bench;
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: kvtier-kernel-bench [--json FILE] [--commit ID] [--filter TEXT] "
                 "[--quick]\n");
    return 2;
  }
  BenchRun run(options.filter, options.quick);
  run.set_ceilings(MeasureCeilings());
  std::printf("ceilings: copy %.0f GB/s, read %.0f GB/s, bf16 %.0f TFLOP/s\n",
              run.ceilings().copy_gbps, run.ceilings().read_gbps, run.ceilings().bf16_tflops);
  std::this_thread::sleep_for(kRest);
  BenchDecode(&run);
  BenchDecodeShared(&run);
#ifdef KVTIER_BENCH_APPEND
  BenchAppend(&run);
#endif
#ifdef KVTIER_BENCH_KV_WRITE
  BenchKvWrite(&run);
#endif
#ifdef KVTIER_BENCH_BLOCK_OPS
  BenchBlockOps(&run);
#endif
#ifdef KVTIER_BENCH_SUFFIX
  BenchSuffix(&run);
#endif
  if (!options.json_path.empty()) {
    std::ofstream(options.json_path) << run.Json(options.commit);
  }
  return 0;
}
