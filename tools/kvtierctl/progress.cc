// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/byte_size.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

constexpr uint64_t kBarColumns = 20;

}  // namespace

std::string FormatProgress(std::string_view verb, const BlockProgress& progress) {
  // What is counted may grow meanwhile.
  const uint64_t total = std::max(progress.total, progress.done);
  if (total == 0) return fmt::format("{} nothing yet", verb);
  const uint64_t filled = kBarColumns * progress.done / total;
  std::string line =
      fmt::format("{} [{:#<{}}{:.<{}}] {} of {}", verb, "", filled, "", kBarColumns - filled,
                  FormatCompactCount(progress.done), FormatCompactCount(total));
  if (progress.bytes_per_second > 0) {
    line += fmt::format(", {}/s", FormatByteSize(progress.bytes_per_second));
  }
  if (progress.done > 0 && progress.done < total) {
    const double left_s = progress.elapsed_s * static_cast<double>(total - progress.done) /
                          static_cast<double>(progress.done);
    line += fmt::format(", {} left", FormatElapsed(static_cast<int64_t>(left_s * 1000)));
  }
  return line;
}

AdminProgress ShowBlockProgress(std::string verb) {
  return [verb = std::move(verb), terminal = Terminal(stderr),
          start = std::chrono::steady_clock::now()](std::string_view json) {
    boost::json::error_code error;
    const boost::json::value document = boost::json::parse(json, error);
    const JsonView progress(error ? nullptr : &document);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    terminal.ShowProgress(FormatProgress(verb, {.done = progress["done"].Count(),
                                                .total = progress["total"].Count(),
                                                .bytes_per_second = progress["rate"].Count(),
                                                .elapsed_s = elapsed.count()}));
  };
}

void ClearProgress() { Terminal(stderr).ShowProgress(""); }

}  // namespace kvtier
