// SPDX-License-Identifier: Apache-2.0
// kvtierctl trace: the daemon's recent work, request by request and block by block.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>

#include "base/posix.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/otlp_trace.h"
#include "tools/kvtierctl/trace_document.h"
#include "tools/support/table.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr double kMaxSinceSeconds = 366.0 * 24 * 3600;
constexpr uint64_t kEventsPerPortion = 8192;

struct TraceArguments {
  std::string action;
  double since_s = 0;
  std::string output;
  std::string format = "chrome";
};

struct Fetched {
  std::string document;
  uint64_t spans = 0;
  uint64_t lost = 0;
};

// Everything up to the moment of the first portion: the daemon goes on recording meanwhile.
Result<Fetched> Fetch(const TraceArguments& arguments, const CommandContext& context) {
  json::object request{{"op", "trace"},
                       {"limit", kEventsPerPortion},
                       {"since_ms", static_cast<int64_t>(std::ceil(arguments.since_s * 1000))}};
  KVT_ASSIGN_OR_RETURN(json::value portion, Ask(context, request));
  const JsonView reply(&portion);
  const uint64_t end = reply["end"].Count();
  const auto now_us = static_cast<int64_t>(reply["now_us"].Count());
  const auto wall_ms = static_cast<int64_t>(reply["wall_ms"].Count());
  const uint64_t first = reply["cursor"].Count();
  const Terminal progress(stderr);
  TraceDocument document;
  Fetched fetched;
  while (true) {
    fetched.lost += reply["lost"].Count();
    reply["sessions"].ForEach([&](JsonView session) { document.NameSession(session); });
    reply["events"].ForEach([&](JsonView event) { document.Add(event); });
    const uint64_t cursor = reply["cursor"].Count();
    if (cursor >= end) break;
    progress.ShowProgress(
        fmt::format("{} of {} events to go", FormatCount(end - cursor), FormatCount(end - first)));
    request["cursor"] = cursor;
    request["limit"] = std::min(kEventsPerPortion, end - cursor);
    KVT_ASSIGN_OR_RETURN(portion, Ask(context, request));
  }
  progress.ShowProgress("");
  fetched.document = document.Finish(now_us, wall_ms, fetched.lost);
  if (arguments.format == "otlp") {
    const uint64_t seed = (uint64_t{std::random_device()()} << 32) | std::random_device()();
    KVT_ASSIGN_OR_RETURN(fetched.document, ToOtlp(fetched.document, seed));
  }
  fetched.spans = document.spans();
  return fetched;
}

Status Write(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) written &= std::fclose(file) == 0;
  if (written) return {};
  return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, path + " cannot be written"));
}

void Dump(const TraceArguments& arguments, CommandContext* context) {
  const auto fetched = Fetch(arguments, *context);
  if (!fetched) return context->Fail(fetched.error());
  if (fetched->lost > 0) {
    fmt::print(stderr,
               "kvtierctl: {} events were overwritten while they were being fetched; "
               "a shorter --since helps\n",
               FormatCount(fetched->lost));
  }
  if (arguments.output.empty()) return context->Print(fetched->document);
  if (const Status written = Write(arguments.output, fetched->document); !written) {
    return context->Fail(written.error());
  }
  context->Print(
      context->json
          ? json::serialize(json::object{{"schema", "kvtier.trace_written/1"},
                                         {"file", arguments.output},
                                         {"spans", fetched->spans},
                                         {"lost_events", fetched->lost}})
          : fmt::format("{} spans to {}; {} it", FormatCount(fetched->spans), arguments.output,
                        arguments.format == "otlp" ? "a collector's otlpjsonfile receiver reads"
                                                   : "https://ui.perfetto.dev opens"));
}

}  // namespace

void AddTraceCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "trace", "Show the daemon's latest work: requests, loads, copies, disk I/O, evictions.");
  const auto arguments = std::make_shared<TraceArguments>();
  command->add_option("action", arguments->action, "The action: print it.")
      ->check(CLI::IsMember({"dump"}))
      ->required()
      ->type_name("ACTION");
  command
      ->add_option("--since", arguments->since_s,
                   "Only events of the last so many seconds; 0: all there are.")
      ->check(CLI::Range(0.0, kMaxSinceSeconds))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--format", arguments->format, "Chrome's trace events, or OpenTelemetry's.")
      ->check(CLI::IsMember({"chrome", "otlp"}))
      ->type_name("FORMAT")
      ->capture_default_str();
  command->add_option("--output", arguments->output, "Write it to this file.")->type_name("FILE");
  command->footer(
      "The output is in Chrome's trace event format: open it at https://ui.perfetto.dev or in\n"
      "chrome://tracing; or it is an OTLP request in JSON, for OpenTelemetry's collector. The\n"
      "daemon keeps its latest 65,536 events.\n"
      "Examples:\n"
      "  kvtierctl trace dump --since 10 --output trace.json\n"
      "  kvtierctl trace dump --since 60 --format otlp >> /var/log/kvtier/traces.json\n"
      "  kvtierctl trace dump --format otlp | curl --data-binary @- \\\n"
      "    -H 'Content-Type: application/json' http://127.0.0.1:4318/v1/traces");
  command->callback([arguments, context] { Dump(*arguments, context); });
}

}  // namespace kvtier
