// SPDX-License-Identifier: Apache-2.0
// The build without CUDA.
#include "client/cuda/cuda_mapping.h"
#include "client/cuda/stream_waits.h"

namespace kvtier::client {

Result<std::shared_ptr<CudaMapping>> CudaMapping::Map(int /*fd*/, uint64_t /*bytes*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", "this build has no CUDA");
}

Result<std::shared_ptr<CudaMapping>> CudaMapping::Allocate(int /*ordinal*/, uint64_t /*bytes*/,
                                                           UniqueFd* /*fd*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", "this build has no CUDA");
}

Result<uint64_t> CudaMapping::RoundUp(int /*ordinal*/, uint64_t /*bytes*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", "this build has no CUDA");
}

Result<std::array<uint8_t, 16>> UuidOfDevice(int /*ordinal*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", "this build has no CUDA");
}

Result<std::array<uint8_t, 16>> CurrentDeviceUuid() {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", "this build has no CUDA");
}

Result<std::shared_ptr<StreamWaits>> StreamWaits::Open(int /*fd*/, uint64_t /*bytes*/,
                                                       int /*ordinal*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", "this build has no CUDA");
}

}  // namespace kvtier::client
