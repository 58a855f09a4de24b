// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/journal.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <syslog.h>
#include <unistd.h>

// The position in this file is not the message's: it would only mislead.
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include <cstdlib>

namespace kvtier {
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

bool StandardErrorIsJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &status) != 0) return false;
  // The variable is inherited by children whose standard error may lead elsewhere.
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
