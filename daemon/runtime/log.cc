// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/log.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/details/log_msg.h>
#include <spdlog/pattern_formatter.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include <atomic>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/units.h"

// The position in this file is not the message's: it would only mislead.
#define SD_JOURNAL_SUPPRESS_LOCATION

namespace kvtier {
namespace {

// Some thousand lines: what a reader misses while it restarts.
constexpr size_t kMaxQueuedBytes = 1 * kMiB;
// A reader that takes nothing for so long must not hold up the end.
constexpr auto kFlushPatience = std::chrono::seconds(1);

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

// Without stdio, whose lock the end of the process could wait for.
void WriteToStandardError(std::string_view text) {
  while (!text.empty()) {
    const ssize_t taken = ::write(STDERR_FILENO, text.data(), text.size());
    if (taken >= 0) {
      text.remove_prefix(static_cast<size_t>(taken));
    } else if (errno == EAGAIN) {
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      (void)::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
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
  struct Line {
    LogLevel level;
    std::string id;
    std::string text;
    spdlog::log_clock::time_point time;

    [[nodiscard]] size_t bytes() const { return sizeof(Line) + id.size() + text.size(); }
  };

  explicit Impl(const LogConfig& config)
      : json(config.format == LogFormat::kJson),
        journal(config.format == LogFormat::kJournal ||
                (config.format == LogFormat::kAuto && IsJournal(STDERR_FILENO))),
        level(config.level),
        formatter(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                       : "%Y-%m-%d %H:%M:%S.%e%z %L %v") {}

  // How many lines of this id were left out before this one; -1 if this one is to be.
  int Admit(std::string_view id) {
    if (queued_bytes > kMaxQueuedBytes) {
      ++without_room;
      return -1;
    }
    const int64_t second = clock.MonotonicMs() / 1000;
    Rate& rate = rates[std::string(id)];
    if (rate.second != second) rate = {second, 0, rate.left_out};
    if (rate.lines == kMaxLinesPerSecond) {
      ++rate.left_out;
      return -1;
    }
    ++rate.lines;
    return std::exchange(rate.left_out, 0);
  }

  void Queue(LogLevel line_level, std::string_view id, std::string_view message) {
    Line line{line_level, std::string(id), Flattened(message), spdlog::log_clock::now()};
    if (!has_thread) return WriteLine(line);
    queued_bytes += line.bytes();
    lines.push_back(std::move(line));
    wake.notify_one();
  }

  // The thread's: writes lines until the end. The lock is not held while it writes.
  void Work() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return ended || !lines.empty(); });
      if (lines.empty()) return;
      const Line& line = lines.front();
      lock.unlock();
      WriteLine(line);
      lock.lock();
      queued_bytes -= line.bytes();
      lines.pop_front();
      if (!lines.empty()) continue;
      if (const uint64_t missed = std::exchange(without_room, 0); missed > 0) {
        Queue(LogLevel::kWarning, "log.left_out",
              fmt::format("{} lines were left out, since the log was not taken in time", missed));
        continue;
      }
      written.notify_all();
    }
  }

  void WriteLine(const Line& line) {
    // A journal that cannot be reached must not cost the message: it goes to standard error
    // instead.
    if (journal && SendToJournal(JournalFields(line.level, line.id, line.text))) return;
    const std::string text =
        json ? fmt::format(R"("id":"{}","message":{})", line.id,
                           boost::json::serialize(boost::json::value(line.text)))
             : fmt::format("{}: {}", line.id, line.text);
    spdlog::memory_buf_t bytes;
    formatter.format({line.time, {}, "kvtierd", SpdlogLevel(line.level), text}, bytes);
    WriteToStandardError({bytes.data(), bytes.size()});
  }

  const bool json;
  const bool journal;
  std::atomic<LogLevel> level;
  spdlog::pattern_formatter formatter;  // the writer's
  SystemClock clock;
  std::mutex mutex;  // for all below
  std::condition_variable wake, written;
  std::map<std::string, Rate> rates;
  std::deque<Line> lines;
  size_t queued_bytes = 0;
  uint64_t without_room = 0;
  bool has_thread = false;
  bool ended = false;
};

Log::Log(const LogConfig& config) : impl_(std::make_shared<Impl>(config)) {
  try {
    std::thread thread([impl = impl_] { impl->Work(); });
    pthread_setname_np(thread.native_handle(), "kvt-log");
    thread.detach();
    impl_->has_thread = true;
  } catch (const std::system_error&) {
    // Where no thread can be had, no daemon starts, and the caller's thread says why.
  }
}

Log::~Log() {
  Flush();
  const std::lock_guard lock(impl_->mutex);
  impl_->ended = true;
  impl_->wake.notify_one();
}

bool Log::Enabled(LogLevel level) const { return level >= impl_->level; }

void Log::SetLevel(LogLevel level) { impl_->level = level; }

void Log::Flush() {
  std::unique_lock lock(impl_->mutex);
  impl_->written.wait_for(lock, kFlushPatience, [this] { return impl_->lines.empty(); });
}

void Log::Write(LogLevel level, std::string_view id, std::string_view message) {
  if (!Enabled(level)) return;
  const std::lock_guard lock(impl_->mutex);
  const int left_out = impl_->Admit(id);
  if (left_out < 0) return;
  if (left_out > 0) {
    impl_->Queue(level, id, fmt::format("({} more such messages were left out)", left_out));
  }
  impl_->Queue(level, id, message);
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
