// SPDX-License-Identifier: Apache-2.0
#include "kernels/hopper/tensor_map.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtier::kernels {
namespace {

constexpr int kMaxRank = 5;
constexpr int kGroupTokens = 8;
constexpr uint64_t kMaxStrideBytes = uint64_t{1} << 40;
constexpr uint64_t kMaxCoordinate = INT32_MAX;
constexpr int kDriverVersion = 12000;  // in which the entry point appeared

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled FindEncodeTiled() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &entry, kDriverVersion, cudaEnableDefault, &found);
#else
  static_assert(CUDART_VERSION >= kDriverVersion);
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeTiled>(entry);
}

}  // namespace

bool EncodeTensorMap(const void* tensor, const TensorShape& shape, CUtensorMap* map) {
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) return false;
  for (const cuuint64_t stride : shape.strides) {
    if (stride >= kMaxStrideBytes) return false;
  }
  if (shape.extents[0] > kMaxCoordinate) return false;
  const cuuint32_t steps[kMaxRank] = {1, 1, 1, 1, 1};
  return encode(map, shape.type, static_cast<cuuint32_t>(shape.extents.size()),
                const_cast<void*>(tensor), shape.extents.data(), shape.strides.data(),
                shape.box.data(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool EncodePageMap(const kvt_paged_kv& kv, const void* tensor, int box_tokens, CUtensorMap* map) {
  const bool fp8 = kv.dtype == KVT_FP8_E4M3;
  const uint64_t element = fp8 ? 1 : 2;
  const auto dim = static_cast<uint32_t>(kv.head_dim);
  const uint32_t columns = fp8 ? dim : 64;
  const cuuint64_t extents[] = {
      static_cast<uint64_t>(kv.kv_heads - 1) * kv.head_stride + columns, kGroupTokens,
      dim / columns, static_cast<uint64_t>(kv.page_tokens / kGroupTokens), kMaxCoordinate};
  const cuuint64_t strides[] = {kv.token_stride * element, columns * element,
                                kGroupTokens * kv.token_stride * element,
                                kv.block_stride * element};
  const cuuint32_t box[] = {columns, kGroupTokens, dim / columns,
                            static_cast<uint32_t>(box_tokens / kGroupTokens), 1};
  return EncodeTensorMap(
      tensor,
      {.type = fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
       .swizzle = fp8 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
       .extents = extents,
       .strides = strides,
       .box = box},
      map);
}

}  // namespace kvtier::kernels
