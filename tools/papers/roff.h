// SPDX-License-Identifier: Apache-2.0
// Manual pages in the man(7) language.
#pragma once

#include <string>
#include <string_view>

namespace kvtier {

// What a page is called and where it belongs.
struct PageHead {
  std::string_view name;     // "kvtierctl"
  std::string_view section;  // "1"
  std::string_view date;     // "2026-01-31"
  std::string_view version;
  std::string_view summary;  // "looks at a kvtierd"; no full stop
};

// Builds a page from top to bottom. Texts are taken as they are, but `words` within backquotes are
// set bold.
class RoffPage {
 public:
  explicit RoffPage(const PageHead& head);

  void Section(std::string_view title);
  void Subsection(std::string_view title);
  void Paragraph(std::string_view text);
  // A term and what it means, indented. The term is set bold as a whole.
  void Item(std::string_view term, std::string_view text);
  // Lines to be shown as typed.
  void Example(std::string_view lines);

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  bool after_heading_ = false;
};

}  // namespace kvtier
