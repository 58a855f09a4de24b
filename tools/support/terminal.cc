// SPDX-License-Identifier: Apache-2.0
#include "tools/support/terminal.h"

#include <unistd.h>

#include <cstdlib>

namespace kvtier {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string_view EscapeOf(TextStyle style) {
  switch (style) {
    case TextStyle::kBold:
      return "\x1b[1m";
    case TextStyle::kGood:
      return "\x1b[32m";
    case TextStyle::kWarning:
      return "\x1b[33m";
    case TextStyle::kBad:
      return "\x1b[31m";
    case TextStyle::kPlain:
      break;
  }
  return "";
}

}  // namespace

Terminal::Terminal(std::FILE* stream)
    : stream_(stream),
      interactive_(::isatty(::fileno(stream)) == 1 && Variable("TERM") != "dumb"),
      color_(interactive_ && Variable("NO_COLOR").empty()) {}

std::string Terminal::Style(std::string_view text, TextStyle style) const {
  if (!color_ || style == TextStyle::kPlain) return std::string(text);
  return std::string(EscapeOf(style)).append(text).append("\x1b[0m");
}

void Terminal::ShowProgress(std::string_view text) const {
  if (!interactive_) return;
  std::fprintf(stream_, "\r\x1b[K%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stream_);
}

}  // namespace kvtier
