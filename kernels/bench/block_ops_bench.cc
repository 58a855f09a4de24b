// SPDX-License-Identifier: Apache-2.0
// Block operations on Llama-3.1-8B's geometry: 2 MiB blocks of 16 tokens, 32 layers, 8 KV heads.

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

constexpr size_t kElements = size_t{kBlocks} * kBlock / 2;  // as bf16

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
  const BenchResult shape{.kernel = kernel,
                          .variant = variant,
                          .batch = kBlocks,
                          .kv_heads = kHeads,
                          .head_dim = 128,
                          .page = kTokens};
  run->Add(shape, us, bytes, 0, Bound::kCopy);
}

void BenchCopies(BenchRun* run) {
  const DeviceMemory pool = RandomOnDevice(KVT_BF16, kElements, 1);
  const DeviceMemory engine = RandomOnDevice(KVT_BF16, kElements, 2);
  const DeviceMemory from = ToDevice(Shuffled(kBlocks, 3)), to = ToDevice(Shuffled(kBlocks, 4));
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
  const DeviceMemory pool = RandomOnDevice(KVT_BF16, kElements, 1), checksums(16 * kBlocks);
  const DeviceMemory ids = ToDevice(Shuffled(kBlocks, 3));
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
  constexpr int64_t kRows = int64_t(kRowTokens) * kQueryHeads, kResult = kRows * kHeadDim;
  const DeviceMemory partials = RandomOnDevice(KVT_FP32, kParts * kResult, 1),
                     lse = RandomOnDevice(KVT_FP32, kParts * kRows, 2), output(kResult * 2),
                     merged(kRows * 4);
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
                                  kResult,
                                  kRows,
                                  kQueryHeads * kHeadDim,
                                  kHeadDim};
  const double us = MedianMicroseconds(
      1, [&](int, cudaStream_t s) { CheckStatus(kvt_merge_lse(&p, s), "merge"); });
  Report(run, "merge_lse", "4 parts fp32", us,
         double(kResult) * (kParts * 4 + 2) + double(kRows) * (kParts + 1) * 4);
}

}  // namespace

void BenchBlockOps(BenchRun* run) {
  if (run->Wants("copy_blocks")) BenchCopies(run);
  if (run->Wants("checksum")) BenchFillAndChecksum(run);
  if (run->Wants("merge_lse")) BenchMerge(run);
}

}  // namespace kvtier::kernels::bench
