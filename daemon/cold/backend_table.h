// SPDX-License-Identifier: Apache-2.0
// The table of cold_backend.h over a class of C++, for the libraries that have one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/cold/cold_backend.h"

namespace kvtier {

// `Store` has a function for each of the table's, with names as texts, and `Stop`, which is `close`
// without the end of the object. A Store whose puts replace all does not hear of `replaces`. `Open`
// is the table's, and makes a Store with `new`.
template <typename Store>
class BackendTable {
 public:
  [[nodiscard]] static constexpr kvt_cold_backend With(decltype(kvt_cold_backend::open) open) {
    return {.abi = KVT_COLD_ABI,
            .table_bytes = sizeof(kvt_cold_backend),
            .open = open,
            .close = Close,
            .exists = Exists,
            .get = Get,
            .put = Put,
            .remove = Remove,
            .remove_some = RemoveSome,
            .send = Send};
  }

 private:
  static Store& Of(void* store) { return *static_cast<Store*>(store); }
  static std::string Text(const kvt_cold_name& name) { return {name.data, name.bytes}; }
  static std::vector<std::string> Texts(const kvt_cold_name* names, size_t count) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < count; ++i) texts.push_back(Text(names[i]));
    return texts;
  }

  static int Close(void* store) {
    const std::unique_ptr<Store> closed(&Of(store));
    return closed->Stop() ? 1 : 0;
  }
  static void Exists(void* store, uint64_t call, const kvt_cold_name* names, size_t count, int each,
                     int64_t timeout_ms) {
    Of(store).Exists(call, Texts(names, count), each == 1, timeout_ms);
  }
  static void Get(void* store, uint64_t call, kvt_cold_name name, void* into, uint64_t bytes,
                  int64_t timeout_ms) {
    Of(store).Get(call, Text(name), into, bytes, timeout_ms);
  }
  static void Put(void* store, uint64_t call, kvt_cold_name name, const void* data, size_t bytes,
                  int64_t ttl_s, int replaces, int64_t timeout_ms) {
    if constexpr (requires { Of(store).Put(call, Text(name), data, bytes, ttl_s, true, 0); }) {
      Of(store).Put(call, Text(name), data, bytes, ttl_s, replaces == 1, timeout_ms);
    } else {
      Of(store).Put(call, Text(name), data, bytes, ttl_s, timeout_ms);
    }
  }
  static void Remove(void* store, uint64_t call, const kvt_cold_name* names, size_t count,
                     int64_t timeout_ms) {
    Of(store).Remove(call, Texts(names, count), timeout_ms);
  }
  static void RemoveSome(void* store, uint64_t call, kvt_cold_name prefix, uint64_t cursor,
                         int64_t timeout_ms) {
    Of(store).RemoveSome(call, Text(prefix), cursor, timeout_ms);
  }
  static void Send(void* store) { Of(store).Send(); }
};

}  // namespace kvtier
