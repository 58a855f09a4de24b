// SPDX-License-Identifier: Apache-2.0
// Block operations on the device against their references.
#include "kvtier/block_ops.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/reference/number_format.h"
#include "tests/gpu/kernels/block_ops_reference.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/gpu/kernels/graph_replay.h"

namespace kvtier::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<uint8_t> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

struct Geometry {
  int32_t layers, tokens, heads, head_bytes;
  [[nodiscard]] int64_t slice() const { return int64_t{tokens} * heads * head_bytes; }
  [[nodiscard]] int64_t block() const { return slice() * 2 * layers; }
};

// [block][layer][K, V][token][head]: kvtier's pool.
kvt_block_layout BlockFirst(void* base, const Geometry& g) {
  return {.base = base,
          .slice_bases = nullptr,
          .block_stride = g.block(),
          .layer_stride = 2 * g.slice(),
          .kv_stride = g.slice(),
          .token_stride = int64_t{g.heads} * g.head_bytes,
          .head_stride = g.head_bytes};
}

// [layer][K, V][block][head][token]: an engine that keeps heads outside of tokens.
kvt_block_layout LayerFirstHeadsOutside(void* base, const Geometry& g, int64_t blocks) {
  return {.base = base,
          .slice_bases = nullptr,
          .block_stride = g.slice(),
          .layer_stride = 2 * g.slice() * blocks,
          .kv_stride = g.slice() * blocks,
          .token_stride = g.head_bytes,
          .head_stride = int64_t{g.tokens} * g.head_bytes};
}

// Runs the same copy on the device and on the CPU and compares every byte of the destination.
void ExpectSameCopy(kvt_copy_blocks_params params, int64_t pool_bytes,
                    const std::vector<int32_t>& from_ids, const std::vector<int32_t>& to_ids) {
  std::vector<uint8_t> source = RandomBytes(pool_bytes, 1), target = RandomBytes(pool_bytes, 2);
  const DeviceArray<uint8_t> device_source(source), device_target(target);
  const DeviceArray<int32_t> device_from(from_ids), device_to(to_ids);
  params.blocks = static_cast<int32_t>(from_ids.size());

  kvt_copy_blocks_params on_device = params;
  on_device.source.base = device_source.get();
  on_device.destination.base = device_target.get();
  on_device.source_blocks = device_from.get();
  on_device.destination_blocks = device_to.get();
  ASSERT_EQ(kvt_copy_blocks(&on_device, nullptr), KVT_KERNEL_OK);

  params.source.base = source.data();
  params.destination.base = target.data();
  params.source_blocks = from_ids.data();
  params.destination_blocks = to_ids.data();
  CopyBlocksReference(params);
  EXPECT_TRUE(device_target.Get() == target);
}

kvt_copy_blocks_params CopyOf(const Geometry& g, const kvt_block_layout& from,
                              const kvt_block_layout& to) {
  kvt_copy_blocks_params params{};
  params.source = from;
  params.destination = to;
  params.layers = g.layers;
  params.tokens = g.tokens;
  params.heads = g.heads;
  params.head_bytes = g.head_bytes;
  return params;
}

TEST(CopyBlocks, CopiesWholeBlocksWithinOneLayoutAndSkipsNegativeIds) {
  KVT_SKIP_WITHOUT_GPU();
  for (const Geometry& g : {Geometry{3, 16, 2, 128}, Geometry{1, 16, 1, 16}}) {
    const kvt_block_layout layout = BlockFirst(nullptr, g);
    auto params = CopyOf(g, layout, layout);
    ExpectSameCopy(params, 8 * g.block(), {5, -1, 0, 7}, {1, 2, -1, 6});
  }
}

TEST(CopyBlocks, GathersIntoLayerFirstTensorsAndScattersBack) {
  KVT_SKIP_WITHOUT_GPU();
  for (const Geometry& g : {Geometry{2, 16, 8, 256}, Geometry{3, 32, 5, 48}}) {
    const kvt_block_layout pool = BlockFirst(nullptr, g);
    const kvt_block_layout engine = LayerFirstHeadsOutside(nullptr, g, 6);
    ExpectSameCopy(CopyOf(g, pool, engine), 6 * g.block(), {5, 3, 0}, {0, 4, 2});
    ExpectSameCopy(CopyOf(g, engine, pool), 6 * g.block(), {0, 4, 2}, {5, 3, 1});
  }
}

TEST(CopyBlocks, ReachesTensorsThatLieApart) {
  KVT_SKIP_WITHOUT_GPU();
  const Geometry g{2, 16, 4, 256};
  const std::vector<uint8_t> pool = RandomBytes(4 * g.block(), 3);
  const DeviceArray<uint8_t> device_pool(pool);
  const DeviceArray<uint8_t> k0(4 * g.slice()), v0(4 * g.slice()), k1(4 * g.slice()),
      v1(4 * g.slice());
  const DeviceArray<void*> slices(std::vector<void*>{k0.get(), v0.get(), k1.get(), v1.get()});
  kvt_block_layout engine = BlockFirst(nullptr, g);
  engine.slice_bases = slices.get();
  engine.block_stride = g.slice();
  auto params = CopyOf(g, BlockFirst(device_pool.get(), g), engine);
  params.blocks = 4;
  ASSERT_EQ(kvt_copy_blocks(&params, nullptr), KVT_KERNEL_OK);
  const auto expect_slice = [&](const DeviceArray<uint8_t>& tensor, int64_t slice) {
    const std::vector<uint8_t> held = tensor.Get();
    for (int64_t block = 0; block < 4; ++block) {
      EXPECT_EQ(std::memcmp(held.data() + block * g.slice(),
                            pool.data() + block * g.block() + slice * g.slice(), g.slice()),
                0);
    }
  };
  expect_slice(k0, 0);
  expect_slice(v0, 1);
  expect_slice(k1, 2);
  expect_slice(v1, 3);
}

TEST(CopyBlocks, ReachesBlocksBeyondFourGigabytes) {
  KVT_SKIP_WITHOUT_GPU();
  const Geometry g{1, 16, 2, 64};
  kvt_block_layout far = BlockFirst(nullptr, g);
  far.block_stride = int64_t{5} << 30;
  const DeviceArray<uint8_t> pool(2 * far.block_stride);
  const std::vector<uint8_t> block = RandomBytes(g.block(), 4);
  ASSERT_EQ(
      cudaMemcpy(pool.get() + far.block_stride, block.data(), block.size(), cudaMemcpyDefault),
      cudaSuccess);
  far.base = pool.get();
  auto params = CopyOf(g, far, far);
  const DeviceArray<int32_t> from(std::vector<int32_t>{1}), to(std::vector<int32_t>{0});
  params.source_blocks = from.get();
  params.destination_blocks = to.get();
  params.blocks = 1;
  ASSERT_EQ(kvt_copy_blocks(&params, nullptr), KVT_KERNEL_OK);
  std::vector<uint8_t> held(block.size());
  ASSERT_EQ(cudaMemcpy(held.data(), pool.get(), held.size(), cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(held, block);
}

TEST(FillBlocks, FillsTheListedBlocksAndNoOthers) {
  KVT_SKIP_WITHOUT_GPU();
  constexpr int64_t kBytes = 4096 + 48, kStride = kBytes + 32;
  std::vector<uint8_t> pool = RandomBytes(5 * kStride, 5);
  const DeviceArray<uint8_t> device(pool);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{4, -1, 1});
  const kvt_block_list list{device.get(), kStride, kBytes, ids.get(), 3};
  ASSERT_EQ(kvt_fill_blocks(&list, 0x7F7F7F7F, nullptr), KVT_KERNEL_OK);
  std::memset(pool.data() + 4 * kStride, 0x7F, kBytes);
  std::memset(pool.data() + 1 * kStride, 0x7F, kBytes);
  EXPECT_TRUE(device.Get() == pool);
}

TEST(ChecksumBlocks, EqualsTheChecksumOfTheTiersBelow) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int64_t bytes :
       {256, 320, 1024, 1088, 2048, 3008, 32768, 32832, 33792, 66560, 2 * 1024 * 1024}) {
    const int64_t stride = bytes + 64;
    const std::vector<uint8_t> pool = RandomBytes(3 * stride, static_cast<uint32_t>(bytes));
    const DeviceArray<uint8_t> device(pool);
    const DeviceArray<int32_t> ids(std::vector<int32_t>{2, -1, 0});
    const DeviceArray<uint8_t> checksums(std::vector<uint8_t>(48, 0xAB));
    const kvt_block_list list{device.get(), stride, bytes, ids.get(), 3};
    ASSERT_EQ(kvt_checksum_blocks(&list, checksums.get(), nullptr), KVT_KERNEL_OK);
    const std::vector<uint8_t> held = checksums.Get();
    for (const int i : {0, 2}) {
      XXH128_canonical_t expected;
      XXH128_canonicalFromHash(&expected, XXH3_128bits(pool.data() + (2 - i) * stride, bytes));
      EXPECT_EQ(std::memcmp(held.data() + 16 * i, expected.digest, 16), 0) << bytes;
    }
    EXPECT_EQ(held[16], 0xAB) << "the checksum of a skipped block was written";
  }
}

TEST(BlockLists, ReachBlocksBeyondFourGigabytes) {
  KVT_SKIP_WITHOUT_GPU();
  constexpr int64_t kBytes = 4096, kStride = int64_t{5} << 30;
  const DeviceArray<uint8_t> pool(2 * kStride);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{1});
  const DeviceArray<uint8_t> checksum(16);
  const kvt_block_list list{pool.get(), kStride, kBytes, ids.get(), 1};
  ASSERT_EQ(kvt_fill_blocks(&list, 0x5A5A5A5A, nullptr), KVT_KERNEL_OK);
  ASSERT_EQ(kvt_checksum_blocks(&list, checksum.get(), nullptr), KVT_KERNEL_OK);
  std::vector<uint8_t> held(kBytes);
  ASSERT_EQ(cudaMemcpy(held.data(), pool.get() + kStride, kBytes, cudaMemcpyDefault), cudaSuccess);
  EXPECT_TRUE(held == std::vector<uint8_t>(kBytes, 0x5A));
  XXH128_canonical_t expected;
  XXH128_canonicalFromHash(&expected, XXH3_128bits(held.data(), held.size()));
  EXPECT_EQ(std::memcmp(checksum.Get().data(), expected.digest, 16), 0);
}

TEST(BlockOps, OfNoBlocksTouchNothing) {
  KVT_SKIP_WITHOUT_GPU();
  const Geometry g{1, 16, 1, 64};
  const kvt_block_layout layout = BlockFirst(nullptr, g);
  ExpectSameCopy(CopyOf(g, layout, layout), 2 * g.block(), {}, {});
  const std::vector<uint8_t> pool = RandomBytes(4096, 9);
  const DeviceArray<uint8_t> device(pool);
  const kvt_block_list list{device.get(), 1024, 1024, nullptr, 0};
  EXPECT_EQ(kvt_fill_blocks(&list, 1, nullptr), KVT_KERNEL_OK);
  EXPECT_EQ(kvt_checksum_blocks(&list, device.get(), nullptr), KVT_KERNEL_OK);
  EXPECT_TRUE(device.Get() == pool);
}

TEST(BlockOps, ReplayInAGraphWithOtherIds) {
  KVT_SKIP_WITHOUT_GPU();
  const Geometry g{2, 16, 2, 64};
  std::vector<uint8_t> pool = RandomBytes(8 * g.block(), 10);
  const DeviceArray<uint8_t> device(pool);
  DeviceArray<int32_t> from(2), to(2);
  auto params = CopyOf(g, BlockFirst(device.get(), g), BlockFirst(device.get(), g));
  params.source_blocks = from.get();
  params.destination_blocks = to.get();
  params.blocks = 2;
  const kvt_block_list filled{device.get(), g.block(), g.block(), from.get(), 1};
  GraphReplay replay([&](cudaStream_t stream) {
    EXPECT_EQ(kvt_copy_blocks(&params, stream), KVT_KERNEL_OK);
    EXPECT_EQ(kvt_fill_blocks(&filled, 0x01020304, stream), KVT_KERNEL_OK);
  });
  for (const std::vector<int32_t>& ids :
       {std::vector<int32_t>{0, 1, 2, 3}, std::vector<int32_t>{5, -1, 4, 0},
        std::vector<int32_t>{-1, 7, 6, 1}}) {
    const std::vector<int32_t> sources = {ids[0], ids[1]}, targets = {ids[2], ids[3]};
    from.Set(sources);
    to.Set(targets);
    replay.Launch();
    params.source = params.destination = BlockFirst(pool.data(), g);
    params.source_blocks = sources.data();
    params.destination_blocks = targets.data();
    CopyBlocksReference(params);
    constexpr uint32_t kPattern = 0x01020304;
    for (int64_t i = 0; sources[0] >= 0 && i < g.block(); i += 4) {
      std::memcpy(&pool[sources[0] * g.block() + i], &kPattern, 4);
    }
    EXPECT_TRUE(device.Get() == pool);
  }
}

TEST(BlockOps, DoNotTakeAnEarlierErrorOfTheCallersForTheirOwn) {
  KVT_SKIP_WITHOUT_GPU();
  const Geometry g{1, 16, 1, 64};
  const DeviceArray<uint8_t> pool(2 * g.block());
  const DeviceArray<uint8_t> checksums(32);
  void* too_much = nullptr;
  ASSERT_EQ(cudaMalloc(&too_much, size_t{1} << 60), cudaErrorMemoryAllocation);
  auto copy = CopyOf(g, BlockFirst(pool.get(), g), BlockFirst(pool.get(), g));
  copy.source.base = pool.get() + g.block();
  copy.blocks = 1;
  const kvt_block_list list{pool.get(), g.block(), g.block(), nullptr, 2};
  EXPECT_EQ(kvt_fill_blocks(&list, 0, nullptr), KVT_KERNEL_OK);
  EXPECT_EQ(kvt_copy_blocks(&copy, nullptr), KVT_KERNEL_OK);
  EXPECT_EQ(kvt_checksum_blocks(&list, checksums.get(), nullptr), KVT_KERNEL_OK);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation) << "it is the caller's to take";
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

struct MergeCase {
  kvt_dtype partial_dtype, output_dtype;
  int32_t parts, tokens, heads, head_dim;
};

void ExpectMerged(const MergeCase& c, const std::vector<float>& lse) {
  const int64_t rows = int64_t{c.tokens} * c.heads, elements = rows * c.head_dim;
  const size_t partial_bytes = c.parts * elements * ElementBytes(c.partial_dtype);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> partials(partial_bytes);
  for (int64_t i = 0; i < c.parts * elements; ++i) {
    const bool ignored = lse[i / c.head_dim] == -kInfinity;
    StoreElement(partials.data(), c.partial_dtype, i, ignored ? NAN : normal(random));
  }
  const int64_t token_stride = int64_t{c.heads} * c.head_dim + 16;
  std::vector<uint8_t> output(c.tokens * token_stride * ElementBytes(c.output_dtype), 0xCD);
  std::vector<float> merged_lse(rows);
  kvt_merge_lse_params params{partials.data(), lse.data(),     output.data(), merged_lse.data(),
                              c.partial_dtype, c.output_dtype, c.parts,       c.tokens,
                              c.heads,         c.head_dim,     elements,      rows,
                              token_stride,    c.head_dim};
  const DeviceArray<uint8_t> device_partials(partials), device_output(output);
  const DeviceArray<float> device_lse(lse), device_merged(merged_lse);
  MergeLseReference(params);
  params.partials = device_partials.get();
  params.partial_lse = device_lse.get();
  params.output = device_output.get();
  params.lse = device_merged.get();
  ASSERT_EQ(kvt_merge_lse(&params, nullptr), KVT_KERNEL_OK);

  const std::vector<uint8_t> held = device_output.Get();
  const float tolerance = c.output_dtype == KVT_FP32 ? 1e-5F : 2e-2F;
  for (int64_t i = 0; i < c.tokens * token_stride; ++i) {
    const float expected = LoadElement(output.data(), c.output_dtype, i);
    const float actual = LoadElement(held.data(), c.output_dtype, i);
    if (i % token_stride >= int64_t{c.heads} * c.head_dim) {
      ASSERT_EQ(std::memcmp(&expected, &actual, sizeof(float)), 0) << "wrote between rows";
    } else {
      ASSERT_NEAR(actual, expected, tolerance) << i;
    }
  }
  const std::vector<float> held_lse = device_merged.Get();
  for (int64_t row = 0; row < rows; ++row) {
    if (std::isinf(merged_lse[row])) {
      ASSERT_EQ(held_lse[row], merged_lse[row]);
    } else {
      ASSERT_NEAR(held_lse[row], merged_lse[row], 1e-5F);
    }
  }
}

TEST(MergeLse, MergesPartsOfAnyTypeAndNumber) {
  KVT_SKIP_WITHOUT_GPU();
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 3);
  for (const MergeCase& c :
       {MergeCase{KVT_FP32, KVT_FP32, 1, 3, 5, 64}, MergeCase{KVT_FP32, KVT_BF16, 7, 17, 4, 128},
        MergeCase{KVT_BF16, KVT_BF16, 2, 33, 8, 256}, MergeCase{KVT_FP16, KVT_FP32, 16, 5, 1, 8}}) {
    std::vector<float> lse(int64_t{c.parts} * c.tokens * c.heads);
    for (float& value : lse) value = normal(random);
    ExpectMerged(c, lse);
  }
}

TEST(MergeLse, IgnoresPartsWithoutKeysAndYieldsZeroWhenNoneIsLeft) {
  KVT_SKIP_WITHOUT_GPU();
  const MergeCase c{KVT_FP32, KVT_FP16, 3, 4, 2, 64};
  std::vector<float> lse(3 * 8, -kInfinity);
  lse[0] = 1.0F;                        // row 0: only the first part
  lse[8 + 1] = -200.0F;                 // row 1: only the second, far down
  lse[2] = 90.0F, lse[16 + 2] = 91.0F;  // row 2: exponentials alone would overflow
  ExpectMerged(c, lse);
}

TEST(MergeLse, AveragesThePartsWithInfiniteWeight) {
  KVT_SKIP_WITHOUT_GPU();
  const MergeCase c{KVT_FP32, KVT_FP32, 3, 1, 1, 64};
  ExpectMerged(c, {kInfinity, 0.0F, kInfinity});
}

TEST(MergeLse, ReferenceOfTwoHalvesIsTheSoftmaxOverTheWhole) {
  // Keys 0 and 1 in one part, key 2 in the other; values are 1, 2 and 4.
  const std::vector<double> scores = {0.5, -1.0, 2.0}, values = {1.0, 2.0, 4.0};
  const auto weight = [&](int key) { return std::exp(scores[key]); };
  const double first = weight(0) + weight(1), whole = first + weight(2);
  const auto first_value =
      static_cast<float>((weight(0) * values[0] + weight(1) * values[1]) / first);
  std::vector<float> partials(16, first_value);
  std::fill(partials.begin() + 8, partials.end(), 4.0F);
  const std::vector<float> lse = {static_cast<float>(std::log(first)),
                                  static_cast<float>(scores[2])};
  std::vector<float> output(8);
  float merged_lse = 0;
  MergeLseReference({partials.data(), lse.data(), output.data(), &merged_lse, KVT_FP32, KVT_FP32, 2,
                     1, 1, 8, 8, 1, 8, 8});
  const double expected = (weight(0) + 2 * weight(1) + 4 * weight(2)) / whole;
  for (const float value : output) EXPECT_NEAR(value, expected, 1e-6);
  EXPECT_NEAR(merged_lse, std::log(whole), 1e-6);
}

TEST(CopyBlocks, ReferenceMovesARowToItsPlaceInTheOtherLayout) {
  const Geometry g{2, 2, 3, 16};
  std::vector<uint8_t> pool = RandomBytes(2 * g.block(), 6), engine(2 * g.block());
  auto params = CopyOf(g, BlockFirst(pool.data(), g), LayerFirstHeadsOutside(engine.data(), g, 2));
  const int32_t from = 1, to = 0;
  params.source_blocks = &from;
  params.destination_blocks = &to;
  params.blocks = 1;
  CopyBlocksReference(params);
  // Layer 1, values, token 1, head 2: row 3 * 6 + 1 * 3 + 2 of the block; in the engine's tensor
  // [layer][K, V][block][head][token] it is row 3 * 12 + 2 * 2 + 1.
  EXPECT_EQ(std::memcmp(engine.data() + 41 * 16, pool.data() + g.block() + 23 * 16, 16), 0);
}

TEST(BlockOps, RefuseArgumentsThatMakeNoSense) {
  kvt_copy_blocks_params copy{};
  EXPECT_EQ(kvt_copy_blocks(nullptr, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_copy_blocks(&copy, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  alignas(16) char memory[64];
  kvt_block_list list{memory, 64, 24, nullptr, 1};
  EXPECT_EQ(kvt_fill_blocks(&list, 0, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  uint8_t checksum[16];
  EXPECT_EQ(kvt_checksum_blocks(&list, checksum, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  kvt_merge_lse_params merge{};
  EXPECT_EQ(kvt_merge_lse(&merge, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvtier::kernels
