// Who does what: the step's work as one line of units, cut into equal chunks, one for each block.
//
// A unit is 1 << unit_shift tokens of one (sequence, KV head) pair. Units are in the order of
// sequence, head, token; an empty sequence has one unit, so that someone writes its zeros. Every
// block computes the cut from the lengths alone: there is no plan that could be stale.
#pragma once

#include "kernels/decode/decode_arguments.h"
#include "kernels/decode/ptx.cuh"

namespace kvtier::kernels {

// One sequence's tokens that are seen, and how many units they make in each head.
struct SequenceSpan {
  int length;
  int window_begin;
  int first_unit;
  int units;
};

__device__ inline SequenceSpan SpanOf(const DecodeArguments& arguments, int sequence) {
  const kvt_decode_params& params = arguments.params;
  SequenceSpan span;
  // Lengths beyond the promised maximum would pass the workspace's end.
  span.length = min(max(params.sequences.kv_lengths[sequence], 0), params.sequences.max_kv_length);
  span.window_begin = params.window_tokens > 0 ? max(0, span.length - params.window_tokens) : 0;
  span.first_unit = span.window_begin >> arguments.unit_shift;
  const int last = (span.length + (1 << arguments.unit_shift) - 1) >> arguments.unit_shift;
  span.units = max(1, last - span.first_unit);
  return span;
}

// A run of units of one pair that one block works off, and the parts that the pair is cut into.
struct Segment {
  int sequence;
  int head;
  int token_begin;
  int token_end;  // at most the sequence's length
  int window_begin;
  int parts;       // chunks, or fixed cuts, that share the pair
  int own_slot;    // where this part goes in the workspace, if parts > 1
  int first_slot;  // where the pair's first part goes
  int slot_step;   // the second part goes to the next slot, each further one so many slots on
};

// A block's chunk, segment by segment. Copies of a walker walk independently.
class SegmentWalker {
 public:
  __device__ SegmentWalker(const DecodeArguments& arguments, int sequence, int sequence_begin,
                           int begin, int end, int chunk)
      : sequence_(sequence),
        sequence_begin_(sequence_begin),
        at_(begin),
        end_(end),
        chunk_(chunk),
        span_(SpanOf(arguments, sequence)) {}

  // False at the end.
  __device__ bool Next(const DecodeArguments& arguments, Segment* segment) {
    if (at_ >= end_) return false;
    const int heads = arguments.params.kv.kv_heads;
    while (at_ >= sequence_begin_ + heads * span_.units) {
      sequence_begin_ += heads * span_.units;
      span_ = SpanOf(arguments, ++sequence_);
    }
    const bool fixed = arguments.params.split_tokens > 0;
    segment->sequence = sequence_;
    segment->head = (at_ - sequence_begin_) / span_.units;
    const int pair_begin = sequence_begin_ + segment->head * span_.units;
    const int unit = at_ - pair_begin;
    const int units = fixed ? 1 : min(span_.units - unit, end_ - at_);
    segment->token_begin = (span_.first_unit + unit) << arguments.unit_shift;
    segment->token_end = min(span_.length, segment->token_begin + (units << arguments.unit_shift));
    segment->window_begin = span_.window_begin;
    if (fixed) {
      NumberFixedParts(pair_begin, segment);
    } else {
      NumberChunkParts(pair_begin, segment);
    }
    at_ += units;
    return true;
  }

 private:
  // Every unit is a part; its slot is its place in line.
  __device__ void NumberFixedParts(int pair_begin, Segment* segment) const {
    segment->parts = span_.units;
    segment->own_slot = at_;
    segment->first_slot = pair_begin;
    segment->slot_step = 1;
  }

  // A block has at most two parts of cut pairs: one at its chunk's begin, which another block began
  // (slot 2 * block), and one at its end, which another goes on with (slot 2 * block + 1).
  __device__ void NumberChunkParts(int pair_begin, Segment* segment) const {
    const int first = pair_begin / chunk_;
    const int last = (pair_begin + span_.units - 1) / chunk_;
    const int block = blockIdx.x;
    segment->parts = last - first + 1;
    segment->own_slot = block == first ? 2 * block + 1 : 2 * block;
    segment->first_slot = 2 * first + 1;
    segment->slot_step = 2;
  }

  int sequence_;
  int sequence_begin_;  // the place in line of the sequence's first unit
  int at_;
  int end_;
  int chunk_;
  SequenceSpan span_;
};

__device__ inline int InclusiveWarpSum(int value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

// Shared memory of ShareOut.
struct ScheduleScratch {
  int warp_units[kDecodeWarps];
  int sequence;
  int sequence_begin;
};

// This block's chunk, for all threads of the block alike. Called once, by all.
__device__ inline SegmentWalker ShareOut(const DecodeArguments& arguments,
                                         ScheduleScratch* scratch) {
  const int sequences = arguments.params.sequences.sequences;
  const int heads = arguments.params.kv.kv_heads;
  const int share = (sequences + kDecodeThreads - 1) / kDecodeThreads;
  const int first = min(sequences, static_cast<int>(threadIdx.x) * share);
  const int last = min(sequences, first + share);
  int units = 0;
  for (int s = first; s < last; ++s) units += SpanOf(arguments, s).units;
  const int through = InclusiveWarpSum(units);
  if (threadIdx.x % 32 == 31) scratch->warp_units[threadIdx.x / 32] = through;
  __syncthreads();
  int before = through - units;
  int total = 0;
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    if (w < threadIdx.x / 32) before += scratch->warp_units[w];
    total += scratch->warp_units[w];
  }
  total *= heads;
  const int chunk = (total + gridDim.x - 1) / gridDim.x;
  const int begin = min(total, static_cast<int>(blockIdx.x) * chunk);
  const int end = min(total, begin + chunk);
  int sequence_begin = before * heads;
  for (int s = first; s < last; ++s) {
    const int sequence_end = sequence_begin + SpanOf(arguments, s).units * heads;
    if (begin >= sequence_begin && begin < sequence_end) {
      scratch->sequence = s;
      scratch->sequence_begin = sequence_begin;
    }
    sequence_begin = sequence_end;
  }
  __syncthreads();
  if (begin == end) return SegmentWalker(arguments, 0, 0, 0, 0, 1);
  return SegmentWalker(arguments, scratch->sequence, scratch->sequence_begin, begin, end, chunk);
}

}  // namespace kvtier::kernels
