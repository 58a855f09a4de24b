// SPDX-License-Identifier: Apache-2.0
// kvtier-papers: writes manual pages and completions from the tables that the programs work with.
// Runs at build time: kvtier-papers DIRECTORY DATE.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/config/command_line.h"
#include "kvtier/kvtier.h"
#include "tools/kvtierctl/app.h"
#include "tools/papers/completion.h"
#include "tools/papers/pages.h"

namespace kvtier {
namespace {

bool Write(const std::filesystem::path& path, const std::string& text) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return true;
  fmt::print(stderr, "kvtier-papers: {} cannot be written\n", path.string());
  return false;
}

bool WriteCompletions(const std::filesystem::path& share, const CommandRow& table) {
  return Write(share / "bash-completion/completions" / table.name, BashCompletion(table)) &&
         Write(share / "zsh/vendor-completions" / ("_" + table.name), ZshCompletion(table)) &&
         Write(share / "fish/vendor_completions.d" / (table.name + ".fish"), FishCompletion(table));
}

int Main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: kvtier-papers DIRECTORY DATE\n");
    return 2;
  }
  const std::filesystem::path share = argv[1];
  const PageEdition edition{argv[2], kvt_version()};
  CommandContext context;
  const CommandRow kvtierctl = ReadCommandTable(*MakeKvtierctlApp(&context));
  DaemonArguments arguments;
  CLI::App daemon;
  AddDaemonOptions(&daemon, &arguments);
  const CommandRow kvtierd = ReadCommandTable(daemon);
  const bool written = Write(share / "man/man1/kvtierctl.1", KvtierctlPage(kvtierctl, edition)) &&
                       Write(share / "man/man8/kvtierd.8", KvtierdPage(kvtierd, edition)) &&
                       Write(share / "man/man5/kvtierd.toml.5", ConfigPage(edition)) &&
                       WriteCompletions(share, kvtierctl) && WriteCompletions(share, kvtierd);
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
