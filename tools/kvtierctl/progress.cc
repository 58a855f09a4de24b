#include "tools/kvtierctl/progress.h"

#include <fmt/format.h>

#include "base/byte_size.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"
#include "tools/support/terminal.h"

namespace kvtier {

AdminProgress ShowBlockProgress(std::string verb) {
  return [verb = std::move(verb), terminal = Terminal(stderr)](std::string_view json) {
    boost::json::error_code error;
    const boost::json::value document = boost::json::parse(json, error);
    const JsonView progress(error ? nullptr : &document);
    const uint64_t done = progress["done"].Count();
    const uint64_t total = progress["total"].Count();
    std::string line =
        fmt::format("{} {} of {} blocks", verb, FormatCount(done), FormatCount(total));
    if (total > 0) line += fmt::format(", {} %", 100 * done / total);
    if (const uint64_t rate = progress["rate"].Count(); rate > 0) {
      line += fmt::format(", {}/s", FormatByteSize(rate));
    }
    terminal.ShowProgress(line);
  };
}

void ClearProgress() { Terminal(stderr).ShowProgress(""); }

}  // namespace kvtier
