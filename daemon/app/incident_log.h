// SPDX-License-Identifier: Apache-2.0
// Writes what goes wrong in the cache to the log. A disk that fails makes thousands of incidents a
// second: a few lines of each kind tell what there is to know, and how many more there were.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "tiers/types/incident.h"

namespace kvtier {

// Event loop only. Both are borrowed.
class IncidentLog {
 public:
  IncidentLog(EventLoop* loop, Log* log, int64_t period_ms = kPeriodMs)
      : log_(*log), period_ms_(period_ms), summary_(loop) {}

  // The names of the disk tier's files, by the numbers that incidents have.
  void NameFiles(std::vector<std::string> files) { files_ = std::move(files); }
  // Writes a line, unless kLinesPerPeriod of its kind have been written in this period. When the
  // period ends, one line says how many more of a kind there were.
  void Write(const Incident& incident);

  static constexpr uint32_t kLinesPerPeriod = 10;
  static constexpr int64_t kPeriodMs = 60'000;

 private:
  [[nodiscard]] std::string Describe(const Incident& incident) const;
  void WriteLine(IncidentKind kind, const std::string& text);
  // The period has ended; there is another while incidents go on.
  void Summarize();

  Log& log_;
  const int64_t period_ms_;
  std::vector<std::string> files_;
  std::array<uint64_t, kIncidentKindCount> seen_{};  // in this period
  bool counting_ = false;                            // a period has begun
  Timer summary_;
};

}  // namespace kvtier
