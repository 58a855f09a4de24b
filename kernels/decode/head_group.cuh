// SPDX-License-Identifier: Apache-2.0
// One warp's running attention of the query heads that share a KV head, slice by slice.
//
// Everything is transposed so that the few query heads take the instruction's narrow side:
//   scores^T [token, head] = K [token, d] * Q^T [d, head]
//   sums^T   [d, head]    += V^T [d, token] * P^T [token, head]
// In fragments of these, thread t of a quad (lane % 4) holds heads 2t and 2t + 1, and lane / 4 the
// row; scores become the right operand of the second product by one matrix transposition.
//
// Over an fp8 cache, elements are converted to fp16 after they are read from shared memory in
// pairs. To let a pair stay together, the columns (d) of an instruction are assigned otherwise than
// in memory; QueryColumn and SumsRow say how.
#pragma once

#include "kernels/decode/kv_ring.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/hopper/shared_memory.cuh"

namespace kvtier::kernels {

template <typename Traits>
class HeadGroup {
 public:
  static constexpr int kHeadTiles = Traits::kHeadTiles;
  static constexpr int kSumTiles = Traits::kHeadDim / 16;

  // Starts a segment, without its queries. Reads no memory.
  __device__ void Begin() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        peak_[n][c] = -INFINITY;
        sum_[n][c] = 0;
      }
#pragma unroll
      for (int tile = 0; tile < kSumTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[tile][n][i] = 0;
      }
    }
  }

  // Reads the segment's queries from global memory. They can be used after FinishQuery.
  __device__ void ReadQuery(const DecodeArguments& arguments, const Segment& segment) {
    const kvt_decode_params& params = arguments.params;
    const auto* const query = static_cast<const uint16_t*>(params.query) +
                              segment.sequence * params.query_sequence_stride +
                              segment.head * arguments.group * params.query_head_stride;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const int head = n * 8 + static_cast<int>(threadIdx.x % 32) / 4;
      const uint16_t* const from = query + head * params.query_head_stride;
#pragma unroll
      for (int step = 0; step < Traits::kQuerySteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          query_[step][n][half] = 0;
          if (head < arguments.group) {
            query_[step][n][half] =
                *reinterpret_cast<const uint32_t*>(from + QueryColumn(step, half));
          }
        }
      }
    }
  }

  // The same from where the ring put them.
  __device__ void ReadSharedQuery(uint32_t shared) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const int head = n * 8 + static_cast<int>(threadIdx.x % 32) / 4;
#pragma unroll
      for (int step = 0; step < Traits::kQuerySteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = QueryColumn(step, half);
          query_[step][n][half] = LoadSharedWord(
              shared + QueryChunkOffset<Traits>(head, column / 8) + (column % 8) * 2);
        }
      }
    }
  }

  // Makes the queries ready: brings them into the type of the product, and reads what scales them.
  __device__ void FinishQuery(const DecodeArguments& arguments, const Segment& segment) {
    score_scale_ = arguments.params.softmax_scale;
    if constexpr (Traits::kFp8Cache) {
      const kvt_scales& scales = arguments.params.kv.key_scales;
      if (!arguments.per_token_scales && scales.values != nullptr) {
        score_scale_ *= scales.values[segment.head * scales.head_stride];
      }
      if (arguments.params.query_dtype != KVT_BF16) return;
#pragma unroll
      for (int step = 0; step < Traits::kQuerySteps; ++step) {
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            query_[step][n][half] = Fp16FromBf16(query_[step][n][half]);
          }
        }
      }
    }
  }

  // Takes in the slice that begins at `token`, which lies in shared memory.
  __device__ void Process(const DecodeArguments& arguments, const Segment& segment, int token,
                          uint32_t slice, uint32_t scales) {
    Scores scores;
    MultiplyKeys(slice, &scores);
    ScaleScores(arguments, scales, &scores);
    const bool whole =
        token >= segment.window_begin && token + Traits::kSliceTokens <= segment.token_end;
    if (!whole) MaskInvisible(segment, token, &scores);
    UpdateMax(scores);
    Weights weights;
    Exponentiate(arguments, scales, scores, &weights);
    MultiplyValues(slice + Traits::kHalfSliceBytes, weights);
  }

  // Makes sum() whole: until then each lane has its own tokens' share.
  __device__ void Finish() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          sum_[n][c] += __shfl_xor_sync(kFullWarp, sum_[n][c], step);
        }
      }
    }
  }

  // The peak of head n * 8 + 2 * (lane % 4) + c.
  __device__ float peak(int n, int c) const { return peak_[n][c]; }
  __device__ float sum(int n, int c) const { return sum_[n][c]; }
  // The value sum of the same head and of column SumsRow(tile, half) of the output.
  __device__ float value_sum(int tile, int n, int half, int c) const {
    return sums_[tile][n][2 * half + c];
  }
  __device__ static int SumsRow(int tile, int half) {
    const int row = (threadIdx.x % 32) / 4;
    return Traits::kFp8Cache ? tile * 16 + 2 * row + half : tile * 16 + 8 * half + row;
  }

 private:
  using Math = typename Traits::Math;
  struct Scores {
    float at[Traits::kRowTiles][kHeadTiles][4];
  };
  struct Weights {
    uint32_t at[Traits::kRowTiles][kHeadTiles][2];
  };

  // The query column that this thread's pair `half` of instruction `step` multiplies.
  __device__ static int QueryColumn(int step, int half) {
    const int t = threadIdx.x % 4;
    return Traits::kFp8Cache ? step * 16 + 4 * t + 2 * half : step * 16 + 2 * t + 8 * half;
  }

  // Two chains of products where there is but one tile of rows: an instruction need not wait for
  // the one before.
  __device__ void MultiplyKeys(uint32_t keys, Scores* scores) const {
    constexpr int kChains = Traits::kRowTiles == 1 ? 2 : 1;
    Scores chains[kChains] = {};
    // Lanes give the rows of four matrices: tokens 0-7, 8-15, both in the first and the second
    // chunk.
    const int lane = threadIdx.x % 32;
    const int row = lane % 16;
    const int chunk = lane / 16;
#pragma unroll
    for (int pair = 0; pair < Traits::kRowChunks / 2; ++pair) {
#pragma unroll
      for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
        uint32_t loaded[4];
        LoadMatrices(keys + ChunkOffset<Traits>(tile * 16 + row, 2 * pair + chunk), loaded);
        if constexpr (Traits::kFp8Cache) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t low = loaded[2 * i];
            const uint32_t high = loaded[2 * i + 1];
            const uint32_t a[4] = {Fp16PairFromE4m3Pair<Traits::kFamily>(low & 0xFFFF),
                                   Fp16PairFromE4m3Pair<Traits::kFamily>(high & 0xFFFF),
                                   Fp16PairFromE4m3Pair<Traits::kFamily>(low >> 16),
                                   Fp16PairFromE4m3Pair<Traits::kFamily>(high >> 16)};
            MultiplyKeyStep(a, 2 * pair + i, chains[i % kChains].at[tile]);
          }
        } else {
          MultiplyKeyStep(loaded, pair, chains[pair % kChains].at[tile]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores->at[tile][n][i] = chains[0].at[tile][n][i];
          if constexpr (kChains == 2) scores->at[tile][n][i] += chains[1].at[tile][n][i];
        }
      }
    }
  }

  __device__ void MultiplyKeyStep(const uint32_t (&a)[4], int step,
                                  float (&scores)[kHeadTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) Math::MultiplyAdd(scores[n], a, query_[step][n]);
  }

  // To logits times log2 e, so that powers of two serve.
  __device__ void ScaleScores(const DecodeArguments& arguments, uint32_t scales,
                              Scores* scores) const {
    const float cap = arguments.params.soft_cap;
    const float to_log2 = cap > 0 ? score_scale_ : score_scale_ * kLog2E;
#pragma unroll
    for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float scale = to_log2;
        if constexpr (Traits::kFp8Cache) {
          if (arguments.per_token_scales) scale *= TokenScale(scales, tile, half);
        }
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) scores->at[tile][n][2 * half + c] *= scale;
        }
      }
    }
    if (cap > 0) CapScores(cap, scores);
  }

  __device__ static void CapScores(float cap, Scores* scores) {
    const float scale = 2.0F * kLog2E / cap;
#pragma unroll
    for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // tanh(x) = 1 - 2 / (exp(2x) + 1)
          const float power = Exp2(scores->at[tile][n][i] * scale);
          scores->at[tile][n][i] = cap * kLog2E * (1.0F - __fdividef(2.0F, power + 1.0F));
        }
      }
    }
  }

  // The scale of the token in this lane's row `half` of tile `tile`.
  __device__ static float TokenScale(uint32_t scales, int tile, int half) {
    return LoadSharedFloat(scales + (tile * 16 + half * 8 + (threadIdx.x % 32) / 4) * 4);
  }

  __device__ static void MaskInvisible(const Segment& segment, int token, Scores* scores) {
#pragma unroll
    for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = token + tile * 16 + half * 8 + (threadIdx.x % 32) / 4;
        const bool seen = at >= segment.window_begin && at < segment.token_end;
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if (!seen) scores->at[tile][n][2 * half + c] = -INFINITY;
          }
        }
      }
    }
  }

  // After the first slices a new largest score is rare, so all lanes vote before they look for it.
  __device__ void UpdateMax(const Scores& scores) {
    float largest[kHeadTiles][2];
    bool raised = false;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        largest[n][c] = scores.at[0][n][c];
#pragma unroll
        for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
          largest[n][c] =
              fmaxf(largest[n][c], fmaxf(scores.at[tile][n][c], scores.at[tile][n][2 + c]));
        }
        raised = raised || largest[n][c] > peak_[n][c];
      }
    }
    if (!__any_sync(kFullWarp, raised)) return;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) UpdateHeadMax(n, c, largest[n][c]);
    }
  }

  __device__ void UpdateHeadMax(int n, int c, float largest) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    const float peak = fmaxf(peak_[n][c], largest);
    // Both are -infinity if no token of this head has counted yet.
    const float shrink = peak == -INFINITY ? 1.0F : Exp2(peak_[n][c] - peak);
    peak_[n][c] = peak;
    sum_[n][c] *= shrink;
#pragma unroll
    for (int tile = 0; tile < kSumTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sums_[tile][n][2 * half + c] *= shrink;
    }
  }

  __device__ void Exponentiate(const DecodeArguments& arguments, uint32_t scales,
                               const Scores& scores, Weights* weights) {
#pragma unroll
    for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float value_scale = 1.0F;
        if constexpr (Traits::kFp8Cache) {
          if (arguments.per_token_scales) {
            value_scale = TokenScale(scales + Traits::kScaleBytes / 2, tile, half);
          }
        }
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
          const float low = Exp2(scores.at[tile][n][2 * half] - peak_[n][0]);
          const float high = Exp2(scores.at[tile][n][2 * half + 1] - peak_[n][1]);
          sum_[n][0] += low;
          sum_[n][1] += high;
          weights->at[tile][n][half] =
              TransposeMatrix(Math::Pack(low * value_scale, high * value_scale));
        }
      }
    }
  }

  __device__ void MultiplyValues(uint32_t values, const Weights& weights) {
    const int lane = threadIdx.x % 32;
    // Rows of four matrices, transposed as they are loaded. 16-bit: tokens 0-7 of the first and the
    // second chunk, then tokens 8-15 of both. fp8: tokens 0-7 and 8-15 of the first chunk, then
    // both of the second.
    const int row = lane % 8 + (Traits::kFp8Cache ? (lane / 8) % 2 : lane / 16) * 8;
    const int chunk = Traits::kFp8Cache ? lane / 16 : (lane / 8) % 2;
#pragma unroll
    for (int pair = 0; pair < Traits::kRowChunks / 2; ++pair) {
#pragma unroll
      for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
        uint32_t loaded[4];
        LoadMatricesTransposed(values + ChunkOffset<Traits>(tile * 16 + row, 2 * pair + chunk),
                               loaded);
        if constexpr (Traits::kFp8Cache) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // Bytes are [token 2t: d, d + 1][token 2t + 1: d, d + 1]; pairs of tokens are wanted.
            const uint32_t low = __byte_perm(loaded[2 * i], 0, 0x3120);
            const uint32_t high = __byte_perm(loaded[2 * i + 1], 0, 0x3120);
            const uint32_t a[4] = {Fp16PairFromE4m3Pair<Traits::kFamily>(low & 0xFFFF),
                                   Fp16PairFromE4m3Pair<Traits::kFamily>(low >> 16),
                                   Fp16PairFromE4m3Pair<Traits::kFamily>(high & 0xFFFF),
                                   Fp16PairFromE4m3Pair<Traits::kFamily>(high >> 16)};
            MultiplyValueStep(a, weights.at[tile], 2 * pair + i);
          }
        } else {
          MultiplyValueStep(loaded, weights.at[tile], pair);
        }
      }
    }
  }

  __device__ void MultiplyValueStep(const uint32_t (&a)[4],
                                    const uint32_t (&weights)[kHeadTiles][2], int sum_tile) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) Math::MultiplyAdd(sums_[sum_tile][n], a, weights[n]);
  }

  uint32_t query_[Traits::kQuerySteps][kHeadTiles][2];
  float sums_[kSumTiles][kHeadTiles][4];
  float peak_[kHeadTiles][2];  // largest score so far, the same in all lanes of a head
  float sum_[kHeadTiles][2];   // of this lane's tokens
  float score_scale_;
};

}  // namespace kvtier::kernels
