// SPDX-License-Identifier: Apache-2.0
// kvtier-codec-bench: what a lossless code for bf16 blocks would do for the disk tier. The tables
// are in Markdown, as docs/benchmarks/codec.md shows them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/bench/codec/codec_bench.h"

namespace kvtier {
namespace {

constexpr std::array kLevelNames = {"scalar", "AVX2", "AVX-512"};

struct Options {
  std::string kv;
  std::vector<uint64_t> block_bytes = {64 * kKiB, 512 * kKiB, 2 * kMiB};
  uint64_t set_bytes = kGiB;
  uint64_t speed_bytes = 512 * kMiB;
  DiskToPoolWork disk{.path = {}, .queue_bytes = 32 * kMiB, .memory_bytes = 512 * kMiB};
  bool device_copies = false;
};

Status PrintSizes(const Options& options, uint64_t block_bytes) {
  KVT_ASSIGN_OR_RETURN(const KvBlocks blocks, ReadKv(options.kv, block_bytes, 0));
  const CodecSizes sizes = MeasureSizes(blocks);
  fmt::print("| {} blocks of {} | {:.4f} | {:.4f} | {:.4f} |", blocks.blocks(),
             FormatByteSize(block_bytes), sizes.mean, sizes.median, sizes.worst);
  for (const CodecSizes::Slot& slot : sizes.slots) {
    fmt::print(" {} ({:.3f}): {:.2f} %;", slot.slot_bytes, slot.of_raw_slot, 100 * slot.fit);
  }
  fmt::print(" |\n");
  return {};
}

Status PrintSpeed(const Options& options, uint64_t block_bytes) {
  KVT_ASSIGN_OR_RETURN(const KvBlocks blocks, ReadKv(options.kv, block_bytes, options.speed_bytes));
  const auto rows = MeasureSpeed(blocks, options.disk.repetitions);
  for (size_t i = 0; i < rows.size(); ++i) {
    fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n",
               FormatByteSize(block_bytes), kLevelNames[i], rows[i].encode, rows[i].decode,
               rows[i].decode_checksum, rows[i].checksum, rows[i].copy);
  }
  return {};
}

double MedianOf(const std::vector<DiskToPoolRate>& rows, double DiskToPoolRate::*member) {
  std::vector<double> values;
  for (const DiskToPoolRate& row : rows) values.push_back(row.*member);
  return Median(values);
}

Status PrintDisk(const Options& options, uint64_t block_bytes) {
  KVT_ASSIGN_OR_RETURN(const KvBlocks blocks, ReadKv(options.kv, block_bytes, options.set_bytes));
  KVT_ASSIGN_OR_RETURN(const DiskToPoolRates rates, MeasureDiskToPool(blocks, options.disk));
  std::vector<double> gains;
  for (size_t i = 0; i < rates.raw.size(); ++i) {
    gains.push_back(rates.encoded[i].gbps / rates.raw[i].gbps);
  }
  const auto [least, most] = std::ranges::minmax(gains);
  fmt::print(
      "| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} to {:.2f} | {:.3f} | {:.3f} |"
      " {:.2f} | {:.2f} |\n",
      FormatByteSize(block_bytes), options.disk.workers, MedianOf(rates.raw, &DiskToPoolRate::gbps),
      MedianOf(rates.encoded, &DiskToPoolRate::gbps), Median(gains), least, most,
      MedianOf(rates.raw, &DiskToPoolRate::cpu_s), MedianOf(rates.encoded, &DiskToPoolRate::cpu_s),
      MedianOf(rates.raw, &DiskToPoolRate::raw_gbps),
      MedianOf(rates.encoded, &DiskToPoolRate::raw_gbps));
  return {};
}

Status Run(const Options& options) {
  fmt::print(
      "| blocks | encoded / raw, mean | median | worst |"
      " slot (of a raw slot): blocks that fit |\n|---|---|---|---|---|\n");
  for (const uint64_t bytes : options.block_bytes) KVT_RETURN_IF_ERROR(PrintSizes(options, bytes));
  fmt::print(
      "\n| block | level | encode GB/s | decode | decode and checksum | xxh3-128 | memcpy |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const uint64_t bytes : options.block_bytes) KVT_RETURN_IF_ERROR(PrintSpeed(options, bytes));
  if (options.disk.path.empty()) return {};
  fmt::print(
      "\n| block | threads | raw slots, GB/s | encoded | gain, median | range |"
      " raw: processor s a GB | encoded | disk alone, raw slots | encoded slots |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  for (const uint64_t bytes : options.block_bytes) KVT_RETURN_IF_ERROR(PrintDisk(options, bytes));
  return {};
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What a lossless code for bf16 blocks would do for the disk tier.",
               "kvtier-codec-bench");
  app.add_option("--kv", options.kv, "Blocks of KV, from kv_of_models.py.")->required();
  app.add_option("--block-bytes", options.block_bytes, "Sizes of blocks, multiples of 128.");
  app.add_option("--speed-bytes", options.speed_bytes, "For rates in memory; more than the caches.")
      ->capture_default_str();
  app.add_option("--file", options.disk.path,
                 "A file to be made and removed on the disk to be measured; none: no disk.");
  app.add_option("--set-bytes", options.set_bytes, "Read from disk in one repetition.")
      ->capture_default_str();
  app.add_option("--workers", options.disk.workers, "Threads that check, decode and copy.")
      ->capture_default_str();
  app.add_option("--queue-bytes", options.disk.queue_bytes, "Reads under way.")
      ->capture_default_str();
  app.add_option("--memory-bytes", options.disk.memory_bytes, "Host slots, at most 1 GiB.")
      ->capture_default_str();
  app.add_option("--repetitions", options.disk.repetitions)->capture_default_str();
  app.add_flag("--device-copies", options.device_copies,
               "No thread copies to the pool: the copy engine of a GPU would.");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // rows as they are measured, also to a file
  options.disk.copy = !options.device_copies;
  const Status status = Run(options);
  if (status) return 0;
  fmt::print(stderr, "kvtier-codec-bench: {}\n", status.error().ToString());
  return 1;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
