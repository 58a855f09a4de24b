// SPDX-License-Identifier: Apache-2.0
// kvt::Error and kvt::Result: the results of the C++ wrapper's functions. Part of the public
// interface, therefore free of any other header of this repository than the C ABI.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
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

// Thrown by value access to an error: carries that error, so that a call chain written without
// checks still names the fault. In programs built with -fno-exceptions the access prints the same
// message to stderr and aborts.
class BadResultAccess : public std::logic_error {
 public:
  explicit BadResultAccess(Error error)
      : std::logic_error("value of a kvt::Result that is an error: " + error.ToString()),
        error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

namespace internal {

[[noreturn]] inline void ThrowBadResultAccess(const Error& error) {
#if defined(__cpp_exceptions)
  throw BadResultAccess(error);
#else
  std::fprintf(stderr, "%s\n", BadResultAccess(error).what());
  std::abort();
#endif
}

// The result of error() for a Result without one.
inline const Error& NoError() {
  static const Error kNone{KVT_OK, "", ""};
  return kNone;
}

}  // namespace internal

// A T or an Error. Access to the value of an error throws BadResultAccess; error() of a value has
// the code KVT_OK.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] T& value() & { return *Checked(&state_); }
  [[nodiscard]] const T& value() const& { return *Checked(&state_); }
  [[nodiscard]] T&& value() && { return std::move(*Checked(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const {
    const Error* error = std::get_if<1>(&state_);
    return error != nullptr ? *error : internal::NoError();
  }

 private:
  template <typename State>
  static auto* Checked(State* state) {
    auto* const value = std::get_if<0>(state);
    if (value == nullptr) internal::ThrowBadResultAccess(*std::get_if<1>(state));
    return value;
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  [[nodiscard]] bool has_value() const { return !error_; }
  explicit operator bool() const { return has_value(); }
  // Throws BadResultAccess if it is an error.
  void value() const {
    if (error_) internal::ThrowBadResultAccess(*error_);
  }
  [[nodiscard]] const Error& error() const { return error_ ? *error_ : internal::NoError(); }

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
