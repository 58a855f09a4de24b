// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "base/units.h"
#include "tools/kvtierctl/ask.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

// Empty if it is; else its fault. The daemon knows which GPUs there are.
std::string CheckDevice(const std::string& text) {
  if (text == "host" || text == "all") return {};
  const bool gpu = text.starts_with(kCudaPrefix) && text.size() > kCudaPrefix.size() &&
                   text.find_first_not_of("0123456789", kCudaPrefix.size()) == std::string::npos;
  return gpu ? std::string() : text + ": host, all or cuda:N";
}

std::string NameOf(JsonView device) {
  const std::string kind = device["kind"].Text();
  return kind == "cuda" ? fmt::format("cuda:{}", device["ordinal"].Count()) : kind;
}

uint64_t SizeOf(const std::string& text, bool bare_number_allowed) {
  const bool bare = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const auto size = ParseByteSize(bare && bare_number_allowed ? text + "B" : text);
  if (!size) throw CLI::ValidationError(size.error().context);
  return *size;
}

}  // namespace

CLI::Option* AddSizeOption(CLI::App* command, const std::string& name, uint64_t* target,
                           const std::string& description) {
  const bool in_bytes = name.ends_with("-bytes");
  return command
      ->add_option_function<std::string>(
          name, [=](const std::string& text) { *target = SizeOf(text, in_bytes); }, description)
      ->default_str(FormatByteSize(*target))
      ->type_name("SIZE");
}

CLI::Option* AddDeviceOption(CLI::App* command, std::string* target,
                             const std::string& description) {
  return command->add_option("--device", *target, description)
      ->check(CLI::Validator(CheckDevice, ""))
      ->type_name("DEVICE");
}

Result<uint32_t> FindDevice(const CommandContext& context, const std::string& name) {
  if (name.empty()) return 0;
  KVT_ASSIGN_OR_RETURN(const boost::json::value document, Ask(context, "status"));
  std::vector<std::string> names;
  JsonView(&document)["devices"].ForEach(
      [&names](JsonView device) { names.push_back(NameOf(device)); });
  std::string all;
  for (uint32_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return i;
    all += (all.empty() ? "" : ", ") + names[i];
  }
  return MakeError(ErrorCode::kNotFound, "no_such_device",
                   fmt::format("the daemon has no pools on {}; it has: {}", name, all));
}

}  // namespace kvtier
