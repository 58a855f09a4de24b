#include "kernels/mla/latent_map.h"

#include <cstdint>

#include "kernels/append/tensor_map.h"
#include "kernels/mla/mla_arguments.h"

namespace kvtier::kernels {
namespace {

constexpr uint64_t kElementBytes = 2;
constexpr uint64_t kAtomColumns = 64;
constexpr uint64_t kGroupTokens = 8;

bool EncodeSwizzled(const void* tensor, std::span<const cuuint64_t> extents,
                    std::span<const cuuint64_t> strides, std::span<const cuuint32_t> box,
                    CUtensorMap* map) {
  return EncodeTensorMap(tensor,
                         {.type = CU_TENSOR_MAP_DATA_TYPE_UINT16,
                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                          .extents = extents,
                          .strides = strides,
                          .box = box},
                         map);
}

}  // namespace

bool EncodeQueryMap(const kvt_mla_decode_params& params, CUtensorMap* map) {
  const cuuint64_t extents[] = {KVT_MLA_QUERY_DIM, static_cast<cuuint64_t>(params.q_heads),
                                static_cast<cuuint64_t>(params.sequences.sequences)};
  const cuuint64_t strides[] = {params.query_head_stride * kElementBytes,
                                params.query_sequence_stride * kElementBytes};
  const cuuint32_t box[] = {kAtomColumns, kMlaTileHeads, 1};
  return EncodeSwizzled(params.query, extents, strides, box, map);
}

bool EncodeLatentMap(const kvt_mla_decode_params& params, int first_column, int columns,
                     int box_tokens, CUtensorMap* map) {
  const auto atoms = static_cast<cuuint32_t>(columns / kAtomColumns);
  const cuuint64_t extents[] = {kAtomColumns, kGroupTokens, atoms,
                                params.page_tokens / kGroupTokens, INT32_MAX};
  const cuuint64_t strides[] = {params.token_stride * kElementBytes, kAtomColumns * kElementBytes,
                                kGroupTokens * params.token_stride * kElementBytes,
                                params.block_stride * kElementBytes};
  const cuuint32_t box[] = {kAtomColumns, kGroupTokens, atoms,
                            static_cast<cuuint32_t>(box_tokens / kGroupTokens), 1};
  return EncodeSwizzled(static_cast<const uint16_t*>(params.latent) + first_column, extents,
                        strides, box, map);
}

}  // namespace kvtier::kernels
