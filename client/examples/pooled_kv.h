// SPDX-License-Identifier: Apache-2.0
// Keys and values in the pool that kvtierd shares: a kvt::Sequence, used in place.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/examples/gpu_attention.h"
#include "client/examples/kv_store.h"
#include "client/examples/model.h"
#include "kvtier/kvtier.hpp"

namespace kvtier::generate {

// Where keys and values are, and with them the attention.
enum class PoolDevice : uint8_t { kHost, kCuda };

// The layout of the model's blocks; in host memory private memory shares it.
[[nodiscard]] Result<KvLayout> LayoutOf(const Model& model, PoolDevice device = PoolDevice::kHost);

// A connection to the daemon and the model's pool in it. Must outlive what is opened in it.
class SharedPool {
 public:
  // Connects, registers the model and maps its pool. Errors: the library's; kUnsupported
  // "pool_not_host_memory", "pool_not_on_gpu"; those of GpuAttention::Open.
  [[nodiscard]] static Result<SharedPool> Attach(const std::string& socket_path, const Model& model,
                                                 PoolDevice device = PoolDevice::kHost);

  // Finds the longest cached prefix of `prompt` (never all of it: the last token's logits are
  // needed), waits until it is in the pool, and reserves blocks for the rest and `reserve_tokens`
  // more. Errors: the library's.
  [[nodiscard]] Result<std::unique_ptr<KvStore>> Open(std::span<const Token> prompt,
                                                      uint32_t reserve_tokens,
                                                      kvt_retention retention);

 private:
  SharedPool(kvt::Connection connection, kvt::Pool pool, const KvLayout& layout)
      : connection_(std::move(connection)), pool_(std::move(pool)), layout_(layout) {}

  [[nodiscard]] Status OpenGpu(const Model& model);

  kvt::Connection connection_;
  kvt::Pool pool_;
  KvLayout layout_;
  std::unique_ptr<GpuAttention> gpu_;  // null in host memory
};

}  // namespace kvtier::generate
