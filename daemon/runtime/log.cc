// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <map>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "daemon/runtime/journal.h"

namespace kvtier {
namespace {

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// A text of one line: what came from outside may hold anything.
std::string Flattened(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

}  // namespace

struct Log::Impl {
  struct Rate {
    int64_t second = 0;
    int lines = 0;
    int left_out = 0;
  };

  explicit Impl(const LogConfig& config)
      : json(config.format == LogFormat::kJson),
        journal(config.format == LogFormat::kJournal ||
                (config.format == LogFormat::kAuto && StandardErrorIsJournal())),
        logger("kvtierd", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_level(SpdlogLevel(config.level));
    logger.set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                            : "%Y-%m-%d %H:%M:%S.%e %L %v");
  }

  // How many lines of this id were left out before this one; -1 if this one is to be.
  int Admit(std::string_view id) {
    const int64_t second = clock.MonotonicMs() / 1000;
    const std::lock_guard lock(mutex);
    Rate& rate = rates[std::string(id)];
    if (rate.second != second) rate = {second, 0, rate.left_out};
    if (rate.lines == kMaxLinesPerSecond) {
      ++rate.left_out;
      return -1;
    }
    ++rate.lines;
    return std::exchange(rate.left_out, 0);
  }

  void WriteLine(LogLevel level, std::string_view id, std::string_view message) {
    const std::string line = Flattened(message);
    if (journal && SendToJournal(JournalFields(level, id, line))) return;
    if (json) {
      logger.log(SpdlogLevel(level), R"("id":"{}","message":{})", id,
                 boost::json::serialize(boost::json::value(line)));
    } else {
      logger.log(SpdlogLevel(level), "{}: {}", id, line);
    }
  }

  const bool json;
  const bool journal;
  spdlog::logger logger;
  SystemClock clock;
  std::mutex mutex;
  std::map<std::string, Rate> rates;
};

Log::Log(const LogConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Log::~Log() = default;

bool Log::Enabled(LogLevel level) const { return impl_->logger.should_log(SpdlogLevel(level)); }

void Log::SetLevel(LogLevel level) { impl_->logger.set_level(SpdlogLevel(level)); }

void Log::Write(LogLevel level, std::string_view id, std::string_view message) {
  if (!Enabled(level)) return;
  const int left_out = impl_->Admit(id);
  if (left_out < 0) return;
  if (left_out > 0) {
    impl_->WriteLine(level, id, fmt::format("({} more such messages were left out)", left_out));
  }
  impl_->WriteLine(level, id, message);
}

}  // namespace kvtier
