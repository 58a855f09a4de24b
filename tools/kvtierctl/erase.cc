// SPDX-License-Identifier: Apache-2.0
// kvtierctl erase: removes a tenant's blocks for good, with the keys of those on disk.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>

#include "base/units.h"
#include "tiers/types/cache_options.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

struct EraseArguments {
  std::string tenant;
  std::string before;
  bool yes = false;
  bool without_proof = false;
};

tl::unexpected<Error> BadTime(const std::string& text) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_time",
                   fmt::format("\"{}\" is neither a time in UTC, as 2026-11-23 or "
                               "2026-11-23T18:00, nor how long ago, as 36h or 2d",
                               text));
}

// Unix time in milliseconds.
Result<int64_t> ParseTime(const std::string& text) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  if (const Result<int64_t> ago_ms = ParseDuration(text)) {
    if (*ago_ms >= now_ms) return BadTime(text);
    return now_ms - *ago_ms;
  }
  int year = 0;
  unsigned month = 0, day = 0, hour = 0, minute = 0;
  int end = 0;
  const int fields = std::sscanf(text.c_str(), "%4d-%2u-%2u%n", &year, &month, &day, &end);
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  if (fields != 3 || !date.ok() || year < 1970) return BadTime(text);
  const std::string clock = text.substr(static_cast<size_t>(end));
  if (!clock.empty()) {
    int clock_end = 0;
    const int read = std::sscanf(clock.c_str(), "T%2u:%2u%n", &hour, &minute, &clock_end);
    const std::string rest = clock.substr(static_cast<size_t>(clock_end));
    if (read != 2 || hour > 23 || minute > 59 || (!rest.empty() && rest != "Z")) {
      return BadTime(text);
    }
  }
  const auto days = std::chrono::sys_days(date).time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(days).count() + hour * kHourMs +
         minute * kMinuteMs;
}

// Nothing brings the blocks back, so that the user confirms it, here or by --yes.
Status Confirm(const EraseArguments& arguments) {
  if (arguments.yes) return {};
  if (::isatty(STDIN_FILENO) != 1) {
    return MakeError(ErrorCode::kInvalidArgument, "not_confirmed",
                     "this cannot be undone: give --yes where no terminal can be asked");
  }
  const std::string what =
      arguments.before.empty() ? "all blocks" : "all blocks from before " + arguments.before;
  fmt::print(stderr, "Erase {} of tenant {} for good? Type yes: ", what, arguments.tenant);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "yes") return {};
  return MakeError(ErrorCode::kInvalidArgument, "not_confirmed", "nothing was erased");
}

std::string Describe(JsonView result) {
  std::string text;
  if (result["proven"].IsTrue()) {
    text = fmt::format("destroyed {} encryption keys of tenant {}\n",
                       FormatCount(result["keys"].Count()), result["tenant"].Text());
  } else {
    text = fmt::format(
        "tenant {}: the disk is not encrypted, freed bytes stay there until they "
        "are written over\n",
        result["tenant"].Text());
  }
  for (const std::string_view tier : kTierNames) {
    text += fmt::format("{}: {} blocks, {}\n", tier, FormatCount(result["blocks"][tier].Count()),
                        FormatByteSize(result["bytes"][tier].Count()));
  }
  if (const uint64_t referenced = result["referenced"].Count(); referenced > 0) {
    text += fmt::format("{} blocks of pools are held by sessions: gone when these let go of them\n",
                        FormatCount(referenced));
  }
  if (const uint64_t moving = result["moving"].Count(); moving > 0) {
    text += fmt::format("{} blocks were in use all the time: try again\n", FormatCount(moving));
  }
  text.pop_back();
  return text;
}

void Erase(const EraseArguments& arguments, CommandContext* context) {
  boost::json::object request{
      {"op", "erase"}, {"tenant", arguments.tenant}, {"without_proof", arguments.without_proof}};
  if (!arguments.before.empty()) {
    const Result<int64_t> before_ms = ParseTime(arguments.before);
    if (!before_ms) return context->Fail(before_ms.error());
    request["before_ms"] = *before_ms;
  }
  if (const Status confirmed = Confirm(arguments); !confirmed) {
    return context->Fail(confirmed.error());
  }
  const auto reply = Ask(*context, request, [](std::string_view) {});
  if (!reply) return context->Fail(reply.error());
  const JsonView result(&*reply);
  context->Print(context->json ? boost::json::serialize(*reply) : Describe(result));
  if (result["moving"].Count() > 0) context->exit_code = ExitCode::kPartial;
}

}  // namespace

void AddEraseCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "erase", "Destroy a tenant's encryption keys and forget its blocks, for good.");
  const auto arguments = std::make_shared<EraseArguments>();
  command->add_option("--tenant", arguments->tenant, "Whose blocks.")
      ->required()
      ->type_name("TENANT");
  command
      ->add_option("--before", arguments->before,
                   "Only of whole hours before this time in UTC (2026-11-23T18:00), or before so "
                   "long ago (36h). Default: all that was made until now.")
      ->type_name("TIME");
  command->add_flag("--yes", arguments->yes, "Do not ask.");
  command->add_flag("--without-proof", arguments->without_proof,
                    "Also if the disk is not encrypted, where freed bytes stay until they are "
                    "written over.");
  command->footer(
      "Asks first, and cannot be undone. Pins do not protect blocks from this. Blocks that\n"
      "sessions hold are found by no other session any more, and gone when they are released.\n"
      "Ends with 8 if blocks were in use all the time.\n"
      "Examples:\n"
      "  kvtierctl erase --tenant research\n"
      "  kvtierctl erase --tenant research --before 36h --yes");
  command->callback([arguments, context] { Erase(*arguments, context); });
}

}  // namespace kvtier
