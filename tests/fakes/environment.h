// SPDX-License-Identifier: Apache-2.0
// An environment variable with another value for as long as a test needs it.
#pragma once

#include <stdlib.h>

#include <optional>
#include <string>

namespace kvtier {

// Not while other threads read the environment.
class ScopedVariable {
 public:
  // No value: the variable is not set.
  ScopedVariable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = ::getenv(name); before != nullptr) before_ = before;
    Set(value);
  }
  ~ScopedVariable() { Set(before_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void Set(const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name_, value->c_str(), /*overwrite=*/1);
    } else {
      ::unsetenv(name_);
    }
  }

  const char* const name_;
  std::optional<std::string> before_;
};

}  // namespace kvtier
