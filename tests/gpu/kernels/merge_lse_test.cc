// SPDX-License-Identifier: Apache-2.0
// The merge of partial results on the device against its reference.
#include "kvtier/merge_lse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/reference/number_format.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/gpu/kernels/merge_lse_reference.h"

namespace kvtier::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
    } else if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << i;
    } else {
      ASSERT_NEAR(actual, expected, tolerance) << i;
    }
  }
  const std::vector<float> held_lse = device_merged.Get();
  for (int64_t row = 0; row < rows; ++row) {
    if (std::isinf(merged_lse[row])) {
      ASSERT_EQ(held_lse[row], merged_lse[row]);
    } else if (std::isnan(merged_lse[row])) {
      ASSERT_TRUE(std::isnan(held_lse[row])) << row;
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

// Row 0: all parts; row 1: one, the others without keys; row 2: one of them; row 3: none.
TEST(MergeLse, GivesNanWhereAnLseIs) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t parts : {2, 10, 20}) {
    SCOPED_TRACE(parts);
    std::vector<float> lse(parts * 4, -kInfinity);
    for (int32_t part = 0; part < parts; ++part) {
      lse[part * 4] = NAN;
      lse[part * 4 + 2] = lse[part * 4 + 3] = 1.0F;
    }
    lse[(parts - 1) * 4 + 1] = lse[(parts - 1) * 4 + 2] = NAN;
    ExpectMerged({KVT_FP32, KVT_FP32, parts, 4, 1, 64}, lse);
    ExpectMerged({KVT_BF16, KVT_BF16, parts, 4, 1, 64}, lse);
  }
}

TEST(MergeLse, DoesNotTakeAnEarlierErrorOfTheCallersForItsOwn) {
  KVT_SKIP_WITHOUT_GPU();
  void* too_much = nullptr;
  ASSERT_EQ(cudaMalloc(&too_much, size_t{1} << 60), cudaErrorMemoryAllocation);
  ExpectMerged({KVT_FP32, KVT_FP32, 1, 1, 1, 64}, {0.0F});
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation) << "it is the caller's to take";
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

}  // namespace
}  // namespace kvtier::kernels
