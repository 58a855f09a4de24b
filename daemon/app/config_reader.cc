// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/config_reader.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace kvtier {

// Shared with the threads that read: they may end after the reader and the loop have gone, and must
// not post to a loop that is not there. The lock makes "is it there" and "post" one step.
struct ConfigReader::Mailbox {
  std::mutex mutex;
  ConfigReader* reader = nullptr;  // null: it has gone
};

ConfigReader::ConfigReader(EventLoop* loop, Read read, int64_t timeout_ms)
    : loop_(loop),
      read_(std::move(read)),
      timeout_ms_(timeout_ms),
      mailbox_(std::make_shared<Mailbox>()),
      timeout_(loop) {
  mailbox_->reader = this;
}

ConfigReader::~ConfigReader() {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->reader = nullptr;
}

void ConfigReader::Start(std::function<void(Result<Config>)> done) {
  if (done_ != nullptr) {
    // Callers that wait already are answered together with this one.
    waiting_ = waiting_ == nullptr
                   ? std::move(done)
                   : [first = std::move(waiting_), second = std::move(done)](Result<Config> read) {
                       first(read);
                       second(std::move(read));
                     };
    return;
  }
  done_ = std::move(done);
  const uint64_t number = ++reads_;
  timeout_.Start(timeout_ms_, [this] {
    Finish(MakeError(ErrorCode::kTimeout, "config_read_timeout",
                     fmt::format("reading the configuration and looking up its users has not ended "
                                 "after {} ms",
                                 timeout_ms_)));
  });
  try {
    std::thread([mailbox = mailbox_, read = read_, number] {
      auto result = std::make_shared<Result<Config>>(read());
      // The result was read before the lock was taken: the reader's destructor must not wait for
      // it.
      const std::lock_guard lock(mailbox->mutex);
      if (mailbox->reader == nullptr) return;
      mailbox->reader->loop_->Post([mailbox, number, result] {
        // On the loop's thread, where the reader's end is: no lock is needed to use it.
        ConfigReader* const reader = mailbox->reader;
        if (reader != nullptr && reader->done_ != nullptr && reader->reads_ == number) {
          reader->Finish(std::move(*result));
        }
      });
    }).detach();
  } catch (const std::system_error& error) {
    // Answered from a later event also here, so that `done` is never called within Start.
    loop_->Post([mailbox = mailbox_, number, text = std::string(error.what())] {
      ConfigReader* const reader = mailbox->reader;
      if (reader == nullptr || reader->reads_ != number) return;
      reader->Finish(
          MakeError(ErrorCode::kResourceExhausted, "no_thread",
                    "the configuration cannot be read: no thread can be started: " + text));
    });
  }
}

void ConfigReader::Finish(Result<Config> result) {
  timeout_.Cancel();
  const auto done = std::exchange(done_, nullptr);
  // The next read starts before the callback, so that a third caller does not overtake the second.
  if (auto next = std::exchange(waiting_, nullptr)) Start(std::move(next));
  done(std::move(result));
}

}  // namespace kvtier
