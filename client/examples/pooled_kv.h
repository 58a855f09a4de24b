// Keys and values in the pool that kvtierd shares: a kvt::Sequence, used in place.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/examples/kv_store.h"
#include "client/examples/model.h"
#include "client/kvtier.hpp"

namespace kvtier::generate {

// The layout of the model's blocks, which the pool and private memory share.
[[nodiscard]] Result<KvLayout> LayoutOf(const Model& model);

// A connection to the daemon and the model's pool in it. Must outlive what is opened in it.
class SharedPool {
 public:
  // Connects, registers the model and maps its pool. Errors: the library's.
  [[nodiscard]] static Result<SharedPool> Attach(const std::string& socket_path,
                                                 const Model& model);

  // Finds the longest cached prefix of `prompt` (never all of it: the last token's logits are
  // needed), waits until it is in the pool, and reserves blocks for the rest and `reserve_tokens`
  // more. Errors: the library's.
  [[nodiscard]] Result<std::unique_ptr<KvStore>> Open(std::span<const Token> prompt,
                                                      uint32_t reserve_tokens,
                                                      kvt_retention retention);

 private:
  SharedPool(kvt::Connection connection, kvt::Pool pool, const KvLayout& layout)
      : connection_(std::move(connection)), pool_(std::move(pool)), layout_(layout) {}

  kvt::Connection connection_;
  kvt::Pool pool_;
  KvLayout layout_;
};

}  // namespace kvtier::generate
