// SPDX-License-Identifier: Apache-2.0
#include "tools/support/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
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

size_t Terminal::Rows() const {
  winsize size{};
  if (!interactive_ || ::ioctl(::fileno(stream_), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_row;
}

std::string Terminal::Style(std::string_view text, TextStyle style) const {
  if (!color_ || style == TextStyle::kPlain) return std::string(text);
  return std::string(EscapeOf(style)).append(text).append("\x1b[0m");
}

void Terminal::ShowProgress(std::string_view text) const {
  if (!interactive_) return;
  std::fprintf(stream_, "\r\x1b[K%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stream_);
}

std::string FitRows(std::string_view body, std::string_view last, size_t rows) {
  const auto lines_in = [](std::string_view text) {
    return static_cast<size_t>(std::ranges::count(text, '\n'));
  };
  const size_t lines = lines_in(body);
  // The cursor stands in the line below the text.
  const size_t taken = lines_in(last) + 1;
  std::string text;
  if (rows == 0 || lines + taken <= rows) return text.append(body).append(last);
  const size_t kept = rows > taken + 1 ? rows - taken - 1 : 0;
  size_t end = 0;
  for (size_t line = 0; line < kept; ++line) end = body.find('\n', end) + 1;
  text.append(body.substr(0, end));
  text += fmt::format("... {} more lines: kvtierctl status\n", lines - kept);
  return text.append(last);
}

}  // namespace kvtier
