// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/size_option.h"

#include <CLI/CLI.hpp>

#include "base/byte_size.h"

namespace kvtier {
namespace {

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

}  // namespace kvtier
