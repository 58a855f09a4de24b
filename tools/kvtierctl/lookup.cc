// SPDX-License-Identifier: Apache-2.0
// kvtierctl lookup: how much of a sequence is cached, and where.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "protocol/block_hash.h"
#include "protocol/model_record.h"
#include "tools/kvtierctl/blocks.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

struct LookupArguments {
  BlockSelection selection;
  std::vector<std::string> hashes;
  std::string tokens_path;
  uint32_t block_tokens = 16;
  std::string recipe = std::string(kDefaultHashRecipe);
  PromptIdentity identity;
};

struct LookedUp {
  json::object name_space;
  std::vector<std::string> hashes;
  std::vector<json::value> tiers;  // an array of names per hash
  uint64_t cached = 0;
  uint64_t prefix = 0;  // blocks until the first that no tier has
};

Result<std::string> ReadAll(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return std::move(text).str();
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return MakeError(ErrorCode::kNotFound, "no_token_file", path + " cannot be read");
  text << file.rdbuf();
  return std::move(text).str();
}

// Numbers with anything but letters between them: a JSON array, lines, columns.
Result<std::vector<uint32_t>> ParseTokens(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == ',' || c == '[' || c == ']'; }, ' ');
  std::istringstream words(text);
  std::vector<uint32_t> tokens;
  for (std::string word; words >> word;) {
    uint32_t token = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || end != word.data() + word.size()) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_token",
                       fmt::format("\"{}\" is not a token id", word));
    }
    tokens.push_back(token);
  }
  return tokens;
}

Result<std::vector<std::string>> HashTokens(const LookupArguments& arguments) {
  KVT_ASSIGN_OR_RETURN(std::string text, ReadAll(arguments.tokens_path));
  KVT_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, ParseTokens(std::move(text)));
  KVT_ASSIGN_OR_RETURN(const HashRecipe recipe, ParseHashRecipe(arguments.recipe));
  KVT_RETURN_IF_ERROR(arguments.identity.CheckFor(recipe));
  BlockHasher hasher(arguments.block_tokens, recipe, arguments.identity);
  hasher.Extend(tokens);
  if (hasher.hashes().empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument, "too_few_tokens",
        fmt::format("{} tokens do not fill a block of {}", tokens.size(), arguments.block_tokens));
  }
  std::vector<std::string> hashes;
  for (const BlockHash& hash : hasher.hashes()) hashes.push_back(hash.Hex());
  return hashes;
}

Result<LookedUp> LookUp(const LookupArguments& arguments, const CommandContext& context) {
  LookedUp result;
  KVT_ASSIGN_OR_RETURN(result.hashes,
                       arguments.tokens_path.empty()
                           ? ResolveHashes(context, arguments.selection, arguments.hashes)
                           : HashTokens(arguments));
  if (result.hashes.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "nothing_asked", "give hashes, or --tokens FILE");
  }
  KVT_RETURN_IF_ERROR(CallWithHashes(
      context, arguments.selection.ToRequest("lookup"), result.hashes, [&](JsonView reply) {
        if (reply.object() != nullptr) result.name_space = *reply.object();
        reply["tiers"].ForEach([&](JsonView tiers) { result.tiers.push_back(*tiers.value()); });
      }));
  if (result.tiers.size() != result.hashes.size()) {
    return MakeError(ErrorCode::kCorrupt, "bad_reply", "not an answer for each hash");
  }
  bool unbroken = true;
  for (const json::value& tiers : result.tiers) {
    const bool cached = tiers.is_array() && !tiers.get_array().empty();
    unbroken &= cached;
    result.cached += cached;
    result.prefix += unbroken;
  }
  return result;
}

std::string ToJson(LookedUp result) {
  json::array blocks;
  for (size_t i = 0; i < result.hashes.size(); ++i) {
    blocks.push_back({{"hash", result.hashes[i]}, {"tiers", result.tiers[i]}});
  }
  json::object document = std::move(result.name_space);
  document.stable_erase("tiers");
  document["asked"] = result.hashes.size();
  document["cached"] = result.cached;
  document["prefix"] = result.prefix;
  document["blocks"] = std::move(blocks);
  return json::serialize(document);
}

std::string ToText(const LookedUp& result) {
  std::string text;
  for (size_t i = 0; i < result.hashes.size(); ++i) {
    const std::string names = TierNames(JsonView(&result.tiers[i]));
    text += fmt::format("{}  {}\n", result.hashes[i], names.empty() ? "-" : names);
  }
  return text + fmt::format("\n{} of {} blocks are cached; a prefix of {}\n",
                            FormatCount(result.cached), FormatCount(result.hashes.size()),
                            FormatCount(result.prefix));
}

void Lookup(const LookupArguments& arguments, CommandContext* context) {
  const auto result = LookUp(arguments, *context);
  if (!result) return context->Fail(result.error());
  context->Print(context->json ? ToJson(*result) : ToText(*result));
  if (result->cached == 0) {
    context->exit_code = ExitCode::kNotFound;
  } else if (result->cached < result->hashes.size()) {
    context->exit_code = ExitCode::kPartial;
  }
}

}  // namespace

void AddLookupCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "lookup", "Show which tiers hold a sequence, given by its tokens or its blocks' hashes.");
  const auto arguments = std::make_shared<LookupArguments>();
  AddHashArguments(command, &arguments->hashes,
                   "Hashes in order; -: read them from standard input.");
  auto* tokens = command->add_option(
      "--tokens", arguments->tokens_path,
      "Token ids instead: a file of numbers or a JSON array; -: standard input.");
  tokens->type_name("FILE")->excludes(command->get_option("hashes"));
  command->add_option("--block-tokens", arguments->block_tokens, "Tokens of one block.")
      ->check(CLI::Range(uint32_t{1}, kMaxModelBlockTokens))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--recipe", arguments->recipe,
                   "How the engine hashes: vllm-sha256-cbor/1, /2 (vLLM from 0.31 on) or sglang/1.")
      ->type_name("NAME")
      ->capture_default_str();
  PromptIdentity& identity = arguments->identity;
  command
      ->add_option("--seed", identity.seed, "The seed of vLLM's hashes, vllm-none-hash if absent.")
      ->type_name("TEXT");
  command->add_option("--salt", identity.cache_salt, "The request's cache salt.")
      ->type_name("TEXT");
  command->add_option("--lora", identity.lora_name, "The request's LoRA.")->type_name("NAME");
  command->add_option("--lora-path", identity.lora_path, "Its path, which /2 hashes with the name.")
      ->type_name("PATH");
  command->add_option("--extra-key", identity.extra_key, "The request's extra key, of sglang/1.")
      ->type_name("TEXT");
  AddNamespaceOptions(command, &arguments->selection);
  command->footer(
      "Ends with 0 if all blocks are cached, 8 if some are, 4 if none is. Tokens are hashed as\n"
      "--recipe says, which must be the one that the engine registered its model with.\n"
      "Example:\n"
      "  echo '[1, 2, 3, 4]' | kvtierctl lookup --tokens - --block-tokens 4");
  command->callback([arguments, context] { Lookup(*arguments, context); });
}

}  // namespace kvtier
