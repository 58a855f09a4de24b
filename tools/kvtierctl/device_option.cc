// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/device_option.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <vector>

#include "tools/support/json_view.h"

namespace kvtier {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

// Empty if it is; else what is wrong. Which GPUs there are, the daemon knows.
std::string CheckDevice(const std::string& text) {
  if (text == "host" || text == "auto") return {};
  const bool gpu = text.starts_with(kCudaPrefix) && text.size() > kCudaPrefix.size() &&
                   text.find_first_not_of("0123456789", kCudaPrefix.size()) == std::string::npos;
  return gpu ? std::string() : text + ": host, auto or cuda:N";
}

std::string NameOf(JsonView device) {
  const std::string kind = device["kind"].Text();
  return kind == "cuda" ? fmt::format("cuda:{}", device["ordinal"].Count()) : kind;
}

}  // namespace

CLI::Option* AddDeviceOption(CLI::App* command, std::string* target,
                             const std::string& description) {
  return command->add_option("--device", *target, description)
      ->check(CLI::Validator(CheckDevice, ""))
      ->type_name("DEVICE");
}

Result<uint32_t> FindDevice(const CommandContext& context, const std::string& name) {
  if (name.empty()) return 0;
  KVT_ASSIGN_OR_RETURN(const std::string reply, context.CallAdmin("status"));
  boost::json::error_code error;
  const boost::json::value document = boost::json::parse(reply, error);
  if (error) {
    return MakeError(ErrorCode::kCorrupt, "bad_status", "the daemon's answer is not a status");
  }
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
