// SPDX-License-Identifier: Apache-2.0
// A warp's stream of keys and values: slices of its block's segments, several of them on their way
// from global to shared memory at any time.
#pragma once

#include "kernels/decode/decode_schedule.cuh"
#include "kernels/decode/decode_traits.cuh"

namespace kvtier::kernels {

// A warp's slices of a segment: every kDecodeWarps-th, without those before the window.
template <typename Traits>
struct SliceCursor {
  int token;

  __device__ void Begin(const Segment& segment) {
    token = segment.token_begin + (threadIdx.x / 32) * Traits::kSliceTokens;
    SkipInvisible(segment);
  }
  __device__ void Advance(const Segment& segment) {
    token += Traits::kTileTokens;
    SkipInvisible(segment);
  }
  __device__ bool AtEnd(const Segment& segment) const { return token >= segment.token_end; }

 private:
  __device__ void SkipInvisible(const Segment& segment) {
    while (token + Traits::kSliceTokens <= segment.window_begin) token += Traits::kTileTokens;
  }
};

// Shared memory of one warp: kStages stages of [keys | values], and of [key scales | value scales],
// and one segment's queries.
struct WarpRing {
  uint32_t slices;
  uint32_t scales;
  uint32_t query;
};

template <typename Traits>
class KvRing {
 public:
  // Reads block tables and lengths, no keys, values or queries.
  __device__ KvRing(const DecodeArguments& arguments, const WarpRing& ring,
                    const SegmentWalker& walker)
      : ring_(ring), walker_(walker), policy_(EvictFirst()) {
    const int lane = threadIdx.x % 32;
    const int row = lane / Traits::kRowChunks;
    const int chunk = lane % Traits::kRowChunks;
    lane_bytes_ = row * arguments.token_stride_bytes + chunk * 16;
    Prepare(arguments);
  }

  // Queues the next slice's copies into `stage`, or nothing after the last; one group either way.
  __device__ void Queue(const DecodeArguments& arguments, int stage) {
    if (done_) {
      CommitCopies();
      return;
    }
    if constexpr (Traits::kFetchesQuery) {
      // One segment's queries at a time: if the last one's have not been taken, these must wait.
      if (query_due_ && query_sequence_ == kNoSequence) QueueQuery(arguments, segment_);
      query_due_ = false;
    }
    QueueSlice(arguments, stage);
    if constexpr (Traits::kFp8Cache) {
      if (arguments.per_token_scales) QueueScales(arguments, stage);
    }
    CommitCopies();
    ++slice_in_table_;
    cursor_.Advance(segment_);
    Prepare(arguments);
  }

  // Before the segment's queries are read from shared memory, when its first slice has come: sees
  // to it that they are there. They stay until the next slice is queued.
  __device__ void AwaitQuery(const DecodeArguments& arguments, const Segment& segment) {
    if (query_sequence_ != segment.sequence || query_head_ != segment.head) {
      // The ring was more than one segment ahead, as it is where segments are short.
      WaitForCopies<0>();
      __syncwarp();
      QueueQuery(arguments, segment);
      CommitCopies();
      WaitForCopies<0>();
      __syncwarp();
    }
    query_sequence_ = kNoSequence;
  }

 private:
  static constexpr int kNoSequence = -1;

  // Goes on to the next segment of which this warp has a slice, if the present one is at its end,
  // and sees to it that the table's entries for the slice at hand are there.
  __device__ void Prepare(const DecodeArguments& arguments) {
    bool read_table = slice_in_table_ == table_slices_;
    while (cursor_.AtEnd(segment_)) {  // as it is in the empty segment of the beginning
      if (!walker_.Next(arguments.step, &segment_)) {
        done_ = true;
        return;
      }
      cursor_.Begin(segment_);
      read_table = true;
      query_due_ = true;
    }
    if (read_table) ReadTable(arguments);
  }

  // Reads the block table for as many of the coming slices as the warp has lanes for.
  __device__ void ReadTable(const DecodeArguments& arguments) {
    const kvt_decode_params& params = arguments.params;
    const int lane = threadIdx.x % 32;
    const int page_tokens = params.kv.page_tokens;
    // A power of two: 1, 2 or 4.
    const int pages_in_slice = max(1, Traits::kSliceTokens >> arguments.page_shift);
    const int token = cursor_.token + (lane / pages_in_slice) * Traits::kTileTokens +
                      (lane & (pages_in_slice - 1)) * page_tokens;
    const int page = token >> arguments.page_shift;
    const bool seen =
        token < segment_.token_end && ((page + 1) << arguments.page_shift) > segment_.window_begin;
    const int32_t* const table =
        params.sequences.block_table + segment_.sequence * params.sequences.table_stride;
    block_ = seen ? table[page] : 0;
    table_slices_ = 32 / pages_in_slice;
    slice_in_table_ = 0;
  }

  // The block of row `row` of the slice about to be queued; all lanes take part.
  __device__ int BlockOfRow(const DecodeArguments& arguments, int row) const {
    const int pages_in_slice = max(1, Traits::kSliceTokens >> arguments.page_shift);
    const int page = pages_in_slice > 1 ? row >> arguments.page_shift : 0;
    return __shfl_sync(kFullWarp, block_, slice_in_table_ * pages_in_slice + page);
  }

  // Where that row begins in the cache's keys or values.
  __device__ int64_t RowBytes(const DecodeArguments& arguments, int block, int row) const {
    const int in_page = (cursor_.token + row) & (arguments.params.kv.page_tokens - 1);
    return block * arguments.block_stride_bytes + in_page * arguments.token_stride_bytes +
           segment_.head * arguments.head_stride_bytes;
  }

  __device__ bool IsVisible(int row) const {
    return static_cast<uint32_t>(cursor_.token + row - segment_.window_begin) <
           static_cast<uint32_t>(segment_.token_end - segment_.window_begin);
  }

  // Rows beyond the group become zeros.
  __device__ void QueueQuery(const DecodeArguments& arguments, const Segment& segment) {
    constexpr int kChunks = Traits::kHeadDim / 8;
    const kvt_decode_params& params = arguments.params;
    const auto* const query = static_cast<const uint16_t*>(params.query) +
                              segment.sequence * params.query_sequence_stride +
                              segment.head * arguments.group * params.query_head_stride;
#pragma unroll 1
    for (int i = 0; i < Traits::kQueryRows * kChunks; i += 32) {
      const int at = i + static_cast<int>(threadIdx.x % 32);
      const int row = at / kChunks;
      const bool used = row < arguments.group;
      CopyAsync16(ring_.query + QueryChunkOffset<Traits>(row, at % kChunks),
                  query + (used ? row : 0) * params.query_head_stride + (at % kChunks) * 8, used);
    }
    query_sequence_ = segment.sequence;
    query_head_ = segment.head;
  }

  // Rows that are not seen become zeros: what their memory holds may be NaN, and 0 * NaN is NaN.
  __device__ void QueueSlice(const DecodeArguments& arguments, int stage) const {
    const uint32_t keys = ring_.slices + stage * Traits::kStageBytes;
    int64_t tile_bytes[Traits::kRowTiles];  // no page is smaller than a tile's 16 rows
#pragma unroll
    for (int tile = 0; tile < Traits::kRowTiles; ++tile) {
      tile_bytes[tile] =
          RowBytes(arguments, BlockOfRow(arguments, tile * 16), tile * 16) + lane_bytes_;
    }
    CopyRows(arguments, static_cast<const char*>(arguments.params.kv.key), tile_bytes, keys);
    CopyRows(arguments, static_cast<const char*>(arguments.params.kv.value), tile_bytes,
             keys + Traits::kHalfSliceBytes);
  }

  __device__ void CopyRows(const DecodeArguments& arguments, const char* cache,
                           const int64_t (&tile_bytes)[Traits::kRowTiles], uint32_t to) const {
    constexpr int kRowsAtOnce = 32 / Traits::kRowChunks;
    static_assert(kRowsAtOnce >= 1 && 16 % kRowsAtOnce == 0);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Traits::kSliceTokens; i += kRowsAtOnce) {
      const char* const from = cache + tile_bytes[i / 16] + (i % 16) * arguments.token_stride_bytes;
      const int row = i + lane / Traits::kRowChunks;
      CopyAsync16(to + ChunkOffset<Traits>(row, lane % Traits::kRowChunks), from, IsVisible(row),
                  policy_);
    }
  }

  __device__ void QueueScales(const DecodeArguments& arguments, int stage) const {
    const kvt_paged_kv& kv = arguments.params.kv;
    const int lane = threadIdx.x % 32;
    const uint32_t keys = ring_.scales + stage * Traits::kScaleBytes;
    const uint32_t values = keys + Traits::kScaleBytes / 2;
#pragma unroll
    for (int first = 0; first < Traits::kSliceTokens; first += 32) {
      const int row = (first + lane) % Traits::kSliceTokens;
      const int block = BlockOfRow(arguments, row);
      if (first + lane >= Traits::kSliceTokens) continue;  // a slice may have fewer rows than lanes
      const int in_page = (cursor_.token + row) & (kv.page_tokens - 1);
      QueueScale(kv.key_scales, block, in_page, row, keys);
      QueueScale(kv.value_scales, block, in_page, row, values);
    }
  }

  __device__ void QueueScale(const kvt_scales& scales, int block, int in_page, int row,
                             uint32_t to) const {
    if (scales.values == nullptr) {
      StoreShared(to + row * 4, 1.0F);
      return;
    }
    const float* const from = scales.values + block * scales.block_stride +
                              in_page * scales.token_stride + segment_.head * scales.head_stride;
    CopyAsync4(to + row * 4, from, IsVisible(row));
  }

  WarpRing ring_;
  SegmentWalker walker_;
  uint64_t policy_;
  int64_t lane_bytes_ = 0;
  Segment segment_ = {};
  SliceCursor<Traits> cursor_ = {};
  bool done_ = false;
  bool query_due_ = false;            // the segment at hand's queries are to be fetched
  int query_sequence_ = kNoSequence;  // whose queries are in shared memory, or on their way
  int query_head_ = 0;
  int block_ = 0;           // this lane's entry of the block table
  int table_slices_ = 0;    // slices that the lanes' entries serve
  int slice_in_table_ = 0;  // of them, those already queued
};

}  // namespace kvtier::kernels
