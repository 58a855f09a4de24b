// SPDX-License-Identifier: Apache-2.0
// A disk without room, as a test makes one of any.
#pragma once

#include <sys/resource.h>

#include <csignal>

#include "base/result.h"

namespace kvtier {

// While it lives no file may grow, which is what a full disk does to the log.
class FullDisk {
 public:
  FullDisk() {
    KVT_CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    KVT_CHECK(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~FullDisk() {
    KVT_CHECK(::setrlimit(RLIMIT_FSIZE, &before_) == 0);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace kvtier
