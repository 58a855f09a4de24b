// SPDX-License-Identifier: Apache-2.0
// kvtierctl's commands on single blocks, against a real daemon.
#include <filesystem>
#include <fstream>

#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr size_t kBlocks = 12;
// The name of the model of these tests' client.
const std::string kModel = "kvtier-replay";

class BlocksTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    StartDaemon();
    EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  }
  static boost::json::value Json(const ProgramResult& result) {
    boost::json::error_code error;
    const boost::json::value value = boost::json::parse(result.output, error);
    EXPECT_FALSE(error) << result.output << result.errors;
    return value;
  }
  static std::string Hash(size_t block) { return Prompt("a", kBlocks).hashes[block].Hex(); }
  static size_t Lines(const std::string& text) {
    return static_cast<size_t>(std::ranges::count(text, '\n'));
  }
  // kvtierctl with `input` on its standard input.
  ProgramResult CtlReading(const std::string& input, const std::string& arguments) {
    const std::string path = directory() + "/input";
    std::ofstream(path) << input;
    return RunProgram(
        {"sh", "-c",
         KvtierctlPath() + " --socket " + daemon().socket() + " " + arguments + " <" + path});
  }
};

TEST_F(BlocksTest, LsShowsEveryBlockInEightyColumns) {
  const ProgramResult ls = Ctl({"ls"});
  EXPECT_EQ(ls.exit_code, 0) << ls.errors;
  EXPECT_EQ(Lines(ls.output), kBlocks + 1);
  std::istringstream lines(ls.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_EQ(Lines(Ctl({"ls", "--limit", "5", "--hashes"}).output), 5u);
  EXPECT_EQ(Ctl({"ls", "--tenant", "absent"}).output, "");
}

TEST_F(BlocksTest, LsInJsonIsOneDocument) {
  const boost::json::value document = Json(Ctl({"ls", "--json"}));
  EXPECT_EQ(document.at("schema"), "kvtier.ls/1");
  EXPECT_EQ(document.at("count"), kBlocks);
  EXPECT_EQ(document.at("complete"), true);
  EXPECT_EQ(document.at("blocks").at(0).at("tenant"), "default");
  EXPECT_EQ(Json(Ctl({"ls", "--json", "--tier", "disk"})).at("count"), 0);
}

TEST_F(BlocksTest, InspectTakesTheFirstDigitsOfACachedBlock) {
  const ProgramResult shown = Ctl({"inspect", Hash(3).substr(0, 10)});
  EXPECT_EQ(shown.exit_code, 0) << shown.errors;
  EXPECT_NE(shown.output.find(Hash(3)), std::string::npos);
  EXPECT_NE(shown.output.find("after 3 blocks"), std::string::npos);
  EXPECT_EQ(Ctl({"inspect", "not-a-hash"}).exit_code, 2);
  EXPECT_EQ(Ctl({"inspect", "0000000000"}).exit_code, 4);
  const ProgramResult ambiguous = Ctl({"inspect", Hash(3).substr(0, 1), "--json"});
  EXPECT_NE(ambiguous.exit_code, 0);
}

TEST_F(BlocksTest, InspectTellsWhyABlockIsGone) {
  EXPECT_EQ(Ctl({"evict", Hash(0)}).exit_code, 0);
  const boost::json::value document = Json(Ctl({"inspect", Hash(0), "--json"}));
  EXPECT_EQ(document.at("blocks").at(0).at("cached"), false);
  EXPECT_EQ(document.at("blocks").at(0).at("last_drop").at("reason"), "evicted_by_hand");
  EXPECT_EQ(document.at("blocks").at(0).at("last_miss").at("reason"), "unknown");
  const ProgramResult shown = Ctl({"inspect", Hash(0)});
  EXPECT_EQ(shown.exit_code, 4);
  EXPECT_NE(shown.output.find("an administrator evicted it"), std::string::npos);
}

TEST_F(BlocksTest, HashesAreReadFromStandardInput) {
  const ProgramResult evicted = CtlReading(Hash(0) + "\n" + Hash(1) + "\n", "evict - --json");
  EXPECT_EQ(evicted.exit_code, 0) << evicted.errors;
  EXPECT_EQ(Json(evicted).at("evicted"), 2);
}

// A script's variable that is empty or misspelt must not mean all blocks, nor look like a success.
TEST_F(BlocksTest, ANameThatIsEmptyOrOfNoneEvictsNothing) {
  EXPECT_EQ(Ctl({"evict", "--all", "--tenant", ""}).exit_code, 2);
  EXPECT_EQ(Ctl({"evict", "--all", "--model", ""}).exit_code, 2);
  EXPECT_EQ(Ctl({"forget", kModel, "--tenant", ""}).exit_code, 2);
  EXPECT_EQ(
      Ctl({"erase", "--tenant", "default", "--without-proof", "--yes", "--before", ""}).exit_code,
      2);
  EXPECT_EQ(Ctl({"evict", "--all", "--tenant", "defualt"}).exit_code, 4);
  EXPECT_EQ(Ctl({"evict", "--all", "--model", "absent"}).exit_code, 4);
  EXPECT_EQ(CtlReading("\n", "evict -").exit_code, 4);
  EXPECT_EQ(Lines(Ctl({"ls", "--hashes"}).output), kBlocks);
}

TEST_F(BlocksTest, PinnedBlocksOutliveAnEviction) {
  EXPECT_EQ(Ctl({"pin", Hash(0), Hash(1), "--hours", "2"}).exit_code, 0);
  const boost::json::value evicted = Json(Ctl({"evict", "--all", "--json"}));
  EXPECT_EQ(evicted.at("pinned"), 2);
  EXPECT_EQ(evicted.at("evicted"), kBlocks - 2);
  EXPECT_EQ(Lines(Ctl({"ls", "--hashes"}).output), 2u);
  EXPECT_EQ(Ctl({"unpin", Hash(0), Hash(1)}).exit_code, 0);
  EXPECT_EQ(Ctl({"evict", "--all"}).exit_code, 0);
  EXPECT_EQ(Ctl({"pin", Hash(0)}).exit_code, 4);
}

TEST_F(BlocksTest, AHashOfTwoModelsIsOneHash) {
  EXPECT_EQ(Ctl({"drain"}).exit_code, 0);
  auto other = ReplayClient::Connect({.socket = daemon().socket(),
                                      .settle_admin_socket = daemon().admin_socket(),
                                      .block_bytes = kTestBlockBytes / 2},
                                     kTestBlockTokens);
  ASSERT_TRUE(other) << other.error().ToString();
  EXPECT_TRUE(other->Play(Prompt("a", 2)));
  (void)other->Finish();
  EXPECT_EQ(Lines(Ctl({"ls", "--hashes"}).output), kBlocks + 2);
  const std::string absent(64, '0');
  const ProgramResult pinned = Ctl({"pin", Hash(0), Hash(0), absent});
  EXPECT_EQ(pinned.exit_code, 8);
  EXPECT_NE(pinned.output.find("2 blocks pinned for 1 d"), std::string::npos) << pinned.output;
  EXPECT_NE(pinned.output.find("; 1 not cached there"), std::string::npos) << pinned.output;
  EXPECT_EQ(Ctl({"unpin", Hash(0)}).exit_code, 0);
  EXPECT_EQ(Ctl({"drain"}).exit_code, 0);
  const ProgramResult some = CtlReading(Hash(0) + "\n" + Hash(0) + "\n", "evict -");
  EXPECT_EQ(some.exit_code, 0) << some.output;
  const ProgramResult rest = Ctl({"evict", "--all"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(Lines(Ctl({"ls"}).output), 0u);
}

TEST_F(BlocksTest, ModelsShowsEpochAndSize) {
  const ProgramResult shown = Ctl({"models"});
  EXPECT_EQ(shown.exit_code, 0) << shown.errors;
  EXPECT_EQ(Lines(shown.output), 2u) << shown.output;
  EXPECT_NE(shown.output.find("default/" + kModel), std::string::npos) << shown.output;
  const boost::json::value document = Json(Ctl({"models", "--json"}));
  EXPECT_EQ(document.at("schema"), "kvtier.models/1");
  EXPECT_EQ(document.at("models").at(0).at("blocks"), kBlocks);
  const ProgramResult none = Ctl({"models", "--tenant", "absent"});
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_EQ(none.output, "");
}

TEST_F(BlocksTest, ForgetTakesAModelAndAnEpochOfIt) {
  const ProgramResult pinned = Ctl({"pin", Hash(0)});
  EXPECT_EQ(pinned.exit_code, 0) << pinned.errors;
  EXPECT_EQ(Ctl({"forget"}).exit_code, 2);
  EXPECT_EQ(Ctl({"forget", "absent"}).exit_code, 4);
  EXPECT_EQ(Ctl({"forget", kModel + "@absent"}).exit_code, 4);
  EXPECT_EQ(Ctl({"forget", kModel + "@"}).exit_code, 2) << "not all of them";
  const ProgramResult most = Ctl({"forget", kModel});
  EXPECT_EQ(most.exit_code, 8);
  EXPECT_NE(most.output.find("11 blocks forgotten; 1 pinned"), std::string::npos) << most.output;
  EXPECT_EQ(Ctl({"unpin", Hash(0)}).exit_code, 0);
  const boost::json::value rest = Json(Ctl({"forget", kModel, "--json"}));
  EXPECT_EQ(rest.at("evicted"), 1);
  EXPECT_EQ(Lines(Ctl({"ls"}).output), 0u);
}

TEST_F(BlocksTest, EvictFromOneTierLeavesTheCopiesBelow) {
  EXPECT_EQ(Ctl({"drain"}).exit_code, 0);
  EXPECT_EQ(Ctl({"evict", "--all", "--tier", "pool"}).exit_code, 0);
  EXPECT_EQ(Json(Ctl({"ls", "--json", "--tier", "pool"})).at("count"), 0);
  EXPECT_EQ(Json(Ctl({"ls", "--json", "--tier", "disk"})).at("count"), kBlocks);
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(Ctl({"evict"}).exit_code, 2);
}

TEST_F(BlocksTest, ConfigTellsWhatIsNotTheDefault) {
  const ProgramResult changed = Ctl({"config", "--changed"});
  EXPECT_EQ(changed.exit_code, 0) << changed.errors;
  EXPECT_NE(changed.output.find("\nbytes = \"1MiB\"  # default \"1GiB\"\n"), std::string::npos)
      << changed.output;
  EXPECT_EQ(changed.output.find("max_clients"), std::string::npos);
  // Its output is a configuration.
  const std::string path = directory() + "/effective.toml";
  std::ofstream(path) << Ctl({"config"}).output;
  EXPECT_EQ(RunProgram({KvtierdPath(), "--config", path, "--check-config"}).exit_code, 0);
  EXPECT_EQ(Json(Ctl({"config", "--json"})).at("schema"), "kvtier.effective_config/1");
}

TEST_F(BlocksTest, TopIsPlainWhereNobodyWatches) {
  const ProgramResult top = Ctl({"top", "--count", "2", "--interval", "0.1"});
  EXPECT_EQ(top.exit_code, 0) << top.errors;
  EXPECT_EQ(top.output.find('\x1b'), std::string::npos);
  EXPECT_NE(top.output.find("blocks/s"), std::string::npos);
  std::istringstream lines(top.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const ProgramResult json = Ctl({"top", "--count", "2", "--interval", "0.1", "--json"});
  EXPECT_EQ(Lines(json.output), 2u);
}

TEST_F(BlocksTest, SizeReadsAModelAndWritesAConfiguration) {
  const std::string model = directory() + "/config.json";
  std::ofstream(model) << R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "torch_dtype": "bfloat16"})";
  const boost::json::value size = Json(
      RunProgram({KvtierctlPath(), "size", model, "--pool", "1GiB", "--host", "64MiB", "--json"}));
  EXPECT_EQ(size.at("schema"), "kvtier.size/1");
  EXPECT_EQ(size.at("bytes_per_token"), 128 * kKiB);
  EXPECT_EQ(size.at("block_bytes"), 2 * kMiB);
  EXPECT_EQ(size.at("tiers").at("pool").at("blocks"), 512);
  EXPECT_EQ(size.at("tiers").at("host").at("blocks"), 31);
  const std::string path = directory() + "/sized.toml";
  std::ofstream(path) << boost::json::value_to<std::string>(size.at("config"));
  EXPECT_EQ(RunProgram({KvtierdPath(), "--config", path, "--check-config"}).exit_code, 0);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "size", directory() + "/absent"}).exit_code, 4);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "size", model, "--pool", "12"}).exit_code, 2);
}

TEST_F(BlocksTest, BenchMeasuresAPrivateDaemonAndDrawsIt) {
  REQUIRE_PROGRAM("gnuplot");
  const std::string picture = directory() + "/bench.svg";
  const ProgramResult bench =
      Ctl({"bench", "--spawn", "--pool", "24MiB", "--host", "96MiB", "--disk", "0B",
           "--repetitions", "1", "--block-bytes", "64KiB,1MiB", "--directory", directory(),
           "--plot", picture, "--json"});
  EXPECT_EQ(bench.exit_code, 0) << bench.errors;
  EXPECT_EQ(Json(bench).at("schema"), "kvtier.bench/1");
  EXPECT_EQ(Json(bench).at("onload").as_array().size(), 2u);
  std::ifstream file(picture);
  std::string first;
  std::getline(file, first);
  EXPECT_NE(first.find("<?xml"), std::string::npos);
  EXPECT_EQ(Ctl({"bench", "--pool", "1GiB"}).exit_code, 2) << "sizes without --spawn";
  EXPECT_EQ(Ctl({"bench", "--spawn", "--pool", "1MiB"}).exit_code, 2);
}

// A slab of 16 MiB holds seven blocks of 2 MiB, so that a disk of the sets' bytes would not do.
TEST_F(BlocksTest, BenchLoadsLargeBlocksFromDisk) {
  const ProgramResult bench =
      Ctl({"bench", "--spawn", "--pool", "48MiB", "--host", "160MiB", "--disk", "256MiB",
           "--block-bytes", "2MiB", "--directory", directory(), "--json"});
  ASSERT_EQ(bench.exit_code, 0) << bench.errors << bench.output;
  EXPECT_EQ(Json(bench).at("onload").as_array().size(), 2u);
}

TEST_F(BlocksTest, BenchWithoutGnuplotSaysSoBeforeItMeasures) {
  const std::string picture = directory() + "/bench.svg";
  const ProgramResult bench = RunProgram(
      {"env", "PATH=" + directory(), KvtierctlPath(), "bench", "--spawn", "--plot", picture});
  EXPECT_EQ(bench.exit_code, 4) << bench.errors;
  EXPECT_EQ(bench.output, "");
  EXPECT_NE(bench.errors.find("no_gnuplot"), std::string::npos) << bench.errors;
  EXPECT_FALSE(std::filesystem::exists(picture));
}

TEST_F(BlocksTest, WhatIsNotThereIsSaidAndWhatIsNoCommandRefused) {
  const ProgramResult listed = Ctl({"ls", "--tenant", "absent"});
  EXPECT_EQ(listed.exit_code, 0);
  EXPECT_EQ(listed.errors, "no blocks\n");
  EXPECT_EQ(Ctl({"ls", "--tenant", "absent", "--hashes"}).errors, "");
  const ProgramResult unknown = RunProgram({KvtierctlPath(), "stats", "--help"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.errors.find("there is no command \"stats\""), std::string::npos);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "status", "--help"}).exit_code, 0);
  const ProgramResult misled =
      RunProgram({KvtierctlPath(), "--admin-socket", daemon().socket(), "status"});
  EXPECT_NE(misled.errors.find("--admin-socket PATH names the other one"), std::string::npos);
}

}  // namespace
}  // namespace kvtier
