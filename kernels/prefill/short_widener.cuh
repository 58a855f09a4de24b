// SPDX-License-Identifier: Apache-2.0
// The warpgroup that widens tiles of an fp8 cache for the kernel for short queries: e4m3 to fp16,
// which holds all its values, from the raw places to those that the consumers multiply from.
#pragma once

#include <cstdint>

#include "kernels/hopper/math.cuh"
#include "kernels/prefill/short_shared.cuh"

namespace kvtier::kernels {

template <typename Traits>
class ShortWidener {
 public:
  // `thread`: of those that widen.
  __device__ ShortWidener(const PrefillPlan& plan, ShortShared<Traits>& shared, int thread)
      : plan_(plan),
        shared_(shared),
        thread_(thread),
        offset_(ChunkOffset<Traits>(thread / kColumns, thread % kColumns)) {}

  __device__ void Run() {
    for (;;) {
      const PrefillItem item = ReceiveItem(shared_, items_);
      if (!item.valid) return;
      const int32_t end = min(item.kv_length, item.end_tile * kShortUnitKeys);
      for (int32_t tile = ShortTiles<Traits>(item) - 1; tile >= 0; --tile) {
        const int32_t first = item.first_tile * kShortUnitKeys + tile * Traits::kKeys;
        WidenTile(end - first);
      }
    }
  }

 private:
  // A thread owns a column of 8 values in every kRowsAtOnce-th row: threads side by side store
  // whole lines of 128 bytes.
  static constexpr int kColumns = Traits::kHeadDim / 8;
  static constexpr int kRowsAtOnce = Traits::kWideners / kColumns;
  static constexpr int kSteps = Traits::kKeys / kRowsAtOnce;
  static constexpr uint32_t kStepBytes = kRowsAtOnce / 8 * Traits::kGroupBytes;
  static_assert(kRowsAtOnce % 8 == 0, "so that the swizzle is the same in every step");

  // Keys, then values, by the same code, which is fetched once.
  __device__ __forceinline__ void WidenTile(int32_t existing) {
    const int raw = raw_.stage(), wide = wide_.stage();
#pragma unroll 1
    for (int of = 0; of < 2; ++of) {
      const bool keys = of == 0;
      auto& raw_ring = keys ? shared_.raw.key_ring : shared_.raw.value_ring;
      auto& wide_ring = keys ? shared_.key_ring : shared_.value_ring;
      wide_ring.empty[wide].Wait(wide_.filled_parity());
      raw_ring.full[raw].Wait(raw_.parity());
      Widen(SharedAddress(keys ? shared_.raw.keys[raw] : shared_.raw.values[raw]),
            SharedAddress(keys ? shared_.keys[wide] : shared_.values[wide]), existing);
      if (plan_.scales_per_token) PassScales(keys, raw, wide);
      FenceAsyncProxy();
      wide_ring.full[wide].Arrive();
      __syncwarp();
      if (thread_ % 32 == 0) raw_ring.empty[raw].Arrive();
    }
    raw_.Advance();
    wide_.Advance();
  }

  // Rows that do not exist become 0: 0 times NaN is NaN.
  __device__ __forceinline__ void Widen(uint32_t from, uint32_t to, int32_t existing) const {
    uint2 raw[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      raw[step] = LoadSharedPair(from + thread_ * 8 + step * (Traits::kWideners * 8));
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool exists = step * kRowsAtOnce + thread_ / kColumns < existing;
      StoreWide(to + offset_ + step * kStepBytes, exists ? raw[step] : uint2{});
    }
  }

  __device__ __forceinline__ void PassScales(bool keys, int raw, int wide) const {
    if (thread_ >= Traits::kKeys) return;
    const kvt_paged_kv& kv = plan_.params.kv;
    auto& tiles = shared_.raw;
    const float* const values = keys ? kv.key_scales.values : kv.value_scales.values;
    const float scale = (keys ? tiles.key_scales : tiles.value_scales)[raw][thread_];
    (keys ? tiles.wide_key_scales : tiles.wide_value_scales)[wide][thread_] =
        (values == nullptr ? 1.0f : scale) * (keys ? 1.0f : kValueScaleLift);
  }

  const PrefillPlan& plan_;
  ShortShared<Traits>& shared_;
  int thread_;
  uint32_t offset_;
  RingCursor<kShortItemSlots> items_;
  RingCursor<Traits::kRawStages> raw_;
  RingCursor<Traits::kStages> wide_;
};

}  // namespace kvtier::kernels
