// SPDX-License-Identifier: Apache-2.0
// Which block does what: the step's work as one line of units, cut into equal chunks, one for each
// block.
//
// A unit is 1 << unit_shift tokens of one (sequence, KV head) pair. Units are in the order of
// sequence, head, token; an empty sequence has one unit, so that its zeros are written. Every
// block computes the cut from the lengths alone: there is no plan that could be stale.
#pragma once

#include "kernels/decode/decode.h"
#include "kernels/hopper/math.cuh"

namespace kvtier::kernels {

// One sequence's tokens that are seen, and how many units they make in each head.
struct SequenceSpan {
  int length;
  int window_begin;
  int first_unit;
  int units;
};

__device__ inline SequenceSpan SpanOf(const StepShape& step, int sequence) {
  SequenceSpan span;
  // Lengths beyond the promised maximum would pass the workspace's end.
  span.length = min(max(step.kv_lengths[sequence], 0), step.max_kv_length);
  span.window_begin = step.window_tokens > 0 ? max(0, span.length - step.window_tokens) : 0;
  span.first_unit = span.window_begin >> step.unit_shift;
  const int last = (span.length + (1 << step.unit_shift) - 1) >> step.unit_shift;
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
  // Walks the segments of block `block`, whose chunk is [begin, end); all chunks but the last have
  // `chunk` units.
  __device__ SegmentWalker(const StepShape& step, int block, int sequence, int sequence_begin,
                           int begin, int end, int chunk)
      : block_(block),
        sequence_(sequence),
        sequence_begin_(sequence_begin),
        at_(begin),
        end_(end),
        chunk_(chunk),
        span_(SpanOf(step, sequence)) {}

  // False at the end.
  __device__ bool Next(const StepShape& step, Segment* segment) {
    if (AtEnd()) return false;
    const int heads = step.kv_heads;
    while (at_ >= sequence_begin_ + heads * span_.units) {
      sequence_begin_ += heads * span_.units;
      span_ = SpanOf(step, ++sequence_);
    }
    const bool fixed = step.split_tokens > 0;
    segment->sequence = sequence_;
    segment->head = (at_ - sequence_begin_) / span_.units;
    const int pair_begin = sequence_begin_ + segment->head * span_.units;
    const int unit = at_ - pair_begin;
    const int units = fixed ? 1 : min(span_.units - unit, end_ - at_);
    segment->token_begin = (span_.first_unit + unit) << step.unit_shift;
    segment->token_end = min(span_.length, segment->token_begin + (units << step.unit_shift));
    segment->window_begin = span_.window_begin;
    if (fixed) {
      NumberFixedParts(pair_begin, segment);
    } else {
      NumberChunkParts(pair_begin, segment);
    }
    at_ += units;
    return true;
  }

  __device__ bool AtEnd() const { return at_ >= end_; }

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
    segment->parts = last - first + 1;
    segment->own_slot = block_ == first ? 2 * block_ + 1 : 2 * block_;
    segment->first_slot = 2 * first + 1;
    segment->slot_step = 2;
  }

  int block_;
  int sequence_;
  int sequence_begin_;  // the place in line of the sequence's first unit
  int at_;
  int end_;
  int chunk_;
  SequenceSpan span_;
};

// Shared memory of PartitionStep.
template <int kWarps>
struct ScheduleScratch {
  int warp_units[kWarps];
  int sequence;
  int sequence_begin;
};

// The chunk of block `block` of `blocks`, for all threads alike. Called once, by all kWarps warps
// of the thread block.
template <int kWarps>
__device__ SegmentWalker PartitionStep(const StepShape& step, int block, int blocks,
                                       ScheduleScratch<kWarps>* scratch) {
  const int sequences = step.sequences;
  const int heads = step.kv_heads;
  const int share = (sequences + kWarps * 32 - 1) / (kWarps * 32);
  const int first = min(sequences, static_cast<int>(threadIdx.x) * share);
  const int last = min(sequences, first + share);
  int units = 0;
  for (int s = first; s < last; ++s) units += SpanOf(step, s).units;
  const int through = InclusiveWarpSum(units);
  if (threadIdx.x % 32 == 31) scratch->warp_units[threadIdx.x / 32] = through;
  __syncthreads();
  int before = through - units;
  int total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < threadIdx.x / 32) before += scratch->warp_units[w];
    total += scratch->warp_units[w];
  }
  total *= heads;
  const int chunk = (total + blocks - 1) / blocks;
  const int begin = min(total, block * chunk);
  const int end = min(total, begin + chunk);
  int sequence_begin = before * heads;
  for (int s = first; s < last; ++s) {
    const int sequence_end = sequence_begin + SpanOf(step, s).units * heads;
    if (begin >= sequence_begin && begin < sequence_end) {
      scratch->sequence = s;
      scratch->sequence_begin = sequence_begin;
    }
    sequence_begin = sequence_end;
  }
  __syncthreads();
  if (begin == end) return SegmentWalker(step, block, 0, 0, 0, 0, 1);
  return SegmentWalker(step, block, scratch->sequence, scratch->sequence_begin, begin, end, chunk);
}

}  // namespace kvtier::kernels
