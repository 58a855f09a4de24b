// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "base/clock.h"

// The position in this file is not the message's: it would only mislead.
#define SD_JOURNAL_SUPPRESS_LOCATION

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

// A text of one line: names and paths from clients may hold line breaks or escape sequences, with
// which they could forge entries of the log or command an operator's terminal.
std::string Flattened(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

}  // namespace

struct Log::Impl {
  // The rate of one id, in the current second of the monotonic clock. Ids are constants of the
  // program, so that the map of rates stays small whatever clients do.
  struct Rate {
    int64_t second = 0;
    int lines = 0;
    int left_out = 0;
  };

  explicit Impl(const LogConfig& config)
      : json(config.format == LogFormat::kJson),
        journal(config.format == LogFormat::kJournal ||
                (config.format == LogFormat::kAuto && IsJournal(STDERR_FILENO))),
        logger("kvtierd", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_level(SpdlogLevel(config.level));
    logger.set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                            : "%Y-%m-%d %H:%M:%S.%e%z %L %v");
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
    // A journal that cannot be reached must not cost the message: it goes to standard error
    // instead.
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

namespace {

constexpr const char* kJournalSocket = "/run/systemd/journal/socket";

int SyslogPriority(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return LOG_DEBUG;
    case LogLevel::kInfo:
      return LOG_INFO;
    case LogLevel::kWarning:
      return LOG_WARNING;
    case LogLevel::kError:
      return LOG_ERR;
  }
  return LOG_ERR;
}

}  // namespace

bool IsJournal(int descriptor) {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (stream == nullptr || ::fstat(descriptor, &status) != 0) return false;
  // The variable is inherited by children whose output may lead elsewhere.
  return fmt::format("{}:{}", status.st_dev, status.st_ino) == stream;
}

std::vector<std::string> JournalFields(LogLevel level, std::string_view id,
                                       std::string_view message) {
  return {fmt::format("MESSAGE={}: {}", id, message),
          fmt::format("PRIORITY={}", SyslogPriority(level)), fmt::format("KVTIER_ID={}", id),
          "SYSLOG_IDENTIFIER=kvtierd"};
}

bool SendToJournal(const std::vector<std::string>& fields) {
  std::vector<iovec> parts;
  for (const std::string& field : fields) {
    parts.push_back({const_cast<char*>(field.data()), field.size()});
  }
  // A journal that is not there is no error to the library, but the message would be lost.
  if (::access(kJournalSocket, W_OK) != 0) return false;
  return ::sd_journal_sendv(parts.data(), static_cast<int>(parts.size())) == 0;
}

}  // namespace kvtier
