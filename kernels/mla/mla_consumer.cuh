// SPDX-License-Identifier: Apache-2.0
// The two consumer warpgroups of an MLA block. Both hold the same 64 heads and half of the output's
// columns each, in registers. From every two tiles of tokens each multiplies queries with one,
// takes the softmax and hands the weights to the other; both multiply the weights of both tiles
// with their columns. So one's softmax falls into the other's multiplications.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/online_softmax.cuh"
#include "kernels/attention/score_tile.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/mla/mla_output.cuh"
#include "kernels/mla/mla_shared.cuh"

namespace kvtier::kernels {

constexpr int kMlaMeetBarrier = 1;  // of both consumers

// From lane 0, so that the compiler knows it is the same for the whole warp; else it would keep one
// descriptor for each multiplication in registers, and move each where the instruction wants it.
// Only the lower half differs between matrices.
__device__ __forceinline__ uint64_t Uniform(uint64_t descriptor) {
  return (descriptor & 0xFFFFFFFF00000000U) |
         __shfl_sync(kFullWarp, static_cast<uint32_t>(descriptor), 0);
}

template <typename Output, bool kFp8>
class MlaConsumer {
 public:
  // `thread`: 0 to 127.
  __device__ MlaConsumer(const MlaArguments& arguments, MlaShared& shared, int thread)
      : arguments_(arguments),
        shared_(shared),
        lane_(thread % 32),
        warp_(thread / 32),
        row_(warp_ * 16 + lane_ / 4) {}

  // Up to the written result, or part of it. kOwn: which of a pair's tiles, and which half of the
  // columns, is this warpgroup's.
  template <int kOwn>
  __device__ __forceinline__ void Work(const MlaOutput<Output>& to, const Segment& segment) {
    const float scale = OneScale();
    Softmax softmax(arguments_.score_scale * scale);
    float output[kMlaOutputs];
    Clear(output);
    const int tiles = MlaTiles(segment);
    if (tiles > 0) {
      shared_.query_ring.full[0].Wait(query_parity_);
      query_parity_ ^= 1;
      if constexpr (kFp8 && wgmma::kIsBf16<Output>) NarrowQuery(to.Rows());
      if (tiles <= kOwn) ArriveOncePerWarp(shared_.query_ring.empty[0]);
    }
    float scores[kMlaScores];
    if (kOwn == 0 && tiles > 0) Score<0>(scores);
    for (int tile = 0; tile < tiles; tile += 2) {
      // The tokens of the pair.
      const int tokens = segment.token_end - segment.token_begin - tile * kMlaTileTokens;
      if constexpr (kOwn == 0) {
        WorkFirst(tokens, softmax, scores, output);
      } else {
        WorkSecond(tokens, softmax, output);
      }
    }
    Finish<kOwn>(to, softmax, ScalesByToken() ? 1.0f / kValueScaleLift : scale, output);
  }

 private:
  using Softmax = MlaSoftmax<kMlaScores>;
  // The type that is multiplied: fp16 holds all values of e4m3.
  using Element = std::conditional_t<kFp8, __half, Output>;
  // The scale that all tokens share.
  [[nodiscard]] __device__ float OneScale() const {
    const bool one = kFp8 && arguments_.scales.values != nullptr;
    return one && arguments_.scales_by_token == 0 ? *arguments_.scales.values : 1.0f;
  }
  [[nodiscard]] __device__ bool ScalesByToken() const {
    return kFp8 && arguments_.scales_by_token != 0;
  }

  // As ScaleColumns does it, with the scales of the own tile's tokens. Written out: the compiler
  // orders the instructions of the shared form differently here.
  template <int kOwn>
  __device__ __forceinline__ void ScaleTokens(float (&scores)[kMlaScores], float lift) const {
    const float* const scales = shared_.scales[kOwn];
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

  // bf16 to fp16 in place, whatever the swizzle, of so many heads, by both consumers.
  __device__ void NarrowQuery(int heads) const {
    const uint32_t begin = SharedAddress(shared_.query) + threadIdx.x * 16;
#pragma unroll 1
    for (int first_row = 0; first_row < heads; first_row += kMlaMergeThreads / 8) {
      uint4 own[kMlaChunks];
#pragma unroll
      for (int i = 0; i < kMlaChunks; ++i) {
        own[i] = LoadShared(begin + i * kMlaChunkBytes + first_row * 128);
      }
#pragma unroll
      for (int i = 0; i < kMlaChunks; ++i) {
        StoreShared(begin + i * kMlaChunkBytes + first_row * 128,
                    make_uint4(Fp16FromBf16(own[i].x), Fp16FromBf16(own[i].y),
                               Fp16FromBf16(own[i].z), Fp16FromBf16(own[i].w)));
      }
    }
    FenceAsyncProxy();
    NamedBarrierSync(kMlaMeetBarrier, kMlaMergeThreads);
  }

  // `tokens` are those of the pair at hand and of all that follow.
  __device__ __forceinline__ void WorkFirst(int tokens, Softmax& softmax,
                                            float (&scores)[kMlaScores],
                                            float (&output)[kMlaOutputs]) {
    float row_max[2], factors[2];
    uint32_t weights[kMlaWords];
    const bool both = tokens > kMlaTileTokens;
    if (tokens <= 2 * kMlaTileTokens) ArriveOncePerWarp(shared_.query_ring.empty[0]);
    if (ScalesByToken()) ScaleTokens<0>(scores, 1.0f);
    if (tokens < kMlaTileTokens) Mask(scores, tokens);
    softmax.NewRowMax(scores, row_max);
    softmax.SetRowMax(row_max, factors);
    softmax.Exponentiate(scores);
    if (ScalesByToken()) ScaleTokens<0>(scores, kValueScaleLift);
    PackProbabilities<Element>(scores, weights);
    SendWeights<0>(weights, row_max);
    RescaleSums(output, factors);
    QueueOutput<0, 0>(output, weights);
    if (both) AwaitValues<1, 0>();
    wgmma::Wait<0>();
    wgmma::Settle(output);
    ArriveOncePerWarp(shared_.left_empty[0]);
    tile_parity_[0] ^= 1;
    if (!both) return;
    ReceiveWeights<1>(weights, row_max);
    softmax.SetRowMax(row_max, factors);
    RescaleSums(output, factors);
    QueueOutput<1, 0>(output, weights);
    tile_parity_[1] ^= 1;
    EndPair(tokens > 2 * kMlaTileTokens, scores, output);
  }

  __device__ __forceinline__ void WorkSecond(int tokens, Softmax& softmax,
                                             float (&output)[kMlaOutputs]) {
    float factors[2];
    uint32_t weights[kMlaWords];
    if (tokens <= kMlaTileTokens) {
      QueueFirst(softmax, output);
      EndFirst(output);
      return;
    }
    float scores[kMlaScores];
    if constexpr (kFp8) {
      // Its own tile, still being widened, is late, and the first one's place is waited for.
      QueueFirst(softmax, output);
      EndFirst(output);
      Score<1>(scores);
      WeighSecond(tokens, softmax, scores, weights, factors);
    } else {
      QueueScores<1>(scores);
      QueueFirst(softmax, output);
      wgmma::Wait<1>();
      wgmma::Settle(scores);
      WeighSecond(tokens, softmax, scores, weights, factors);
      EndFirst(output);
    }
    RescaleSums(output, factors);
    QueueOutput<1, 1>(output, weights);
    wgmma::Wait<0>();
    wgmma::Settle(output);
    ArriveOncePerWarp(shared_.right_empty[1]);
    tile_parity_[1] ^= 1;
  }

  // From scores of a pair's second tile to its weights.
  __device__ __forceinline__ void WeighSecond(int tokens, Softmax& softmax,
                                              float (&scores)[kMlaScores],
                                              uint32_t (&weights)[kMlaWords], float (&factors)[2]) {
    float row_max[2];
    if (tokens <= 3 * kMlaTileTokens) ArriveOncePerWarp(shared_.query_ring.empty[0]);
    if (ScalesByToken()) ScaleTokens<1>(scores, 1.0f);
    if (tokens < 2 * kMlaTileTokens) Mask(scores, tokens - kMlaTileTokens);
    softmax.NewRowMax(scores, row_max);
    softmax.SetRowMax(row_max, factors);
    softmax.Exponentiate(scores);
    if (ScalesByToken()) ScaleTokens<1>(scores, kValueScaleLift);
    PackProbabilities<Element>(scores, weights);
    SendWeights<1>(weights, row_max);
  }

  // The second consumer's part of a pair's first tile, queued.
  __device__ __forceinline__ void QueueFirst(Softmax& softmax, float (&output)[kMlaOutputs]) {
    float row_max[2], factors[2];
    uint32_t weights[kMlaWords];
    AwaitValues<0, 1>();
    ReceiveWeights<0>(weights, row_max);
    softmax.SetRowMax(row_max, factors);
    RescaleSums(output, factors);
    QueueOutput<0, 1>(output, weights);
  }

  __device__ __forceinline__ void EndFirst(float (&output)[kMlaOutputs]) {
    wgmma::Wait<0>();
    wgmma::Settle(output);
    ArriveOncePerWarp(shared_.right_empty[0]);
    tile_parity_[0] ^= 1;
  }

  template <int kOwn>
  __device__ __forceinline__ void Score(float (&scores)[kMlaScores]) {
    QueueScores<kOwn>(scores);
    wgmma::Wait<0>();
    wgmma::Settle(scores);
  }

  // Awaits a pair's last multiplication and gives its place back. The next scores follow at once if
  // what they need is there, else afterwards: the place is needed by what they wait for.
  __device__ __forceinline__ void EndPair(bool more, float (&scores)[kMlaScores],
                                          float (&output)[kMlaOutputs]) {
    if (more && NextHasCome()) {
      QueueScores<0>(scores);
      wgmma::Wait<1>();
      wgmma::Settle(output);
      ArriveOncePerWarp(shared_.left_empty[1]);
      wgmma::Wait<0>();
      wgmma::Settle(scores);
    } else {
      wgmma::Wait<0>();
      wgmma::Settle(output);
      ArriveOncePerWarp(shared_.left_empty[1]);
      if (more) Score<0>(scores);
    }
  }

  // Whether the next first tile is there, as far as its halves' last chunks tell.
  __device__ __forceinline__ bool NextHasCome() {
    TransactionBarrier(&chunks)[kMlaChunks] = shared_.full[0];
    const bool come = chunks[kMlaLeftChunks - 1].IsOver(tile_parity_[0]) &&
                      chunks[kMlaChunks - 1].IsOver(tile_parity_[0]);
    return __shfl_sync(kFullWarp, static_cast<int>(come), 0) != 0;
  }

  // scores = queries * keys^T of the own tile, queued.
  template <int kOwn>
  __device__ __forceinline__ void QueueScores(float (&scores)[kMlaScores]) {
    const uint64_t query = Chunks(shared_.query);
    const uint64_t tile = Chunks(shared_.tiles[kOwn]);
#pragma unroll
    for (int chunk = 0; chunk < kMlaChunks; ++chunk) {
      shared_.full[kOwn][chunk].Wait(tile_parity_[kOwn]);
      wgmma::Fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int offset = chunk * kMlaChunkBytes + step * 32;
        wgmma::FromShared<Element>(scores, wgmma::Advance(query, offset),
                                   wgmma::Advance(tile, offset), chunk + step > 0);
      }
    }
    wgmma::Commit();
  }

  // Rows of chunks, contiguous along the summed dimension.
  __device__ __forceinline__ static uint64_t Chunks(const void* chunks) {
    return Uniform(wgmma::Descriptor(SharedAddress(chunks), 0, kMlaAtomBytes));
  }

  // output += weights * values of the stage's tile, queued, of the left (0) or right (1) half.
  template <int kStage, int kHalf>
  __device__ __forceinline__ void QueueOutput(float (&output)[kMlaOutputs],
                                              const uint32_t (&weights)[kMlaWords]) {
    const char* const from = shared_.tiles[kStage][kHalf * kMlaLeftChunks];
    const uint64_t values =
        Uniform(wgmma::Descriptor(SharedAddress(from), kMlaChunkBytes, kMlaAtomBytes));
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < kMlaTileTokens / 16; ++step) {
      wgmma::FromRegisters<Element>(output, weights + 4 * step,
                                    wgmma::Advance(values, step * 2 * kMlaAtomBytes));
    }
    wgmma::Commit();
  }

  // The other consumer has waited for all of its tile, but only a thread that waits itself sees the
  // copy engine's writes.
  template <int kStage, int kHalf>
  __device__ __forceinline__ void AwaitValues() {
#pragma unroll
    for (int i = 0; i < kMlaLeftChunks; ++i) {
      shared_.full[kStage][kHalf * kMlaLeftChunks + i].Wait(tile_parity_[kStage]);
    }
  }

  __device__ __forceinline__ static void RescaleSums(float (&output)[kMlaOutputs],
                                                     const float (&factors)[2]) {
    if (NeedsRescale(factors)) RescaleRows(output, factors);
  }

  // Tokens from `existing` on have no weight.
  __device__ __forceinline__ void Mask(float (&scores)[kMlaScores], int existing) const {
#pragma unroll
    for (int i = 0; i < kMlaScores; ++i) {
      if (i / 4 * 8 + 2 * (lane_ % 4) + i % 2 >= existing) scores[i] = -INFINITY;
    }
  }

  // Where this lane names a row of four matrices of weights, 8 by 8; the first of so many steps.
  __device__ __forceinline__ uint32_t WeightsRow(int step) const {
    const int row = lane_ % 8, below = lane_ / 8 % 2, right = lane_ / 16;
    return SharedAddress(shared_.weights) + (warp_ * 2 + below) * kMlaAtomBytes + row * 128 +
           ((2 * step + right) ^ row) * 16;
  }

  // Weights as registers of the other's multiplication.
  template <int kOwn>
  __device__ __forceinline__ void SendWeights(const uint32_t (&weights)[kMlaWords],
                                              const float (&row_max)[2]) {
#pragma unroll
    for (int i = 0; i < kMlaWords / 4; ++i) {
      StoreMatrices(WeightsRow(i), make_uint4(weights[4 * i], weights[4 * i + 1],
                                              weights[4 * i + 2], weights[4 * i + 3]));
    }
    __syncwarp();
    if (LeadsQuad()) {
      shared_.row_max[kOwn][row_] = row_max[0];
      shared_.row_max[kOwn][row_ + 8] = row_max[1];
      shared_.weights_full[kOwn][warp_].Arrive();
    }
  }

  // Waits for the other's weights. A warp takes the weights that the other's same warp has given.
  template <int kOther>
  __device__ __forceinline__ void ReceiveWeights(uint32_t (&weights)[kMlaWords],
                                                 float (&row_max)[2]) {
    shared_.weights_full[kOther][warp_].Wait(tile_parity_[kOther]);
#pragma unroll
    for (int i = 0; i < kMlaWords / 4; ++i) {
      LoadMatrices(WeightsRow(i), weights + 4 * i);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float own = LeadsQuad() ? shared_.row_max[kOther][row_ + 8 * r] : 0.0f;
      row_max[r] = __shfl_sync(kFullWarp, own, lane_ / 4 * 4);
    }
  }

  template <int kOwn>
  __device__ __forceinline__ void Finish(const MlaOutput<Output>& to, const Softmax& softmax,
                                         float value_scale, float (&output)[kMlaOutputs]) {
    float own[2], factors[2];
    // Once they have met, the sums of the segment before are no longer read.
    NamedBarrierSync(kMlaMeetBarrier, kMlaMergeThreads);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own[r] = softmax.Sum(r);
      if (LeadsQuad()) shared_.sums[kOwn][row_ + 8 * r] = own[r];
    }
    NamedBarrierSync(kMlaMeetBarrier, kMlaMergeThreads);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float lse;
      const float total = own[r] + shared_.sums[1 - kOwn][row_ + 8 * r];
      softmax.Finish(r, total, factors[r], lse);
      factors[r] *= value_scale;
      if (kOwn == 0 && LeadsQuad()) to.WriteOwnLse(row_ + 8 * r, lse);
    }
    RescaleSums(output, factors);
    to.WriteHalf(row_, kOwn * kMlaHalfDim, output);
  }

  __device__ bool LeadsQuad() const { return lane_ % 4 == 0; }

  const MlaArguments& arguments_;
  MlaShared& shared_;
  int lane_;
  int warp_;
  int row_;  // the first of this thread's two
  uint32_t query_parity_ = 0;
  uint32_t tile_parity_[2] = {0, 0};  // of the stages, and of all that comes once for each tile
};

}  // namespace kvtier::kernels
