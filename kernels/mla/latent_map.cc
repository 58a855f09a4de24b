// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla/latent_map.h"

#include <cstdint>

#include "kernels/hopper/tensor_map.h"
#include "kernels/mla/mla_arguments.h"

namespace kvtier::kernels {
namespace {

constexpr uint64_t kQueryBytes = 2;  // of an element
constexpr uint32_t kChunkColumns = 64;

}  // namespace

bool EncodeQueryMap(const kvt_mla_decode_params& params, CUtensorMap* map) {
  const cuuint64_t extents[] = {KVT_MLA_QUERY_DIM, static_cast<cuuint64_t>(params.q_heads),
                                static_cast<cuuint64_t>(params.sequences.sequences)};
  const cuuint64_t strides[] = {params.query_head_stride * kQueryBytes,
                                params.query_sequence_stride * kQueryBytes};
  const cuuint32_t box[] = {kChunkColumns, kMlaTileHeads, 1};
  return EncodeTensorMap(params.query,
                         {.type = CU_TENSOR_MAP_DATA_TYPE_UINT16,
                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                          .extents = extents,
                          .strides = strides,
                          .box = box},
                         map);
}

bool EncodeLatentMap(const kvt_mla_decode_params& params, int box_tokens, CUtensorMap* map) {
  const bool fp8 = params.latent_dtype == KVT_FP8_E4M3;
  const uint64_t element = fp8 ? 1 : 2;
  const cuuint64_t extents[] = {KVT_MLA_QUERY_DIM, static_cast<cuuint64_t>(params.page_tokens),
                                INT32_MAX};
  const cuuint64_t strides[] = {params.token_stride * element, params.block_stride * element};
  const cuuint32_t box[] = {kChunkColumns, static_cast<cuuint32_t>(box_tokens), 1};
  return EncodeTensorMap(
      params.latent,
      {.type = fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
       .swizzle = fp8 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
       .extents = extents,
       .strides = strides,
       .box = box},
      map);
}

}  // namespace kvtier::kernels
