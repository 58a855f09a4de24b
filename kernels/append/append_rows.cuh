// The parts of a tile of queries in the workspace, as merge_together.cuh wants them.
#pragma once

#include <cstdint>

#include "kernels/append/append_schedule.cuh"
#include "kernels/append/pack_pair.cuh"

namespace kvtier::kernels {

class AppendRows {
 public:
  __device__ AppendRows(const AppendPlan& plan, const AppendItem& item)
      : plan_(plan), item_(item) {}

  [[nodiscard]] __device__ float Lse(int row, int part) const {
    return __ldcg(plan_.partial_lse + RowOfPart(row, part));
  }
  [[nodiscard]] __device__ const float* Values(int row, int part) const {
    return plan_.partial_output + RowOfPart(row, part) * plan_.params.kv.head_dim;
  }

  template <int kColumns>
  __device__ void Write(int row, int column, const float (&sums)[kColumns]) const {
    const kvt_append_params& p = plan_.params;
    const RowPlace place = PlaceOf(plan_, item_, row);
    auto* const to = static_cast<uint16_t*>(p.output) +
                     (int64_t{item_.query_start} + place.token) * p.output_token_stride +
                     place.head * p.output_head_stride + column;
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      *reinterpret_cast<uint32_t*>(to + c) =
          PackPair(sums[c], sums[c + 1], p.query_dtype == KVT_BF16);
    }
  }

  __device__ void WriteLse(int row, float lse) const {
    if (plan_.params.lse != nullptr) plan_.params.lse[RowOf(row)] = lse;
  }

 private:
  // Among the rows [query_tokens, q_heads].
  __device__ int64_t RowOf(int row) const {
    const RowPlace place = PlaceOf(plan_, item_, row);
    return (int64_t{item_.query_start} + place.token) * plan_.params.q_heads + place.head;
  }
  __device__ int64_t RowOfPart(int row, int part) const {
    return int64_t{part} * plan_.params.query_tokens * plan_.params.q_heads + RowOf(row);
  }

  const AppendPlan& plan_;
  const AppendItem& item_;
};

}  // namespace kvtier::kernels
