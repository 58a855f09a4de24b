// SPDX-License-Identifier: Apache-2.0
// The abilities of a stream's terminal.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace kvtier {

enum class TextStyle { kPlain, kBold, kGood, kWarning, kBad };

class Terminal {
 public:
  // Detects whether `stream` is a terminal and whether colour is wanted ($NO_COLOR, $TERM).
  explicit Terminal(std::FILE* stream);

  // Someone is watching: progress may be shown and overwritten.
  [[nodiscard]] bool interactive() const { return interactive_; }
  [[nodiscard]] bool color() const { return color_; }
  // How many lines it shows now; 0 where no person is watching, or if it does not say.
  [[nodiscard]] size_t Rows() const;
  // `text` with the escapes of `style` around it, or unchanged without colour.
  [[nodiscard]] std::string Style(std::string_view text, TextStyle style) const;

  // Replaces the line shown by the last call; nothing where the output is no terminal. An empty
  // text clears it.
  void ShowProgress(std::string_view text) const;

 private:
  std::FILE* stream_;
  bool interactive_;
  bool color_;
};

// `body` and below it `last`, of which a screen of `rows` lines shows all of `last` and the first
// lines of `body`: lines of it are left out in favour of one that says how many. 0 rows: all.
[[nodiscard]] std::string FitRows(std::string_view body, std::string_view last, size_t rows);

}  // namespace kvtier
