// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/blocks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "tools/kvtierctl/ask.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr size_t kHashDigits = 64;
// 67 bytes each in the request's text, of which the daemon takes 64 KiB.
constexpr size_t kHashesPerCall = 800;
constexpr uint64_t kBlocksPerPortion = 4096;

Result<std::string> ResolvePrefix(const CommandContext& context, BlockSelection selection,
                                  const std::string& digits) {
  if (digits.empty() || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos ||
      digits.size() > kHashDigits) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_hash",
                     fmt::format("\"{}\": a block hash has {} hexadecimal digits, or the first "
                                 "few of them",
                                 digits, kHashDigits));
  }
  if (digits.size() == kHashDigits) return digits;
  selection.prefix = digits;
  std::vector<std::string> found;
  KVT_RETURN_IF_ERROR(ForEachBlock(context, selection, 0, [&found](const ListedBlock& listed) {
    std::string hash = listed.block["hash"].Text();
    // Several tenants and models may have a block of the same hash.
    if (std::ranges::find(found, hash) == found.end()) found.push_back(std::move(hash));
  }));
  if (found.empty()) {
    return MakeError(ErrorCode::kNotFound, "unknown_hash",
                     fmt::format("no cached block's hash begins with {}", digits));
  }
  if (found.size() > 1) {
    return MakeError(ErrorCode::kInvalidArgument, "ambiguous_hash",
                     fmt::format("{} cached blocks' hashes begin with {}: give more digits",
                                 found.size(), digits));
  }
  return found.front();
}

}  // namespace

json::object BlockSelection::ToRequest(std::string_view operation) const {
  json::object request{{"op", operation}};
  if (!tenant.empty()) request["tenant"] = tenant;
  if (!model.empty()) request["model"] = model;
  if (!tier.empty()) request["tier"] = tier;
  if (!prefix.empty()) request["prefix"] = prefix;
  if (all) request["all"] = true;
  return request;
}

void AddNamespaceOptions(CLI::App* command, BlockSelection* selection) {
  command->add_option("--tenant", selection->tenant, "Blocks of this tenant only.")
      ->type_name("NAME");
  command
      ->add_option("--model", selection->model,
                   "Blocks of this model only: its name, or the first digits of its fingerprint.")
      ->type_name("MODEL");
}

void AddTierOption(CLI::App* command, BlockSelection* selection, const std::string& description,
                   const std::vector<std::string>& tiers) {
  command->add_option("--tier", selection->tier, description)
      ->check(CLI::IsMember(tiers))
      ->type_name("TIER");
}

void AddHashArguments(CLI::App* command, std::vector<std::string>* hashes,
                      const std::string& description) {
  command->add_option("hashes", *hashes, description)->type_name("HASH");
}

Status ForEachBlock(const CommandContext& context, const BlockSelection& selection, uint64_t limit,
                    const std::function<void(const ListedBlock&)>& visit) {
  const Terminal terminal(stderr);
  json::object request = selection.ToRequest("ls");
  uint64_t seen = 0;
  while (true) {
    const uint64_t wanted = limit == 0 ? kBlocksPerPortion : limit - seen;
    request["limit"] = std::min(wanted, kBlocksPerPortion);
    KVT_ASSIGN_OR_RETURN(
        const json::value document, Ask(context, request, [&](std::string_view) {
          terminal.ShowProgress("waiting until the daemon has checked its kept memory");
        }));
    if (selection.all) terminal.ShowProgress("");
    const JsonView reply(&document);
    std::vector<JsonView> namespaces;
    reply["namespaces"].ForEach(
        [&namespaces](JsonView name_space) { namespaces.push_back(name_space); });
    const auto now_s = static_cast<int64_t>(reply["now_s"].Count());
    reply["blocks"].ForEach([&](JsonView block) {
      const uint64_t name_space = block["namespace"].Count();
      visit({block, name_space < namespaces.size() ? namespaces[name_space] : JsonView(), now_s});
      ++seen;
    });
    if (!reply["cursor"].present()) {
      return MakeError(ErrorCode::kCorrupt, "bad_reply", "a listing without a cursor");
    }
    if (reply["finished"].IsTrue() || (limit != 0 && seen >= limit)) return {};
    request["cursor"] = reply["cursor"].Count();
  }
}

Result<std::vector<std::string>> ResolveHashes(const CommandContext& context,
                                               const BlockSelection& selection,
                                               const std::vector<std::string>& arguments) {
  std::set<std::string> hashes;
  for (const std::string& argument : arguments) {
    if (argument != "-") {
      KVT_ASSIGN_OR_RETURN(std::string hash, ResolvePrefix(context, selection, argument));
      hashes.insert(std::move(hash));
      continue;
    }
    for (std::string line; std::cin >> line;) {
      KVT_ASSIGN_OR_RETURN(std::string hash, ResolvePrefix(context, selection, line));
      hashes.insert(std::move(hash));
    }
  }
  return ListOf(hashes);
}

Result<std::vector<std::string>> ListOf(const std::set<std::string>& hashes) {
  if (!hashes.empty()) return std::vector<std::string>(hashes.begin(), hashes.end());
  return MakeError(ErrorCode::kNotFound, "no_blocks", "no such block is cached");
}

Status CallWithHashes(const CommandContext& context, json::object request,
                      const std::vector<std::string>& hashes,
                      const std::function<void(JsonView)>& visit) {
  for (size_t begin = 0; begin < hashes.size(); begin += kHashesPerCall) {
    const size_t end = std::min(hashes.size(), begin + kHashesPerCall);
    json::array portion;
    for (size_t i = begin; i < end; ++i) portion.emplace_back(hashes[i]);
    request["hashes"] = std::move(portion);
    KVT_ASSIGN_OR_RETURN(const json::value reply, Ask(context, request));
    visit(JsonView(&reply));
  }
  return {};
}

std::string TierNames(JsonView tiers) {
  std::string names;
  tiers.ForEach([&names](JsonView tier) { names += (names.empty() ? "" : " ") + tier.Text(); });
  return names;
}

}  // namespace kvtier
