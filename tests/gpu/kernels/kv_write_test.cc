// SPDX-License-Identifier: Apache-2.0
// KV writes on the device, to the bit against their reference and against the unfused path.
#include "kvtier/kv_write.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/reference/kv_write_reference.h"
#include "kernels/reference/number_format.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/gpu/kernels/graph_replay.h"
#include "tests/gpu/kernels/row_order.h"

namespace kvtier::kernels {
namespace {

constexpr int32_t kMaxPosition = 5000;

enum class Scales { kNone, kPerTensor, kPerHead, kPerToken };

struct WriteCase {
  kvt_dtype dtype = KVT_BF16;
  kvt_dtype cache_dtype = KVT_BF16;
  kvt_rope_style rope = KVT_ROPE_NONE;
  int32_t rotary_dim = 128;
  int32_t head_dim = 128;
  int32_t kv_heads = 8;
  int32_t query_heads = 0;  // 0: no queries
  int32_t page = 16;
  int32_t tokens = 37;
  Scales scales = Scales::kNone;
  bool dynamic_scales = false;
  bool tables_settled = false;
  bool in_place = false;  // queries turned where they are
  RowOrder rows = RowOrder::kTokenHead;
  int32_t blocks = 12;  // times the page: not a multiple of 7
};

// Everything a write reads and writes, in host memory.
struct WriteMemory {
  explicit WriteMemory(const WriteCase& c) : write_case(c) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 2);
    // Rows lie apart by more than they are long.
    row = (c.kv_heads + c.query_heads) * c.head_dim + 16;
    inputs.resize(int64_t{c.tokens} * (row + c.kv_heads * c.head_dim));
    for (size_t i = 0; i < inputs.size(); ++i) {
      StoreElement(inputs.data(), c.dtype, static_cast<int64_t>(i), normal(random));
    }
    query_output.assign(int64_t{c.tokens} * c.query_heads * c.head_dim, 0xCDCD);
    cos_sin.resize(int64_t{kMaxPosition} * c.rotary_dim);
    for (int32_t p = 0; p < kMaxPosition; ++p) {
      for (int32_t i = 0; i < c.rotary_dim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / c.rotary_dim);
        cos_sin[p * c.rotary_dim + i] = static_cast<float>(std::cos(angle));
        cos_sin[p * c.rotary_dim + c.rotary_dim / 2 + i] = static_cast<float>(std::sin(angle));
      }
    }
    cache.assign(c.blocks * BlockBytes(), 0xA5);
    scales.resize(2 * int64_t{c.blocks} * c.page * c.kv_heads);
    for (float& scale : scales) scale = 0.01F + 0.001F * static_cast<float>(random() % 64);
    for (int32_t t = 0; t < c.tokens; ++t) {
      positions.push_back(static_cast<int32_t>(random() % kMaxPosition));
      // Every third token is padding; the others scatter over the pool without meeting.
      slots.push_back(t % 3 == 2 ? -1 : (t * 7) % (c.blocks * c.page));
    }
  }

  [[nodiscard]] int64_t BlockBytes() const {
    return int64_t{2} * write_case.page * write_case.kv_heads * write_case.head_dim *
           static_cast<int64_t>(ElementBytes(write_case.cache_dtype));
  }

  WriteCase write_case;
  int64_t row = 0;
  std::vector<uint16_t> inputs;  // rows of [query, key, gap], then the values
  std::vector<uint16_t> query_output;
  std::vector<float> cos_sin;
  std::vector<uint8_t> cache;
  std::vector<float> scales;  // of keys, then of values
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

struct Pointers {
  uint16_t* inputs;
  uint16_t* query_output;
  const float* cos_sin;
  uint8_t* cache;
  float* scales;
  const int32_t* positions;
  const int64_t* slots;
};

kvt_scales ScalesOf(const WriteCase& c, float* values) {
  switch (c.scales) {
    case Scales::kNone:
      return {};
    case Scales::kPerTensor:
      return {values, 0, 0, 0};
    case Scales::kPerHead:
      return {values, 0, 0, 1};
    case Scales::kPerToken:
      return {values, int64_t{c.page} * c.kv_heads, c.kv_heads, 1};
  }
  return {};
}

kvt_kv_write_params Params(const WriteMemory& m, const Pointers& at) {
  const WriteCase& c = m.write_case;
  kvt_kv_write_params p{};
  p.dtype = c.dtype;
  p.tokens = c.tokens;
  p.query_heads = c.query_heads;
  if (c.query_heads > 0) p.query = at.inputs, p.query_output = at.query_output;
  p.key = at.inputs + c.query_heads * c.head_dim;
  p.value = at.inputs + c.tokens * m.row;
  p.query_token_stride = p.key_token_stride = m.row;
  p.query_head_stride = p.key_head_stride = p.value_head_stride = c.head_dim;
  p.value_token_stride = int64_t{c.kv_heads} * c.head_dim;
  p.query_output_token_stride = int64_t{c.query_heads} * c.head_dim;
  p.query_output_head_stride = c.head_dim;
  if (c.in_place) p.query_output = at.inputs, p.query_output_token_stride = m.row;
  p.slot_mapping = at.slots;
  p.rope = {c.rope, c.rotary_dim, at.positions, at.cos_sin};
  const int64_t slice = int64_t{c.page} * c.kv_heads * c.head_dim;
  p.cache.key = at.cache;
  const RowLayout rows = RowLayout::Of(c.rows, c.page, c.kv_heads, c.head_dim);
  p.cache.value = at.cache + rows.value_offset * static_cast<int64_t>(ElementBytes(c.cache_dtype));
  p.cache.dtype = c.cache_dtype;
  p.cache.kv_heads = c.kv_heads;
  p.cache.head_dim = c.head_dim;
  p.cache.page_tokens = c.page;
  p.cache.block_stride = 2 * slice;
  p.cache.token_stride = rows.token_stride;
  p.cache.head_stride = rows.head_stride;
  p.cache.key_scales = ScalesOf(c, at.scales);
  p.cache.value_scales = ScalesOf(c, at.scales + int64_t{c.blocks} * c.page * c.kv_heads);
  p.dynamic_scales = c.dynamic_scales ? 1 : 0;
  p.tables_settled = c.tables_settled ? 1 : 0;
  return p;
}

// The device's copies of a WriteMemory.
struct WriteDevice {
  explicit WriteDevice(const WriteMemory& m)
      : inputs(m.inputs),
        query_output(m.query_output),
        cos_sin(m.cos_sin),
        cache(m.cache),
        scales(m.scales),
        positions(m.positions),
        slots(m.slots) {}
  [[nodiscard]] Pointers pointers() const {
    return {inputs.get(), query_output.get(), cos_sin.get(), cache.get(),
            scales.get(), positions.get(),    slots.get()};
  }
  DeviceArray<uint16_t> inputs, query_output;
  DeviceArray<float> cos_sin;
  DeviceArray<uint8_t> cache;
  DeviceArray<float> scales;
  DeviceArray<int32_t> positions;
  DeviceArray<int64_t> slots;
};

kvt_kv_write_params OnHost(WriteMemory* m) {
  return Params(*m, {m->inputs.data(), m->query_output.data(), m->cos_sin.data(), m->cache.data(),
                     m->scales.data(), m->positions.data(), m->slots.data()});
}

void ExpectSameBytesAsReference(const WriteCase& c) {
  WriteMemory memory(c);
  const WriteDevice device(memory);
  const kvt_kv_write_params on_device = Params(memory, device.pointers());
  ASSERT_EQ(kvt_kv_write(&on_device, nullptr), KVT_KERNEL_OK);
  KvWriteReference(OnHost(&memory));
  EXPECT_TRUE(device.cache.Get() == memory.cache);
  EXPECT_TRUE(device.scales.Get() == memory.scales);
  EXPECT_TRUE(device.query_output.Get() == memory.query_output);
  EXPECT_TRUE(device.inputs.Get() == memory.inputs);
}

TEST(KvWrite, CopiesRowsIntoTheirSlotsAndLeavesEveryOtherByteAlone) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t page : {16, 64}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      ExpectSameBytesAsReference({.rotary_dim = 64, .head_dim = head_dim, .page = page});
    }
  }
}

TEST(KvWrite, IsRightForEveryNumberOfTokensAndHeads) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t tokens : {1, 5, 17, 37, 127, 129, 577, 1328, 2011}) {
    SCOPED_TRACE(tokens);
    ExpectSameBytesAsReference(
        {.rope = KVT_ROPE_NEOX, .kv_heads = 2, .query_heads = 8, .tokens = tokens, .blocks = 128});
  }
  struct Heads {
    int32_t query, kv;
  };
  for (const Heads heads :
       {Heads{4, 4}, Heads{8, 2}, Heads{32, 8}, Heads{40, 40}, Heads{64, 8}, Heads{32, 4}}) {
    SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv);
    for (const kvt_dtype cache : {KVT_BF16, KVT_FP8_E4M3}) {
      ExpectSameBytesAsReference({.cache_dtype = cache,
                                  .rope = KVT_ROPE_GPTJ,
                                  .kv_heads = heads.kv,
                                  .query_heads = heads.query});
    }
  }
}

TEST(KvWrite, WritesOtherLayouts) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype cache : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int32_t page : {16, 32, 128, 256}) {
      for (const RowOrder rows : {RowOrder::kHeadToken, RowOrder::kInterleaved}) {
        ExpectSameBytesAsReference({.cache_dtype = cache, .page = page, .rows = rows});
      }
    }
  }
}

TEST(KvWrite, WritesNothingForNoTokensOrNoSlots) {
  KVT_SKIP_WITHOUT_GPU();
  WriteMemory memory(WriteCase{});
  memory.slots.assign(memory.slots.size(), -1);
  const WriteDevice device(memory);
  kvt_kv_write_params params = Params(memory, device.pointers());
  ASSERT_EQ(kvt_kv_write(&params, nullptr), KVT_KERNEL_OK);
  params.tokens = 0;
  ASSERT_EQ(kvt_kv_write(&params, nullptr), KVT_KERNEL_OK);
  EXPECT_TRUE(device.cache.Get() == memory.cache);
}

TEST(KvWrite, ReachesBlocksBeyondTwoToTheThirtyFirstElements) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype dtype : {KVT_BF16, KVT_FP8_E4M3}) {
    WriteMemory memory({.cache_dtype = dtype});
    const WriteDevice device(memory);
    const int64_t element = static_cast<int64_t>(ElementBytes(dtype));
    const int64_t stride = int64_t{1} << 28;  // of 12 blocks
    const DeviceArray<uint8_t> far(12 * stride * element);
    kvt_kv_write_params params = Params(memory, device.pointers());
    const int64_t slice = params.cache.block_stride / 2;
    params.cache.key = far.get();
    params.cache.value = far.get() + slice * element;
    params.cache.block_stride = stride;
    for (int block = 0; block < 12; ++block) {
      ASSERT_EQ(cudaMemset(far.get() + block * stride * element, 0xA5, memory.BlockBytes()),
                cudaSuccess);
    }
    ASSERT_EQ(kvt_kv_write(&params, nullptr), KVT_KERNEL_OK);
    KvWriteReference(OnHost(&memory));
    std::vector<uint8_t> seen(memory.BlockBytes());
    for (int block = 0; block < 12; ++block) {
      ASSERT_EQ(cudaMemcpy(seen.data(), far.get() + block * stride * element, seen.size(),
                           cudaMemcpyDefault),
                cudaSuccess);
      EXPECT_EQ(std::memcmp(seen.data(), &memory.cache[block * seen.size()], seen.size()), 0)
          << block;
    }
  }
}

TEST(KvWrite, ReplaysOneGraphForOtherSlots) {
  KVT_SKIP_WITHOUT_GPU();
  WriteMemory memory({.rope = KVT_ROPE_NEOX});
  WriteDevice device(memory);
  const kvt_kv_write_params params = Params(memory, device.pointers());
  GraphReplay graph(
      [&](cudaStream_t stream) { EXPECT_EQ(kvt_kv_write(&params, stream), KVT_KERNEL_OK); });
  for (int replay = 0; replay < 3; ++replay) {
    for (size_t t = 0; t < memory.slots.size(); ++t) {
      memory.slots[t] = (t + replay) % 5 == 0 ? -1 : static_cast<int64_t>(5 * t + replay);
      memory.positions[t] = static_cast<int32_t>(100 * replay + t);
    }
    device.slots.Set(memory.slots);
    device.positions.Set(memory.positions);
    graph.Launch();
    KvWriteReference(OnHost(&memory));
    EXPECT_TRUE(device.cache.Get() == memory.cache) << replay;
  }
}

TEST(KvWrite, TurnsKeysAndQueriesInBothRopeStyles) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_rope_style style : {KVT_ROPE_NEOX, KVT_ROPE_GPTJ}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP16}) {
      WriteCase c{.dtype = dtype, .cache_dtype = dtype, .rope = style, .query_heads = 5};
      ExpectSameBytesAsReference(c);
      c.rotary_dim = 32;  // the rest of the head stays
      ExpectSameBytesAsReference(c);
      c.head_dim = 64, c.kv_heads = 3, c.query_heads = 6, c.tokens = 129;
      ExpectSameBytesAsReference(c);
    }
  }
}

TEST(KvWrite, TurnsQueriesWhereTheyAre) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t tokens : {37, 1500}) {
    ExpectSameBytesAsReference({.cache_dtype = KVT_FP8_E4M3,
                                .rope = KVT_ROPE_NEOX,
                                .query_heads = 31,
                                .tokens = tokens,
                                .in_place = true,
                                .blocks = 96});
  }
}

TEST(KvWrite, QuantisesWithScalesOfEveryGranularity) {
  KVT_SKIP_WITHOUT_GPU();
  for (const Scales scales :
       {Scales::kNone, Scales::kPerTensor, Scales::kPerHead, Scales::kPerToken}) {
    ExpectSameBytesAsReference(
        {.cache_dtype = KVT_FP8_E4M3, .rope = KVT_ROPE_NEOX, .scales = scales});
    ExpectSameBytesAsReference({.dtype = KVT_FP16,
                                .cache_dtype = KVT_FP8_E4M3,
                                .rope = KVT_ROPE_GPTJ,
                                .query_heads = 2,
                                .scales = scales});
  }
}

TEST(KvWrite, FindsTheScaleOfEachTokenAndHead) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t head_dim : {64, 128, 256}) {
    ExpectSameBytesAsReference({.cache_dtype = KVT_FP8_E4M3,
                                .rope = KVT_ROPE_NEOX,
                                .rotary_dim = 64,
                                .head_dim = head_dim,
                                .kv_heads = 5,
                                .scales = Scales::kPerToken,
                                .dynamic_scales = true});
  }
}

// So many tokens that a thread takes several heads, in numbers that do not come out even.
TEST(KvWrite, WritesStepsThatFillTheDevice) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_rope_style style : {KVT_ROPE_NONE, KVT_ROPE_NEOX, KVT_ROPE_GPTJ}) {
    for (const Scales scales : {Scales::kNone, Scales::kPerHead, Scales::kPerToken}) {
      SCOPED_TRACE(testing::Message() << "style " << style << " scales " << int(scales));
      const bool fp8 = scales != Scales::kNone;
      WriteCase c{.cache_dtype = fp8 ? KVT_FP8_E4M3 : KVT_BF16,
                  .rope = style,
                  .rotary_dim = 96,
                  .kv_heads = 5,
                  .query_heads = 7,
                  .page = 256,
                  .tokens = 2900,
                  .scales = scales,
                  .tables_settled = scales != Scales::kPerHead};
      ExpectSameBytesAsReference(c);
      c.dynamic_scales = scales == Scales::kPerToken;
      if (c.dynamic_scales) ExpectSameBytesAsReference(c);
    }
  }
}

TEST(KvWrite, GivesTheBytesOfTheUnfusedPath) {
  KVT_SKIP_WITHOUT_GPU();
  const WriteCase fused_case{
      .cache_dtype = KVT_FP8_E4M3, .rope = KVT_ROPE_NEOX, .scales = Scales::kPerHead};
  const WriteMemory memory(fused_case);
  const WriteDevice fused(memory), unfused(memory);
  const kvt_kv_write_params at_once = Params(memory, fused.pointers());
  ASSERT_EQ(kvt_kv_write(&at_once, nullptr), KVT_KERNEL_OK);

  // First the rope alone, with the keys in the queries' place, then the write alone.
  kvt_kv_write_params turn = Params(memory, unfused.pointers());
  const DeviceArray<uint16_t> turned(int64_t{turn.tokens} * turn.cache.kv_heads * 128);
  turn.query = turn.key;
  turn.query_heads = turn.cache.kv_heads;
  turn.query_output = turned.get();
  turn.query_token_stride = turn.key_token_stride;
  turn.query_output_token_stride = int64_t{turn.cache.kv_heads} * 128;
  const DeviceArray<int64_t> nowhere(std::vector<int64_t>(turn.tokens, -1));
  turn.slot_mapping = nowhere.get();
  ASSERT_EQ(kvt_kv_write(&turn, nullptr), KVT_KERNEL_OK);
  kvt_kv_write_params write = Params(memory, unfused.pointers());
  write.key = turned.get();
  write.key_token_stride = turn.query_output_token_stride;
  write.rope.style = KVT_ROPE_NONE;
  ASSERT_EQ(kvt_kv_write(&write, nullptr), KVT_KERNEL_OK);
  EXPECT_TRUE(fused.cache.Get() == unfused.cache.Get());
}

TEST(KvWrite, ReferenceTurnsByTheAngleOfThePosition) {
  WriteMemory memory({.rope = KVT_ROPE_GPTJ, .tokens = 1});
  memory.positions[0] = 1;
  KvWriteReference(OnHost(&memory));
  const double a = FloatFromBf16(memory.inputs[0]), b = FloatFromBf16(memory.inputs[1]);
  const double expected = a * std::cos(1.0) - b * std::sin(1.0);
  EXPECT_NEAR(LoadElement(memory.cache.data(), KVT_BF16, 0), expected,
              std::fabs(expected) / 128 + 1e-3);
}

TEST(KvWrite, RefusesWhatMakesNoSense) {
  EXPECT_EQ(kvt_kv_write(nullptr, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  const WriteMemory memory(WriteCase{});
  kvt_kv_write_params p = Params(memory, {});
  EXPECT_EQ(kvt_kv_write(&p, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvtier::kernels
