// SPDX-License-Identifier: Apache-2.0
#include "tools/papers/roff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace kvtier {
namespace {

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      // A minus to be copied, not a hyphen.
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// Lines that begin like a request must not be one.
std::string Guarded(const std::string& line) {
  return line.starts_with('.') || line.starts_with('\'') ? "\\&" + line : line;
}

std::string Marked(std::string_view text) {
  std::string marked;
  bool bold = false;
  for (const char c : text) {
    if (c != '`') {
      marked += Escaped(std::string_view(&c, 1));
      continue;
    }
    bold = !bold;
    marked += bold ? "\\fB" : "\\fR";
  }
  return Guarded(marked);
}

// One sentence a line, as the language wants it.
std::string Sentences(std::string_view text) {
  std::string lines;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find(". ", begin);
    end = end == std::string_view::npos ? text.size() : end + 1;
    lines += Marked(text.substr(begin, end - begin)) + "\n";
    begin = end;
    while (begin < text.size() && text[begin] == ' ') ++begin;
  }
  return lines;
}

std::string Upper(std::string_view text) {
  std::string upper(text);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return upper;
}

}  // namespace

RoffPage::RoffPage(const PageHead& head)
    : text_(
          fmt::format(".\\\" Generated; do not edit.\n.TH {} {} \"{}\" \"kvtier {}\" \"kvtier\"\n",
                      Upper(head.name), head.section, head.date, head.version)) {
  Section("NAME");
  text_ += fmt::format("{} \\- {}\n", Escaped(head.name), Escaped(head.summary));
}

void RoffPage::Section(std::string_view title) {
  text_ += fmt::format(".SH {}\n", Upper(title));
  after_heading_ = true;
}

void RoffPage::Subsection(std::string_view title) {
  text_ += fmt::format(".SS {}\n", Escaped(title));
  after_heading_ = true;
}

void RoffPage::Paragraph(std::string_view text) {
  // The first after a heading begins by itself.
  if (!after_heading_) text_ += ".PP\n";
  after_heading_ = false;
  text_ += Sentences(text);
}

void RoffPage::Item(std::string_view term, std::string_view text) {
  after_heading_ = false;
  text_ += fmt::format(".TP\n\\fB{}\\fR\n{}", Escaped(term), Sentences(text));
}

void RoffPage::Example(std::string_view lines) {
  text_ += ".PP\n.RS 4\n.nf\n";
  std::istringstream stream{std::string(lines)};
  for (std::string line; std::getline(stream, line);) text_ += Guarded(Escaped(line)) + "\n";
  text_ += ".fi\n.RE\n";
}

}  // namespace kvtier
