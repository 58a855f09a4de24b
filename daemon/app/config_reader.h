// SPDX-License-Identifier: Apache-2.0
// Reads the configuration again, away from the event loop: resolving the users of tenants may ask a
// directory service over the network (NSS), which may take seconds or never answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Event loop only. A read cannot be cancelled: a read that hangs keeps its thread, and only that,
// until the process ends. One read's answer is awaited at a time: signals that arrive meanwhile are
// answered together by one more read.
class ConfigReader {
 public:
  using Read = std::function<Result<Config>()>;

  // `loop` is borrowed and outlives the reader. `read` is called on another thread, possibly after
  // the reader's end: it must own all that it uses. `timeout_ms` bounds each read: a reload must
  // not be left without an answer.
  ConfigReader(EventLoop* loop, Read read, int64_t timeout_ms);
  ~ConfigReader();
  ConfigReader(const ConfigReader&) = delete;
  ConfigReader& operator=(const ConfigReader&) = delete;

  // `done` is called on the loop, once for each Start. One that comes while a read is in flight
  // waits for it to end and is then answered by another: the files may have changed meanwhile.
  // Errors: those of `read`; kTimeout "config_read_timeout"; kResourceExhausted "no_thread".
  void Start(std::function<void(Result<Config>)> done);
  [[nodiscard]] bool reading() const { return done_ != nullptr; }

 private:
  struct Mailbox;
  void Finish(Result<Config> result);

  EventLoop* const loop_;
  const Read read_;
  const int64_t timeout_ms_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::function<void(Result<Config>)> done_;     // of the read in flight
  std::function<void(Result<Config>)> waiting_;  // of the next
  uint64_t reads_ = 0;                           // a late result is of an earlier one
  Timer timeout_;
};

}  // namespace kvtier
