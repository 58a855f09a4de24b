// SPDX-License-Identifier: Apache-2.0
// The build without CUDA.
#include "client/cuda/stream_waits.h"

namespace kvtier::client {

Result<std::shared_ptr<StreamWaits>> StreamWaits::Open(int /*fd*/, uint64_t /*bytes*/,
                                                       int /*ordinal*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", "this build has no CUDA");
}

}  // namespace kvtier::client
