// SPDX-License-Identifier: Apache-2.0
// A directory that is removed with everything in it when its owner goes.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace kvtier {

class TemporaryDirectory {
 public:
  // Makes "<parent>/kvtier-XXXXXX"; an empty `parent` means $TMPDIR or /tmp. Errors: kIoError with
  // the errno's name as reason.
  [[nodiscard]] static Result<TemporaryDirectory> Create(std::string parent = {});
  TemporaryDirectory(TemporaryDirectory&& other) noexcept
      : path_(std::exchange(other.path_, std::string())) {}
  TemporaryDirectory& operator=(TemporaryDirectory&& other) noexcept;
  ~TemporaryDirectory() { Remove(); }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  void Remove();

  std::string path_;
};

}  // namespace kvtier
