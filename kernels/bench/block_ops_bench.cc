// SPDX-License-Identifier: Apache-2.0
// Block operations on Llama-3.1-8B's geometry: 2 MiB blocks of 16 tokens, 32 layers, 8 KV heads.

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/bench/bench_harness.h"

namespace kvtier::kernels::bench {
namespace {

constexpr int kLayers = 32;
constexpr int kTokens = 16;
constexpr int kHeads = 8;
constexpr int64_t kHeadBytes = 256;
constexpr int64_t kHeadSlice = kTokens * kHeadBytes;  // 4 KiB
constexpr int64_t kSlice = kHeads * kHeadSlice;       // 32 KiB
constexpr int64_t kBlock = 2 * kLayers * kSlice;      // 2 MiB
constexpr int kBlocks = 512;

DeviceMemory RandomIds(uint64_t seed) {
  std::vector<int32_t> ids(kBlocks);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(seed));
  return ToDevice(ids);
}

// [block][layer][K, V][head][token]: pieces of 4 KiB where the other side keeps heads apart.
kvt_block_layout Pool(void* base) {
  return {base, nullptr, kBlock, 2 * kSlice, kSlice, kHeadBytes, kHeadSlice};
}
// [layer][block][K, V][head][token]: pieces of 64 KiB.
kvt_block_layout LayerFirst(void* base) {
  return {base, nullptr, 2 * kSlice, 2 * kSlice * kBlocks, kSlice, kHeadBytes, kHeadSlice};
}
// [layer][K, V][head][block][token]: pieces of 4 KiB.
kvt_block_layout HeadFirst(void* base) {
  return {base,
          nullptr,
          kHeadSlice,
          2 * kSlice * kBlocks,
          kSlice * kBlocks,
          kHeadBytes,
          kHeadSlice * kBlocks};
}

void Report(BenchRun* run, const char* kernel, const char* variant, double us, double bytes) {
  BenchResult result;
  result.kernel = kernel;
  result.variant = variant;
  result.batch = kBlocks;
  result.kv_heads = kHeads;
  result.head_dim = 128;
  result.page = kTokens;
  result.us = us;
  result.gbps = bytes / us / 1e3;
  result.ceiling_ratio = result.gbps / run->ceilings().copy_gbps;
  run->Add(result);
}

void BenchCopies(BenchRun* run) {
  const DeviceMemory pool(kBlocks * kBlock), engine(kBlocks * kBlock);
  FillRandom(pool.get(), KVT_BF16, pool.bytes() / 2, 1);
  FillRandom(engine.get(), KVT_BF16, engine.bytes() / 2, 2);
  const DeviceMemory from = RandomIds(3), to = RandomIds(4);
  const auto time = [&](const char* variant, const kvt_block_layout& source,
                        const kvt_block_layout& destination) {
    kvt_copy_blocks_params p = {};
    p.source = source;
    p.destination = destination;
    p.source_blocks = from.get<int32_t>();
    p.destination_blocks = to.get<int32_t>();
    p.blocks = kBlocks;
    p.layers = kLayers;
    p.tokens = kTokens;
    p.heads = kHeads;
    p.head_bytes = kHeadBytes;
    const double us = MedianMicroseconds(
        1, [&](int, cudaStream_t s) { CheckStatus(kvt_copy_blocks(&p, s), "copy"); });
    Report(run, "copy_blocks", variant, us, 2.0 * kBlocks * kBlock);
  };
  time("whole blocks", Pool(pool.get()), Pool(engine.get()));
  time("gather 64 KiB", Pool(pool.get()), LayerFirst(engine.get()));
  time("scatter 64 KiB", LayerFirst(engine.get()), Pool(pool.get()));
  time("gather 4 KiB", Pool(pool.get()), HeadFirst(engine.get()));
  time("scatter 4 KiB", HeadFirst(engine.get()), Pool(pool.get()));
}

void BenchFillAndChecksum(BenchRun* run) {
  const DeviceMemory pool(kBlocks * kBlock), checksums(16 * kBlocks);
  FillRandom(pool.get(), KVT_BF16, pool.bytes() / 2, 1);
  const DeviceMemory ids = RandomIds(3);
  for (const int blocks : {16, kBlocks}) {
    const kvt_block_list list = {pool.get(), kBlock, kBlock, ids.get<int32_t>(), blocks};
    const double us = MedianMicroseconds(1, [&](int, cudaStream_t s) {
      CheckStatus(kvt_checksum_blocks(&list, checksums.get<uint8_t>(), s), "checksum");
    });
    Report(run, "checksum", blocks == kBlocks ? "" : "16 blocks", us, double(blocks) * kBlock);
  }
  const kvt_block_list list = {pool.get(), kBlock, kBlock, ids.get<int32_t>(), kBlocks};
  const double us = MedianMicroseconds(
      1, [&](int, cudaStream_t s) { CheckStatus(kvt_fill_blocks(&list, 0, s), "fill"); });
  Report(run, "fill_blocks", "", us, double(kBlocks) * kBlock);
}

void BenchMerge(BenchRun* run) {
  constexpr int kParts = 4, kRowTokens = 8192, kQueryHeads = 32, kHeadDim = 128;
  constexpr int64_t kRows = int64_t(kRowTokens) * kQueryHeads, kElements = kRows * kHeadDim;
  const DeviceMemory partials(kParts * kElements * 4), lse(kParts * kRows * 4),
      output(kElements * 2), merged(kRows * 4);
  FillRandom(partials.get(), KVT_FP32, kParts * kElements, 1);
  FillRandom(lse.get(), KVT_FP32, kParts * kRows, 2);
  const kvt_merge_lse_params p = {partials.get(),
                                  lse.get<float>(),
                                  output.get(),
                                  merged.get<float>(),
                                  KVT_FP32,
                                  KVT_BF16,
                                  kParts,
                                  kRowTokens,
                                  kQueryHeads,
                                  kHeadDim,
                                  kElements,
                                  kRows,
                                  kQueryHeads * kHeadDim,
                                  kHeadDim};
  const double us = MedianMicroseconds(
      1, [&](int, cudaStream_t s) { CheckStatus(kvt_merge_lse(&p, s), "merge"); });
  Report(run, "merge_lse", "4 parts fp32", us,
         double(kElements) * (kParts * 4 + 2) + double(kRows) * (kParts + 1) * 4);
}

}  // namespace

void BenchBlockOps(BenchRun* run) {
  if (run->Wants("copy_blocks")) BenchCopies(run);
  if (run->Wants("checksum")) BenchFillAndChecksum(run);
  if (run->Wants("merge_lse")) BenchMerge(run);
}

}  // namespace kvtier::kernels::bench
