// SPDX-License-Identifier: Apache-2.0
// Owns what a C library made and one of its functions frees.
#pragma once

#include <memory>

namespace kvtier {

template <auto kFree>
struct FreedBy {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

// For example CPointer<EVP_MD_CTX, EVP_MD_CTX_free>.
template <typename T, auto kFree>
using CPointer = std::unique_ptr<T, FreedBy<kFree>>;

}  // namespace kvtier
