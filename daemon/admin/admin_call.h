// SPDX-License-Identifier: Apache-2.0
// One request on the admin socket, being answered.
#pragma once

#include <string>

#include "base/error.h"

namespace kvtier {

// Answered once, by Reply or Fail, with any number of Progress before. Texts are JSON.
class AdminCall {
 public:
  virtual ~AdminCall() = default;
  virtual void Progress(std::string json) = 0;
  virtual void Reply(std::string json) = 0;
  virtual void Fail(const Error& error) = 0;
  // The caller is gone: work done for its eyes only can stop.
  [[nodiscard]] virtual bool abandoned() const = 0;
};

}  // namespace kvtier
