// SPDX-License-Identifier: Apache-2.0
// kvt::Error and kvt::Result: what the C++ wrapper returns. Part of the public interface, therefore
// free of any other header of this repository than the C ABI.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "kvtier.h"

namespace kvt {

struct Error {
  kvt_status code = KVT_INTERNAL;
  std::string reason;   // short and stable, for programs
  std::string context;  // for people

  // No daemon or a lost connection: go on without the cache.
  [[nodiscard]] bool unavailable() const { return code == KVT_UNAVAILABLE; }
  [[nodiscard]] std::string ToString() const {
    std::string text = std::string(kvt_status_name(code)) + ": " + reason;
    if (!context.empty()) text += " (" + context + ")";
    return text;
  }
  // The calling thread's last error.
  [[nodiscard]] static Error Last() {
    const kvt_error* error = kvt_last_error();
    return Error{error->code, error->reason, error->context};
  }
};

// A T or an Error. REQUIRES: value access only with a value, error() only without.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] T& value() & { return *std::get_if<0>(&state_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&state_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  [[nodiscard]] bool has_value() const { return !error_; }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

// The outcome of a C call made just now on this thread.
inline Status ToStatus(kvt_status status) {
  if (status == KVT_OK) return {};
  return Error::Last();
}

}  // namespace kvt
