// SPDX-License-Identifier: Apache-2.0
// The daemon's log: one line per event, on standard error or in systemd's journal. spdlog stays
// inside log.cc.
//
// Every message has an id ("disk.degraded") that never changes, so that operators can search and
// alert on it, and a text for people. Any thread may call.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/config/config.h"

namespace kvtier {

// Any thread may call any method. A thread of the log's own writes the lines, in their order, since
// the reader of standard error, the journal or a file's disk may hang. Lines that find no room
// meanwhile are counted, and the count follows.
class Log {
 public:
  explicit Log(const LogConfig& config);
  // Flushes.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  template <typename... Args>
  void Debug(std::string_view id, fmt::format_string<Args...> format, Args&&... args) {
    if (Enabled(LogLevel::kDebug)) {
      Write(LogLevel::kDebug, id, fmt::format(format, std::forward<Args>(args)...));
    }
  }
  template <typename... Args>
  void Info(std::string_view id, fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kInfo, id, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void Warning(std::string_view id, fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kWarning, id, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void Error(std::string_view id, fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kError, id, fmt::format(format, std::forward<Args>(args)...));
  }

  // Debug texts are formatted only if they will be written, since they are on the path of requests;
  // those of the other levels are rare.
  [[nodiscard]] bool Enabled(LogLevel level) const;
  // For a reload. Takes effect with the next message.
  void SetLevel(LogLevel level);
  // Waits until all lines are written, for a second at most: before an end of the process that
  // destroys nothing, and before others are told that the log has something.
  void Flush();

 private:
  struct Impl;
  // Writes at most kMaxLinesPerSecond lines of one id, then says how many were left out: a client
  // that does the same wrong thing for ever must not fill the disk.
  void Write(LogLevel level, std::string_view id, std::string_view message);

  // Shared with the thread, which may hang for longer than this object lives.
  const std::shared_ptr<Impl> impl_;
};

// Lines per id and second: enough to see what happens, little enough for a disk at any load.
inline constexpr int kMaxLinesPerSecond = 50;

// Whether a descriptor (standard output or error) is connected to the journal, as systemd tells in
// JOURNAL_STREAM.
[[nodiscard]] bool IsJournal(int descriptor);

// The fields of one entry, "NAME=value": MESSAGE, PRIORITY (as syslog's), KVTIER_ID and
// SYSLOG_IDENTIFIER.
[[nodiscard]] std::vector<std::string> JournalFields(LogLevel level, std::string_view id,
                                                     std::string_view message);

// Any thread. False if the journal cannot be reached. The caller should then write the message
// elsewhere.
[[nodiscard]] bool SendToJournal(const std::vector<std::string>& fields);

}  // namespace kvtier
