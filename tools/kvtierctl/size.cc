// SPDX-License-Identifier: Apache-2.0
// kvtierctl size: how many blocks and tokens of a model the tiers hold.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "base/units.h"
#include "daemon/config/config_loader.h"
#include "daemon/config/config_schema.h"
#include "protocol/model_record.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/cache_options.h"
#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/model_size.h"
#include "tools/kvtierctl/options.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// The most that cache.slab_bytes may be.
constexpr uint64_t kMostSlabBytes = 1 * kGiB;
constexpr double kEmptyWorthANote = 0.02;

struct SizeArguments {
  std::string path;
  std::string dtype;
  uint64_t block_tokens = 16;
  uint64_t tensor_parallel = 1;
  uint64_t pool_bytes = 16 * kGiB;
  uint64_t host_bytes = 64 * kGiB;
  uint64_t disk_bytes = 1024 * kGiB;
};

struct TierPlan {
  std::string_view name;
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  uint64_t sharers = 1;  // ranks that keep a block of their own of the same tokens here
};
struct Plan {
  ModelSize model;
  uint64_t block_tokens = 0;

  [[nodiscard]] uint64_t TokensIn(const TierPlan& tier) const {
    return tier.blocks / tier.sharers * block_tokens;
  }
  uint64_t block_bytes = 0;
  uint64_t slab_bytes = 0;
  bool slab_is_default = true;
  std::array<TierPlan, 3> tiers;
};

Result<std::string> ReadConfig(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return std::move(text).str();
  }
  std::filesystem::path file_path = path;
  std::error_code error;
  if (std::filesystem::is_directory(file_path, error)) file_path /= "config.json";
  std::ifstream file(file_path, std::ios::binary);
  if (!file) {
    return MakeError(ErrorCode::kNotFound, "no_model_config",
                     file_path.string() + " cannot be read");
  }
  text << file.rdbuf();
  return std::move(text).str();
}

Result<Plan> MakePlan(const SizeArguments& arguments) {
  KVT_ASSIGN_OR_RETURN(const std::string config, ReadConfig(arguments.path));
  Plan plan;
  KVT_ASSIGN_OR_RETURN(plan.model,
                       MeasureModel(config, arguments.dtype, arguments.tensor_parallel));
  plan.block_tokens = arguments.block_tokens;
  plan.block_bytes = plan.model.BytesPerToken() * plan.block_tokens;
  plan.slab_bytes = CacheOptions().slab_bytes;
  while (plan.slab_bytes < SlotBytes(plan.block_bytes) + kSlabHeaderBytes) {
    plan.slab_bytes *= 2;
    plan.slab_is_default = false;
  }
  if (plan.slab_bytes > kMostSlabBytes) {
    return MakeError(ErrorCode::kInvalidArgument, "block_too_large",
                     fmt::format("a block would have {} and not fit into a slab of {}: take "
                                 "fewer --block-tokens",
                                 FormatByteSize(plan.block_bytes), FormatByteSize(kMostSlabBytes)));
  }
  // A GPU has a pool of its own; host memory and disk are all ranks'. Latent vectors are the same
  // on each rank, and stored once.
  const uint64_t sharers = plan.model.latent ? 1 : arguments.tensor_parallel;
  if (sharers > 1) {
    plan.model.notes.push_back(
        fmt::format("a token takes {} on the host: its {} ranks share host memory and disk, each "
                    "GPU has a pool",
                    FormatByteSize(plan.model.BytesPerToken() * sharers), sharers));
  } else if (arguments.tensor_parallel > 1) {
    plan.model.notes.emplace_back(
        "each GPU's pool has the vectors of all tokens; host memory and disk keep them once");
  }
  const uint64_t slab_blocks = plan.slab_bytes / SlotBytes(plan.block_bytes);
  const double empty = 1 - static_cast<double>(slab_blocks * SlotBytes(plan.block_bytes)) /
                               static_cast<double>(plan.slab_bytes);
  if (empty >= kEmptyWorthANote) {
    plan.model.notes.push_back(
        fmt::format("{:.1f} % of host memory and disk stay empty: a slab of {} takes {} blocks; "
                    "less with larger slabs (cache.slab_bytes)",
                    100 * empty, FormatByteSize(plan.slab_bytes), slab_blocks));
  }
  plan.tiers = {
      {{"pool", arguments.pool_bytes, arguments.pool_bytes / plan.block_bytes},
       {"host", arguments.host_bytes,
        SlotsIn(arguments.host_bytes, plan.block_bytes, plan.slab_bytes, 0), sharers},
       {"disk", arguments.disk_bytes,
        SlotsIn(arguments.disk_bytes, plan.block_bytes, plan.slab_bytes, kSlabHeaderBytes),
        sharers}}};
  return plan;
}

std::string TiersText(const Plan& plan) {
  std::string text;
  for (const TierPlan& tier : plan.tiers) {
    text += fmt::format("[{}]\nbytes = \"{}\"\n\n", tier.name, FormatExactByteSize(tier.bytes));
  }
  if (plan.slab_is_default) return text.substr(0, text.size() - 1);
  return text + fmt::format("[cache]\nslab_bytes = \"{}\"\n", FormatExactByteSize(plan.slab_bytes));
}

std::string ToText(const Plan& plan) {
  using enum Table::Align;
  const ModelSize& model = plan.model;
  std::string text = fmt::format(
      "model      {}\n"
      "kv         {} layers, {} {} of {}, {}\n"
      "per token  {} ({} bytes)\n"
      "per block  {} ({} tokens)\n",
      model.architecture, model.layers, model.kv_heads,
      model.latent ? "latent vector" : "K and V heads", model.head_dim, model.dtype,
      FormatByteSize(model.BytesPerToken()), FormatCount(model.BytesPerToken()),
      FormatByteSize(plan.block_bytes), plan.block_tokens);
  for (const std::string& note : model.notes) text += fmt::format("note       {}\n", note);
  Table table({{"tier", kLeft}, {"bytes"}, {"blocks"}, {"tokens"}});
  for (const TierPlan& tier : plan.tiers) {
    table.AddRow({std::string(tier.name), FormatByteSize(tier.bytes), FormatCount(tier.blocks),
                  FormatCount(plan.TokensIn(tier))});
  }
  return text + "\n" + table.Render() + "\n" + TiersText(plan);
}

std::string ToJson(const Plan& plan) {
  const ModelSize& model = plan.model;
  json::object tiers;
  for (const TierPlan& tier : plan.tiers) {
    tiers[tier.name] = {
        {"bytes", tier.bytes}, {"blocks", tier.blocks}, {"tokens", plan.TokensIn(tier)}};
  }
  json::array notes;
  for (const std::string& note : model.notes) notes.emplace_back(note);
  return json::serialize(json::object{{"schema", "kvtier.size/1"},
                                      {"architecture", model.architecture},
                                      {"layers", model.layers},
                                      {"kv_heads", model.kv_heads},
                                      {"head_dim", model.head_dim},
                                      {"latent", model.latent},
                                      {"dtype", model.dtype},
                                      {"bytes_per_token", model.BytesPerToken()},
                                      {"block_tokens", plan.block_tokens},
                                      {"block_bytes", plan.block_bytes},
                                      {"tiers", std::move(tiers)},
                                      {"notes", std::move(notes)},
                                      {"config", TiersText(plan)}});
}

void AddOptions(CLI::App* command, SizeArguments* arguments) {
  command
      ->add_option("config", arguments->path,
                   "The model's config.json, or its directory; -: standard input.")
      ->required()
      ->type_name("FILE");
  command->add_option("--dtype", arguments->dtype, "The KV cache's type, if not the model's own.")
      ->check(CLI::IsMember({"bf16", "f16", "f32", "fp8"}))
      ->type_name("TYPE");
  command->add_option("--block-tokens", arguments->block_tokens, "Tokens of one block.")
      ->check(CLI::Range(uint32_t{1}, kMaxModelBlockTokens))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option(
          "--tensor-parallel", arguments->tensor_parallel,
          "Ranks that share the model, all on one host. A block and the pool are one rank's, "
          "host memory and disk all ranks', tokens the model's.")
      ->check(CLI::Range(uint32_t{1}, kMaxModelTensorParallelSize))
      ->type_name("N")
      ->capture_default_str();
  AddSizeOption(command, "--pool", &arguments->pool_bytes, "Bytes of the pool.");
  AddSizeOption(command, "--host", &arguments->host_bytes, "Bytes of the host tier.");
  AddSizeOption(command, "--disk", &arguments->disk_bytes, "Bytes of the disk tier.");
}

}  // namespace

void AddSizeCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "size", "Tell from a model's config.json how many blocks and tokens the tiers hold.");
  const auto arguments = std::make_shared<SizeArguments>();
  AddOptions(command, arguments.get());
  command->footer(
      "Needs no daemon. Ends with a configuration for kvtierd.\n"
      "Example:\n"
      "  kvtierctl size models/llama/config.json --pool 40GiB --host 200GiB --disk 4TiB");
  command->callback([arguments, context] {
    const auto plan = MakePlan(*arguments);
    if (!plan) return context->Fail(plan.error());
    const auto config = ParseConfig(TiersText(*plan), "configuration", {});
    if (!config) return context->Fail(config.error());
    context->Print(context->json ? ToJson(*plan) : ToText(*plan));
  });
}

}  // namespace kvtier
