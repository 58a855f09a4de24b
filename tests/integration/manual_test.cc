// SPDX-License-Identifier: Apache-2.0
// Manual pages and completions as the build writes them, under the programs that read them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/integration/harness/program.h"

namespace kvtier {
namespace {

constexpr std::string_view kShare = KVTIER_SHARE_DIRECTORY;

std::string PathOf(std::string_view name) { return std::string(kShare) + "/" + std::string(name); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// Skips where the build had no pandoc to make the pages with.
#define REQUIRE_PAGES()                                               \
  if (!std::filesystem::exists(PathOf("man/man1/kvtierctl.1"))) {     \
    GTEST_SKIP() << "built without manual pages: there is no pandoc"; \
  }

class ManualTest : public testing::TestWithParam<const char*> {};

TEST_P(ManualTest, PageHasNothingForMandocToWarnOf) {
  REQUIRE_PAGES();
  REQUIRE_PROGRAM("mandoc");
  const ProgramResult lint =
      RunProgram({"mandoc", "-T", "lint", "-W", "warning", PathOf(GetParam())});
  EXPECT_EQ(lint.exit_code, 0) << lint.output << lint.errors;
}

TEST_P(ManualTest, PageHasNothingForManToWarnOf) {
  REQUIRE_PAGES();
  REQUIRE_PROGRAM("man");
  const ProgramResult man = RunProgram(
      {"sh", "-c", "MANWIDTH=80 man --warnings -E UTF-8 -l " + PathOf(GetParam()) + " >/dev/null"});
  EXPECT_EQ(man.exit_code, 0);
  EXPECT_EQ(man.errors, "");
}

INSTANTIATE_TEST_SUITE_P(Pages, ManualTest,
                         testing::Values("man/man1/kvtierctl.1", "man/man5/kvtierd.toml.5",
                                         "man/man8/kvtierd.8"));

TEST(ManualContentTest, EveryCommandOfTheHelpHasItsPlaceInThePage) {
  REQUIRE_PAGES();
  const std::string page = ReadFile(PathOf("man/man1/kvtierctl.1"));
  std::istringstream help(RunProgram({KvtierctlPath(), "--help"}).output);
  bool commands = false;
  int found = 0;
  for (std::string line; std::getline(help, line);) {
    if (line == "Subcommands:") commands = true;
    if (!commands || line.size() < 3 || !line.starts_with("  ") || line[2] == ' ') continue;
    // Roff would make a typographic hyphen of a plain one.
    const std::string name =
        std::regex_replace(line.substr(2, line.find(' ', 2) - 2), std::regex("-"), R"(\-)");
    EXPECT_NE(page.find(".SS " + name), std::string::npos) << name;
    ++found;
  }
  EXPECT_GE(found, 15);
}

TEST(ManualContentTest, OptionsThatDocumentsNameHaveTheirPlaceInThePage) {
  REQUIRE_PAGES();
  const std::string page = ReadFile(PathOf("man/man8/kvtierd.8"));
  for (const char* option : {"config", "metrics"}) {
    EXPECT_NE(page.find(std::string("print\\-") + option + "\\-reference"), std::string::npos);
  }
}

TEST(ManualContentTest, EveryConfigurationKeyHasItsPlaceInThePage) {
  REQUIRE_PAGES();
  const std::string page = ReadFile(PathOf("man/man5/kvtierd.toml.5"));
  for (const char* key : {"admin_socket", "slab_bytes", "extended_ttl", "uids", "root_key"}) {
    EXPECT_NE(page.find(std::string("\\f[B]") + key + "\\f[R]"), std::string::npos) << key;
  }
}

// The completions that bash offers for a command line whose last word is being typed.
std::string BashOffers(const std::string& words, int last) {
  return RunProgram({"bash", "-c",
                     "source " + PathOf("bash-completion/completions/kvtierctl") +
                         "; COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(last) +
                         "; _kvtierctl; echo \"${COMPREPLY[*]}\""})
      .output;
}

TEST(CompletionTest, BashOffersCommandsOptionsAndChoices) {
  REQUIRE_PROGRAM("bash");
  for (const char* program : {"kvtierctl", "kvtierd"}) {
    const std::string path = PathOf(std::string("bash-completion/completions/") + program);
    EXPECT_EQ(RunProgram({"bash", "-n", path}).exit_code, 0);
  }
  EXPECT_EQ(BashOffers("kvtierctl in", 1), "inspect\n");
  EXPECT_EQ(BashOffers("kvtierctl --json --socket /x un", 4), "unpin\n");
  EXPECT_EQ(BashOffers("kvtierctl ls --ti", 2), "--tier --timeout\n");
  EXPECT_EQ(BashOffers("kvtierctl ls --tier ''", 3), "pool host disk cold\n");
  EXPECT_EQ(BashOffers("kvtierctl ls --tier h", 3), "host\n");
}

TEST(CompletionTest, FishOffersCommandsOptionsAndChoices) {
  REQUIRE_PROGRAM("fish");
  const auto offers = [](const std::string& line) {
    return RunProgram({"fish", "--no-config", "-c",
                       "source " + PathOf("fish/vendor_completions.d/kvtierctl.fish") +
                           "; complete -C '" + line + "'"})
        .output;
  };
  EXPECT_TRUE(offers("kvtierctl in").starts_with("inspect\t")) << offers("kvtierctl in");
  EXPECT_NE(offers("kvtierctl ls --ti").find("--tier\t"), std::string::npos);
  EXPECT_TRUE(offers("kvtierctl ls --tier h").starts_with("host\t"));
}

TEST(CompletionTest, ZshReadsItsFunctions) {
  REQUIRE_PROGRAM("zsh");
  for (const char* program : {"_kvtierctl", "_kvtierd"}) {
    const ProgramResult read =
        RunProgram({"zsh", "-f", "-n", PathOf(std::string("zsh/vendor-completions/") + program)});
    EXPECT_EQ(read.exit_code, 0) << read.errors;
  }
}

}  // namespace
}  // namespace kvtier
