// The two consumer warpgroups of an MLA block. Both hold the same 64 heads and half of the output's
// columns each, in registers. The left one multiplies queries with keys, takes the softmax and
// hands its weights to the right one; while that multiplies them with its columns, the left one
// goes on to the next tile's scores.
#pragma once

#include <cstdint>

#include "kernels/append/append_softmax.cuh"
#include "kernels/append/fp16_pair.cuh"
#include "kernels/append/pack_pair.cuh"
#include "kernels/append/wgmma.cuh"
#include "kernels/mla/mla_output.cuh"
#include "kernels/mla/mla_shared.cuh"

namespace kvtier::kernels {

constexpr int kMlaScores = kMlaTileTokens / 2;  // of a thread
constexpr int kMlaWords = kMlaTileTokens / 4;   // its weights in pairs
constexpr int kMlaOutputs = kMlaHalfDim / 2;
constexpr int kMlaNarrowBarrier = 3;

// From lane 0, so that the compiler knows it is the same for the whole warp.
template <int kStages>
__device__ __forceinline__ int UniformStage(const RingCursor<kStages>& cursor) {
  return __shfl_sync(kFullWarp, cursor.stage(), 0);
}

// Likewise; else it would keep one descriptor for each multiplication in registers, and move each
// where the instruction wants it. Only the lower half differs between matrices.
__device__ __forceinline__ uint64_t UniformMatrix(uint64_t descriptor, uint32_t bytes) {
  const uint64_t advanced = wgmma::Advance(descriptor, bytes);
  return (descriptor & 0xFFFFFFFF00000000U) |
         __shfl_sync(kFullWarp, static_cast<uint32_t>(advanced), 0);
}

__device__ __forceinline__ void ArriveWarp(TransactionBarrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.Arrive();
}

__device__ __forceinline__ void Rescale(float (&output)[kMlaOutputs], const float (&factor)[2]) {
  if (!__any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < kMlaOutputs; i += 4) {
    output[i] *= factor[0];
    output[i + 1] *= factor[0];
    output[i + 2] *= factor[1];
    output[i + 3] *= factor[1];
  }
}

__device__ __forceinline__ void Clear(float (&output)[kMlaOutputs]) {
#pragma unroll
  for (int i = 0; i < kMlaOutputs; ++i) output[i] = 0.0f;
}

template <typename Traits>
class MlaLeftConsumer {
 public:
  // `thread`: 0 to 127.
  __device__ MlaLeftConsumer(const MlaArguments& arguments, MlaShared<Traits>& shared, int thread)
      : arguments_(arguments),
        shared_(shared),
        lane_(thread % 32),
        row_(thread / 32 * 16 + thread % 32 / 4) {
    query_ = wgmma::Descriptor(SharedAddress(shared.query), 0, kMlaAtomBytes);
    left_ = wgmma::Descriptor(SharedAddress(shared.left), 0, kMlaLeftGroupBytes);
    right_ = wgmma::Descriptor(SharedAddress(shared.right), 0, kMlaRightGroupBytes);
    values_ = wgmma::Descriptor(SharedAddress(shared.left), kMlaAtomBytes, kMlaLeftGroupBytes);
  }

  // Up to the written result, or part of it.
  __device__ __forceinline__ void Work(const MlaOutput<typename Traits::Output>& to,
                                       const Segment& segment) {
    const float scale = OneScale(arguments_);
    RunningSoftmax<kMlaScores> softmax(arguments_.score_scale * scale);
    float output[kMlaOutputs];
    Clear(output);
    if (MlaTiles(segment) > 0) Accumulate(segment, to.Rows(), softmax, output);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float lse;
      softmax.Finish(r, -INFINITY, factor[r], lse);
      if (lane_ % 4 == 0) to.WriteOwnLse(row_ + 8 * r, lse);
      factor[r] *= ScalesByToken() ? 1.0f / kValueScaleLift : scale;
    }
    shared_.weights_ring.empty[0].Wait(weights_cursor_.filled_parity());
    HandOverFactors(factor);
    Rescale(output, factor);
    to.WriteHalf(row_, 0, output);
  }

 private:
  using Element = typename Traits::Element;
  // Lifts weights times scales out of the range where fp16 loses digits.
  static constexpr float kValueScaleLift = 64.0f;

  // Of all tokens alike.
  __device__ static float OneScale(const MlaArguments& arguments) {
    const bool one = Traits::kFp8 && arguments.scales.values != nullptr;
    return one && arguments.scales_by_token == 0 ? *arguments.scales.values : 1.0f;
  }
  __device__ bool ScalesByToken() const { return Traits::kFp8 && arguments_.scales_by_token != 0; }

  // Multiplies columns with the scales of the tile at hand.
  __device__ __forceinline__ void ScaleColumns(float (&scores)[kMlaScores], float lift) const {
    if constexpr (Traits::kFp8) {
      const float* const scales = shared_.raw.scales[left_tiles_.stage()];
#pragma unroll
      for (int j = 0; j < kMlaScores / 4; ++j) {
        const float2 pair = *reinterpret_cast<const float2*>(scales + 8 * j + 2 * (lane_ % 4));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          scores[4 * j + 2 * r] *= pair.x * lift;
          scores[4 * j + 2 * r + 1] *= pair.y * lift;
        }
      }
    }
  }

  // Of two left stages and one right one, the latter's parity alternates as the former do.
  __device__ uint32_t RightParity() const {
    static_assert(Traits::kLeftStages == 2);
    return Traits::kRightStages == 1 ? left_tiles_.stage() : left_tiles_.parity();
  }

  // scores = queries * keys^T, queued.
  __device__ __forceinline__ void QueueScores(float (&scores)[kMlaScores]) {
    const int left_stage = UniformStage(left_tiles_);
    const int right_stage = Traits::kRightStages == Traits::kLeftStages ? left_stage : 0;
    const uint64_t query = UniformMatrix(query_, 0);
    const uint64_t left = UniformMatrix(left_, left_stage * kMlaLeftBytes);
    const uint64_t right = UniformMatrix(right_, right_stage * kMlaRightBytes);
    shared_.left_ring.full[left_stage].Wait(left_tiles_.parity());
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < kMlaHalfDim / 16; ++step) {
      wgmma::FromShared<Element>(scores, QueryAt(query, step),
                                 wgmma::Advance(left, step / 4 * kMlaAtomBytes + step % 4 * 32),
                                 step > 0);
    }
    shared_.right_ring.full[right_stage].Wait(RightParity());
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < (KVT_MLA_QUERY_DIM - kMlaHalfDim) / 16; ++step) {
      wgmma::FromShared<Element>(scores, QueryAt(query, kMlaHalfDim / 16 + step),
                                 wgmma::Advance(right, step / 4 * kMlaAtomBytes + step % 4 * 32),
                                 1);
    }
    wgmma::Commit();
  }

  __device__ __forceinline__ static uint64_t QueryAt(uint64_t query, int step) {
    return wgmma::Advance(query, step / 4 * kMlaQueryChunkBytes + step % 4 * 32);
  }

  // output += weights * values, queued.
  __device__ __forceinline__ void QueueOutput(float (&output)[kMlaOutputs],
                                              const uint32_t (&weights)[kMlaWords], int stage) {
    const uint64_t values = UniformMatrix(values_, stage * kMlaLeftBytes);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < kMlaTileTokens / 16; ++step) {
      wgmma::FromRegisters<Element>(output, weights + 4 * step,
                                    wgmma::Advance(values, step * 2 * kMlaLeftGroupBytes));
    }
    wgmma::Commit();
  }

  // bf16 to fp16 in place, whatever the swizzle, of so many heads.
  __device__ void NarrowQuery(int heads) {
    const uint32_t begin = SharedAddress(shared_.query) + threadIdx.x * 16;
#pragma unroll 1
    for (int first_row = 0; first_row < heads; first_row += 128 / 8) {
      uint4 own[kMlaQueryChunks];
#pragma unroll
      for (int i = 0; i < kMlaQueryChunks; ++i) {
        own[i] = LoadShared(begin + i * kMlaQueryChunkBytes + first_row * 128);
      }
#pragma unroll
      for (int i = 0; i < kMlaQueryChunks; ++i) {
        StoreShared(begin + i * kMlaQueryChunkBytes + first_row * 128,
                    make_uint4(Fp16FromBf16(own[i].x), Fp16FromBf16(own[i].y),
                               Fp16FromBf16(own[i].z), Fp16FromBf16(own[i].w)));
      }
    }
    FenceAsyncProxy();
    NamedBarrierSync(kMlaNarrowBarrier, 128);
  }

  __device__ __forceinline__ void Accumulate(const Segment& segment, int heads,
                                             RunningSoftmax<kMlaScores>& softmax,
                                             float (&output)[kMlaOutputs]) {
    const int tiles = MlaTiles(segment);
    float scores[kMlaScores];
    float correction[2];
    uint32_t weights[kMlaWords];
    shared_.query_ring.full[0].Wait(query_cursor_.parity());
    if constexpr (Traits::kFp8 && wgmma::kIsBf16<typename Traits::Output>) NarrowQuery(heads);
    QueueScores(scores);
    wgmma::Wait<0>();
    wgmma::Settle(scores);
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = UniformStage(left_tiles_);
      if (ScalesByToken()) ScaleColumns(scores, 1.0f);
      if (tile + 1 == tiles) {
        ArriveWarp(shared_.query_ring.empty[0]);
        query_cursor_.Advance();
        Mask(scores, segment.token_end - segment.token_begin - tile * kMlaTileTokens);
      }
      softmax.Raise(scores, correction);
      softmax.Exponentiate(scores);
      if (ScalesByToken()) ScaleColumns(scores, kValueScaleLift);
#pragma unroll
      for (int i = 0; i < kMlaWords; ++i) {
        weights[i] = PackPair(scores[2 * i], scores[2 * i + 1], wgmma::kIsBf16<Element>);
      }
      shared_.weights_ring.empty[0].Wait(weights_cursor_.filled_parity());
      StoreWeights(weights);
      HandOverFactors(correction);
      Rescale(output, correction);
      QueueOutput(output, weights, stage);
      left_tiles_.Advance();
      // Given back before the next tile is waited for, whose successor needs the place. What that
      // costs the tensor cores in pauses, the right consumer fills.
      wgmma::Wait<0>();
      wgmma::Settle(output);
      ArriveWarp(shared_.left_ring.empty[stage]);
      if (tile + 1 < tiles) {
        QueueScores(scores);
        wgmma::Wait<0>();
        wgmma::Settle(scores);
      }
      ArriveWarp(shared_.turn);
    }
  }

  // Tokens from `existing` on have no weight.
  __device__ __forceinline__ void Mask(float (&scores)[kMlaScores], int existing) const {
#pragma unroll
    for (int i = 0; i < kMlaScores; ++i) {
      if (i / 4 * 8 + 2 * (lane_ % 4) + i % 2 >= existing) scores[i] = -INFINITY;
    }
  }

  // As the left operand of the right consumer's multiplication: rows of 128 bytes, swizzled.
  __device__ __forceinline__ void StoreWeights(const uint32_t (&weights)[kMlaWords]) {
    const uint32_t to = SharedAddress(shared_.weights) + row_ * 128 + lane_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < kMlaTileTokens / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // Rows 8 apart lie in different atoms, at the same place.
        StoreShared(to + r * kMlaAtomBytes + ((j ^ (row_ % 8)) * 16), weights[2 * j + r]);
      }
    }
  }

  // What goes with them, and both are given out.
  __device__ __forceinline__ void HandOverFactors(const float (&factor)[2]) {
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ % 4 == 0) {
      shared_.factors[row_] = factor[0];
      shared_.factors[row_ + 8] = factor[1];
      shared_.weights_ring.full[0].Arrive();
    }
    weights_cursor_.Advance();
  }

  const MlaArguments& arguments_;
  MlaShared<Traits>& shared_;
  int lane_;
  int row_;  // the first of this thread's two
  uint64_t query_;
  uint64_t left_;
  uint64_t right_;
  uint64_t values_;
  RingCursor<1> query_cursor_;
  RingCursor<Traits::kLeftStages> left_tiles_;
  RingCursor<1> weights_cursor_;
};

template <typename Traits>
class MlaRightConsumer {
 public:
  // `thread`: 0 to 127. `waits`: leaves the tensor cores to the left consumer until that is busy
  // with the softmax. Pays where the tensor cores are the limit, else places are given back late.
  __device__ MlaRightConsumer(MlaShared<Traits>& shared, int thread, bool waits)
      : shared_(shared), row_(thread / 32 * 16 + thread % 32 / 4), waits_(waits) {
    weights_ = wgmma::Descriptor(SharedAddress(shared.weights), 0, kMlaAtomBytes);
    values_ = wgmma::Descriptor(SharedAddress(shared.right), kMlaAtomBytes, kMlaRightGroupBytes);
  }

  __device__ __forceinline__ void Work(const MlaOutput<typename Traits::Output>& to,
                                       const Segment& segment) {
    float output[kMlaOutputs];
    float factor[2];
    Clear(output);
    const int tiles = MlaTiles(segment);
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = UniformStage(tiles_);
      TakeFactors(factor);
      Rescale(output, factor);
      if (waits_) {
        shared_.turn.Wait(turn_);
        turn_ ^= 1;
      }
      shared_.right_ring.full[stage].Wait(tiles_.parity());
      const uint64_t weights = UniformMatrix(weights_, 0);
      const uint64_t values = UniformMatrix(values_, stage * kMlaRightBytes);
      wgmma::Fence();
#pragma unroll
      for (int step = 0; step < kMlaTileTokens / 16; ++step) {
        wgmma::FromSharedAlongN<Element>(output, wgmma::Advance(weights, step * 32),
                                         wgmma::Advance(values, step * 2 * kMlaRightGroupBytes));
      }
      wgmma::Commit();
      wgmma::Wait<0>();
      wgmma::Settle(output);
      GiveBackWeights();
      ArriveWarp(shared_.right_ring.empty[stage]);
      tiles_.Advance();
    }
    TakeFactors(factor);
    GiveBackWeights();
    Rescale(output, factor);
    to.WriteHalf(row_, kMlaHalfDim, output);
  }

 private:
  using Element = typename Traits::Element;

  __device__ __forceinline__ void TakeFactors(float (&factor)[2]) {
    shared_.weights_ring.full[0].Wait(weights_cursor_.parity());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float own = LeadsQuad() ? shared_.factors[row_ + 8 * r] : 0.0f;
      factor[r] = __shfl_sync(kFullWarp, own, threadIdx.x % 32 / 4 * 4);
    }
  }

  __device__ __forceinline__ void GiveBackWeights() {
    __syncwarp();
    if (LeadsQuad()) shared_.weights_ring.empty[0].Arrive();
    weights_cursor_.Advance();
  }

  __device__ static bool LeadsQuad() { return threadIdx.x % 4 == 0; }

  MlaShared<Traits>& shared_;
  int row_;
  bool waits_;
  uint32_t turn_ = 0;
  uint64_t weights_;
  uint64_t values_;
  RingCursor<Traits::kRightStages> tiles_;
  RingCursor<1> weights_cursor_;
};

}  // namespace kvtier::kernels
