// SPDX-License-Identifier: Apache-2.0
// kvtierctl models: the models that blocks are of, with the epochs of their weights. kvtierctl
// forget: all blocks of a model to be forgotten.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/units.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

namespace json = boost::json;

struct ModelArguments {
  std::string tenant;
  std::string model;
};

std::string OwnerOf(JsonView model) {
  const std::string name = model["model_name"].Text();
  return fmt::format("{}/{}", model["tenant"].Text(),
                     name.empty() ? model["model"].Text().substr(0, 12) : name);
}

void PrintModels(JsonView document) {
  std::vector<JsonView> models;
  document["models"].ForEach([&models](JsonView model) { models.push_back(model); });
  if (models.empty()) return fmt::print(stderr, "no models\n");
  std::ranges::sort(models, std::ranges::greater{},
                    [](JsonView model) { return model["last_use_s"].Count(); });
  size_t name_columns = std::string_view("tenant/model").size();
  for (const JsonView model : models) name_columns = std::max(name_columns, OwnerOf(model).size());
  fmt::print("{:<{}}  {:>9}  {:>9}  {:>4}  {:<6}  {}\n", "tenant/model", name_columns, "blocks",
             "size", "idle", "in use", "epoch");
  const auto now_s = static_cast<int64_t>(document["now_s"].Count());
  for (const JsonView model : models) {
    const auto last_use_s = static_cast<int64_t>(model["last_use_s"].Count());
    fmt::print("{:<{}}  {:>9}  {:>9}  {:>4}  {:<6}  {}\n", OwnerOf(model), name_columns,
               FormatCount(model["blocks"].Count()), FormatByteSize(model["bytes"].Count()),
               last_use_s == 0 ? "-" : FormatAge(now_s - last_use_s),
               model["in_use"].IsTrue() ? "yes" : "no", model["epoch"].Text());
  }
  const uint64_t omitted = document["omitted"].Count();
  if (omitted == 0) return;
  fmt::print(stderr, "{} more groups of models; --tenant lists one tenant's\n",
             FormatCount(omitted));
}

void Models(const ModelArguments& arguments, CommandContext* context) {
  json::object request{{"op", "models"}};
  if (!arguments.tenant.empty()) request["tenant"] = arguments.tenant;
  const auto document = Ask(*context, request);
  if (!document) return context->Fail(document.error());
  if (context->json) return context->Print(json::serialize(*document));
  PrintModels(JsonView(&*document));
}

// MODEL@EPOCH, or MODEL alone; an epoch may have the character, too. The daemon refuses an empty
// one.
json::object ForgetRequest(const ModelArguments& arguments) {
  const size_t at = arguments.model.find('@');
  json::object request{{"op", "forget"}, {"model", arguments.model.substr(0, at)}};
  if (at != std::string::npos) request["epoch"] = arguments.model.substr(at + 1);
  if (!arguments.tenant.empty()) request["tenant"] = arguments.tenant;
  return request;
}

void Forget(const ModelArguments& arguments, CommandContext* context) {
  const Terminal terminal(stderr);
  const auto document = Ask(*context, ForgetRequest(arguments),
                            [&](std::string_view) { terminal.ShowProgress("forgetting blocks"); });
  terminal.ShowProgress("");
  if (!document) return context->Fail(document.error());
  const JsonView reply(&*document);
  std::string text = fmt::format("{} blocks forgotten", FormatCount(reply["evicted"].Count()));
  uint64_t stayed = 0;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kStayed = {
      {{"referenced", "held by a session"},
       {"pinned", "pinned"},
       {"moving", "on the move between tiers: try again"}}};
  for (const auto& [member, why] : kStayed) {
    const uint64_t count = reply[member].Count();
    stayed += count;
    if (count > 0) text += fmt::format("; {} {}", FormatCount(count), why);
  }
  context->Print(context->json ? json::serialize(*document) : text);
  if (stayed > 0) context->exit_code = ExitCode::kPartial;
}

void AddTenantOption(CLI::App* command, ModelArguments* arguments) {
  command->add_option("--tenant", arguments->tenant, "Only models of this tenant.")
      ->type_name("TENANT");
}

}  // namespace

void AddModelsCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "models", "List the models that blocks are of: their epochs, sizes and last uses.");
  const auto arguments = std::make_shared<ModelArguments>();
  AddTenantOption(command, arguments.get());
  command->footer(
      "An epoch names the weights of a model (docs/IDENTITY.md). Models that no engine has\n"
      "registered since the daemon's start are shown by the first digits of a fingerprint.");
  command->callback([arguments, context] { Models(*arguments, context); });
}

void AddForgetCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "forget", "Forget all blocks of a model, of all its epochs or of one, in every tier.");
  const auto arguments = std::make_shared<ModelArguments>();
  command
      ->add_option(
          "model", arguments->model,
          "A name, or the first digits of a fingerprint; with @ and an epoch: of that one.")
      ->required()
      ->type_name("MODEL[@EPOCH]");
  AddTenantOption(command, arguments.get());
  command->footer(
      "Ends with 8 if some of the blocks stayed, with 4 if there is no such model.\n"
      "Examples:\n"
      "  kvtierctl forget my-model\n"
      "  kvtierctl forget my-model@named:run-7/17");
  command->callback([arguments, context] { Forget(*arguments, context); });
}

}  // namespace kvtier
