// SPDX-License-Identifier: Apache-2.0
// kvtierctl against a real daemon: its output and its exit code.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr size_t kBlocks = 30;
constexpr unsigned kNobody = 65534;

class KvtierctlTest : public DaemonTest {
 protected:
  static boost::json::value Json(const ProgramResult& result) {
    boost::json::error_code error;
    const boost::json::value value = boost::json::parse(result.output, error);
    EXPECT_FALSE(error) << result.output << result.errors;
    return value;
  }
  static std::string Schema(const boost::json::value& value) {
    return JsonView(&value)["schema"].Text();
  }

  // A trace file of `requests` prompts of five blocks, every second one repeated.
  std::string WriteTrace(int requests) {
    const std::string path = directory() + "/trace.jsonl";
    std::ofstream file(path);
    for (int i = 0; i < requests; ++i) {
      const int first = i / 2 * 5;
      file << R"({"timestamp": )" << i << R"(, "input_length": 2560, "output_length": 1, )"
           << R"("hash_ids": [)" << first;
      for (int j = 1; j < 5; ++j) file << ", " << first + j;
      file << "]}\n";
    }
    return path;
  }

  // Changes one byte in every slot's payload area of the data file that holds data.
  void DamagePayloads() {
    for (const auto& entry : std::filesystem::directory_iterator(daemon().disk_directory())) {
      if (!entry.is_regular_file() || entry.file_size() < kMiB) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      for (uint64_t offset = kMiB; offset + kTestSlabBytes <= entry.file_size();
           offset += kTestSlabBytes) {
        // The first slot of a slab follows the slab's header; its payload follows its own.
        const auto place = static_cast<std::streamoff>(offset + 8 * kKiB + 100);
        file.seekg(place);
        const char byte = static_cast<char>(file.get());
        file.seekp(place);
        file.put(static_cast<char>(byte ^ 1));
      }
    }
  }
};

TEST_F(KvtierctlTest, StatusShowsTiersSessionsAndEnginesInEightyColumns) {
  StartDaemon();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Play(Prompt("a", kBlocks)));
  const ProgramResult status = Ctl({"status"});
  EXPECT_EQ(status.exit_code, 0) << status.errors;
  for (const char* word : {"kvtierd", "serving", "pool", "host", "disk", "sessions 1"}) {
    EXPECT_NE(status.output.find(word), std::string::npos) << word << "\n" << status.output;
  }
  EXPECT_TRUE(status.output.find("io_uring") != std::string::npos ||
              status.output.find("pread") != std::string::npos);
  EXPECT_EQ(status.output.find('\x1b'), std::string::npos) << "colour without a terminal";
  std::istringstream lines(status.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(KvtierctlTest, RanksOfAModelShareHostAndDiskAndHaveAPoolEach) {
  const std::string config = directory() + "/config.json";
  std::ofstream(config) << R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
      "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8,
      "torch_dtype": "bfloat16"})";
  const auto tokens = [&](const std::string& tier, const std::string& ranks) {
    const ProgramResult result =
        RunProgram({KvtierctlPath(), "--json", "size", config, "--tensor-parallel", ranks, "--pool",
                    "40GiB", "--host", "200GiB", "--disk", "4TiB"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const boost::json::value size = Json(result);
    return static_cast<double>(JsonView(&size)["tiers"][tier]["tokens"].Count());
  };
  // A rank's blocks are an eighth as large, and each token has one on every rank.
  EXPECT_NEAR(tokens("host", "8") / tokens("host", "1"), 1, 0.1);
  EXPECT_NEAR(tokens("disk", "8") / tokens("disk", "1"), 1, 0.1);
  EXPECT_NEAR(tokens("pool", "8") / tokens("pool", "1"), 8, 0.1) << "eight GPUs";
  const ProgramResult text =
      RunProgram({KvtierctlPath(), "size", config, "--tensor-parallel", "8"});
  EXPECT_NE(text.output.find("its 8 ranks share host memory and disk"), std::string::npos)
      << text.output;
  const ProgramResult refused = RunProgram({KvtierctlPath(), "size", config, "--host", "1MiB"});
  EXPECT_NE(refused.exit_code, 0) << "kvtierd would refuse such a configuration";
  EXPECT_NE(refused.errors.find("less than one slab"), std::string::npos) << refused.errors;
}

TEST_F(KvtierctlTest, ABenchOfARunningDaemonLeavesNoBlockBehind) {
  StartDaemon({}, {"pool.bytes=128MiB", "host.bytes=64MiB", "disk.bytes=64MiB"});
  const ProgramResult bench = Ctl({"bench", "--samples", "3"});
  EXPECT_EQ(bench.exit_code, 0) << bench.errors;
  EXPECT_NE(bench.output.find("8,192"), std::string::npos) << bench.output;
  const boost::json::value left = Json(Ctl({"ls", "--json"}));
  EXPECT_TRUE(left.at("blocks").as_array().empty());
  EXPECT_EQ(Ctl({"drain"}).exit_code, 0);
  EXPECT_TRUE(Json(Ctl({"ls", "--json"})).at("blocks").as_array().empty());
}

TEST_F(KvtierctlTest, StatusInJsonIsTheDaemonsDocument) {
  StartDaemon();
  const ProgramResult result = Ctl({"status", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const boost::json::value status = Json(result);
  EXPECT_EQ(Schema(status), "kvtier.status/1");
  EXPECT_EQ(JsonView(&status)["pid"].Count(), static_cast<uint64_t>(daemon().pid()));
  EXPECT_EQ(JsonView(&status)["device"]["kind"].Text(), "host");
}

TEST_F(KvtierctlTest, UsageSaysWhatEachTenantHas) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  const boost::json::value usage = Json(Ctl({"usage", "--json"}));
  EXPECT_EQ(Schema(usage), "kvtier.usage/1");
  const JsonView tenant(&usage.at("tenants").at(0));
  EXPECT_EQ(tenant["tenant"].Text(), "default");
  EXPECT_GE(tenant["pool"]["held_bytes"].Count(), kBlocks * kTestBlockBytes);
  const ProgramResult text = Ctl({"usage", "--tenant", "default"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.output.find("100.0 %"), std::string::npos) << text.output;
  EXPECT_EQ(Ctl({"usage", "--tenant", "absent"}).exit_code, 4);
}

TEST_F(KvtierctlTest, SocketOptionTakesTheAdminSocketToo) {
  StartDaemon();
  EXPECT_EQ(
      RunProgram({KvtierctlPath(), "--admin-socket", daemon().admin_socket(), "status"}).exit_code,
      0);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--socket", daemon().admin_socket(), "status"}).exit_code,
            0);
}

TEST_F(KvtierctlTest, DrainWritesEverythingAndVerifyReadsItBack) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  const ProgramResult drained = Ctl({"drain", "--json"});
  EXPECT_EQ(drained.exit_code, 0) << drained.errors;
  const boost::json::value drain = Json(drained);
  EXPECT_EQ(Schema(drain), "kvtier.drain/1");
  EXPECT_EQ(JsonView(&drain)["left"].Count(), 0u);

  const ProgramResult verified = Ctl({"verify", "--json"});
  EXPECT_EQ(verified.exit_code, 0) << verified.errors;
  const boost::json::value verify = Json(verified);
  EXPECT_EQ(Schema(verify), "kvtier.verify/1");
  EXPECT_EQ(JsonView(&verify)["checked"].Count(), kBlocks);
  EXPECT_EQ(JsonView(&verify)["bad"].Count(), 0u);
}

TEST_F(KvtierctlTest, VerifyFailsWhenTheDiskTierWasDeletedUnderTheDaemon) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Ctl({"drain"}).exit_code, 0);
  std::filesystem::remove_all(daemon().disk_directory());
  const ProgramResult verified = Ctl({"verify"});
  EXPECT_EQ(verified.exit_code, 5) << verified.output;
  EXPECT_NE(verified.output.find(daemon().disk_directory() + " was deleted"), std::string::npos)
      << verified.output;
}

TEST_F(KvtierctlTest, DamagedPayloadsAreFoundByVerifyAndNeverServed) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Ctl({"drain"}).exit_code, 0);
  daemon().Kill();
  DamagePayloads();
  ASSERT_TRUE(daemon().Restart());

  const ProgramResult verified = Ctl({"verify", "--json"});
  EXPECT_EQ(verified.exit_code, 5) << verified.output << verified.errors;
  const boost::json::value verify = Json(verified);
  EXPECT_EQ(JsonView(&verify)["bad"].Count(), kBlocks / kTestSlotsPerSlab);
  const ReplayReport report = Play(Prompt("a", kBlocks));
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_GT(report.blocks.miss, 0u);
}

TEST_F(KvtierctlTest, EraseWantsAYesAndSaysWhatIsGone) {
  StartDaemon({}, {"disk.encryption=aes-256-gcm"});
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Ctl({"drain"}).exit_code, 0);
  const ProgramResult mistyped = Ctl({"erase", "--tenant", "defualt", "--yes"});
  EXPECT_EQ(mistyped.exit_code, 4) << mistyped.output;
  EXPECT_NE(mistyped.errors.find("unknown_tenant"), std::string::npos) << mistyped.errors;
  EXPECT_NE(mistyped.errors.find("default"), std::string::npos) << mistyped.errors;
  const ProgramResult unconfirmed = Ctl({"erase", "--tenant", "default"});
  EXPECT_EQ(unconfirmed.exit_code, 2);
  EXPECT_NE(unconfirmed.errors.find("--yes"), std::string::npos) << unconfirmed.errors;
  for (const char* time : {"yesterday", "2026-13-01", "2026-11-23T25:00", "2026-11-23 18:00"}) {
    EXPECT_EQ(Ctl({"erase", "--tenant", "default", "--yes", "--before", time}).exit_code, 2);
  }
  // All blocks are younger.
  for (const char* time : {"2d", "1970-01-01", "2001-02-03", "2001-02-03T04:05Z"}) {
    const ProgramResult older = Ctl({"erase", "--tenant", "default", "--yes", "--before", time});
    EXPECT_EQ(older.exit_code, 0) << older.errors;
    EXPECT_NE(older.output.find("disk: 0 blocks"), std::string::npos) << older.output;
  }
  const ProgramResult erased = Ctl({"erase", "--tenant", "default", "--yes", "--json"});
  EXPECT_EQ(erased.exit_code, 0) << erased.errors;
  const boost::json::value reply = Json(erased);
  EXPECT_EQ(Schema(reply), "kvtier.erase/1");
  EXPECT_EQ(JsonView(&reply)["blocks"]["disk"].Count(), kBlocks);
  EXPECT_GE(JsonView(&reply)["keys"].Count(), 1u);
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  EXPECT_TRUE(Eventually([this] { return Log().find("erase.ended") != std::string::npos; }));
}

TEST_F(KvtierctlTest, ReplayAndBenchUseTheDeviceThatIsNamed) {
  StartDaemon({}, {R"(pool.device=["host", "host"])"});
  const std::string trace = WriteTrace(4);
  EXPECT_EQ(Ctl({"replay", trace, "--block-bytes", "16KiB", "--device", "host"}).exit_code, 0);
  const ProgramResult absent = Ctl({"replay", trace, "--device", "cuda:1"});
  EXPECT_EQ(absent.exit_code, 4);
  EXPECT_NE(absent.errors.find("it has: host, host"), std::string::npos) << absent.errors;
  EXPECT_EQ(Ctl({"replay", trace, "--device", "gpu"}).exit_code, 2);
  EXPECT_EQ(Ctl({"replay", trace, "--limit", "0"}).exit_code, 2) << "it would play all";
  EXPECT_EQ(Ctl({"bench", "--device", "cuda:0"}).exit_code, 4);
  const ProgramResult own = RunProgram({KvtierctlPath(), "replay", trace, "--spawn", "--directory",
                                        directory(), "--device", "host", "--pool", "1MiB", "--host",
                                        "1MiB", "--disk", "0B", "--block-bytes", "16KiB"});
  EXPECT_EQ(own.exit_code, 0) << own.errors;
  const ProgramResult mistyped =
      RunProgram({KvtierctlPath(), "replay", trace, "--spawn", "--set", "pool.byts=1MiB"});
  EXPECT_EQ(mistyped.exit_code, 2);
  EXPECT_NE(mistyped.errors.find("the nearest is \"bytes\""), std::string::npos) << mistyped.errors;
}

TEST_F(KvtierctlTest, ReplayReportsInTheDocumentedForm) {
  StartDaemon();
  const std::string trace = WriteTrace(8);
  const ProgramResult result = Ctl({"replay", trace, "--block-bytes", "16384", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const boost::json::value report = Json(result);
  const JsonView view(&report);
  EXPECT_EQ(view["schema"].Text(), "kvtier.replay/1");
  EXPECT_EQ(view["requests"].Count(), 8u);
  EXPECT_EQ(view["blocks"]["asked"].Count(), 40u);
  EXPECT_EQ(view["blocks"]["miss"].Count(), 20u);
  EXPECT_EQ(view["tokens"]["asked"].Count(), 8u * 2560);
  EXPECT_EQ(view["wrong_blocks"].Count(), 0u);
  for (const char* member : {"acquire_us", "onload_gbps", "seconds"}) {
    EXPECT_TRUE(view[member].present()) << member;
  }
}

TEST_F(KvtierctlTest, ReplayStartsADaemonOfItsOwnAndLeavesNothingBehind) {
  const std::string trace = WriteTrace(8);
  const std::string parent = directory() + "/spawn";
  std::filesystem::create_directory(parent);
  const ProgramResult result = Ctl({"replay", trace, "--spawn", "--pool", "4MiB", "--host", "16MiB",
                                    "--disk", "16MiB", "--directory", parent, "--clients", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(std::filesystem::is_empty(parent));
}

TEST_F(KvtierctlTest, PoolTooSmallForARequestIsPartialSuccess) {
  // One block less than each of the requests has.
  StartDaemon({.pool_blocks = 4, .host_blocks = 64, .disk_blocks = 64});
  const std::string trace = WriteTrace(2);
  const ProgramResult result = Ctl({"replay", trace, "--block-bytes", "16KiB", "--json"});
  EXPECT_EQ(result.exit_code, 8) << result.errors;
  EXPECT_NE(result.errors.find("no room"), std::string::npos) << result.errors;
}

TEST_F(KvtierctlTest, ExitCodesTellWhatWentWrong) {
  const std::string nowhere = directory() + "/absent.sock";
  EXPECT_EQ(RunProgram({KvtierctlPath()}).exit_code, 2);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "frobnicate"}).exit_code, 2);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "status", "--nonsense"}).exit_code, 2);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--help"}).exit_code, 0);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--version"}).exit_code, 0);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--socket", nowhere, "status"}).exit_code, 3);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--socket", nowhere, "verify"}).exit_code, 3);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--socket", nowhere, "replay", WriteTrace(1)}).exit_code,
            3);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "replay", directory() + "/absent"}).exit_code, 4);
  EXPECT_EQ(
      RunProgram({KvtierctlPath(), "replay", WriteTrace(1), "--block-bytes", "100"}).exit_code, 2);
}

TEST_F(KvtierctlTest, HelpAndVersionMayBeAskedForInWords) {
  const auto told = [](std::vector<std::string> words) {
    words.insert(words.begin(), KvtierctlPath());
    const ProgramResult run = RunProgram(words);
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    return run.output;
  };
  EXPECT_EQ(told({"help"}), told({"--help"}));
  EXPECT_EQ(told({"help", "ls"}), told({"ls", "--help"}));
  EXPECT_EQ(told({"version"}), told({"--version"}));
  EXPECT_EQ(told({"-V"}), told({"--version"}));
  EXPECT_EQ(told({"--json", "help"}), told({"--help"}));
  EXPECT_EQ(told({"--json", "version"}), told({"--version"}));
  EXPECT_EQ(told({"--timeout", "5", "--json", "help", "ls"}), told({"ls", "--help"}));
  EXPECT_EQ(told({"--socket", "help", "--timeout=5", "version"}), told({"--version"}));
  EXPECT_NE(told({"help", "ls"}).find("--tier"), std::string::npos);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "help", "frobnicate"}).exit_code, 2);
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--socket", "ls", "frobnicate", "--help"}).exit_code, 2);
}

TEST_F(KvtierctlTest, WrongUsesSayWhatIsWrongAndWhatToDo) {
  const ProgramResult nothing = RunProgram({KvtierctlPath()});
  EXPECT_NE(nothing.errors.find("a command is missing"), std::string::npos) << nothing.errors;
  const ProgramResult unknown = RunProgram({KvtierctlPath(), "frobnicate"});
  EXPECT_NE(unknown.errors.find("no command \"frobnicate\""), std::string::npos);
  EXPECT_NE(unknown.errors.find("inspect"), std::string::npos) << "the commands are listed";
  const ProgramResult absent =
      RunProgram({KvtierctlPath(), "--socket", directory() + "/absent.sock", "status"});
  EXPECT_NE(absent.errors.find("is kvtierd running"), std::string::npos) << absent.errors;
  const std::string file = directory() + "/not-json";
  std::ofstream(file) << "x";
  const ProgramResult trace = RunProgram({KvtierctlPath(), "replay", file});
  EXPECT_EQ(trace.errors.find("boost"), std::string::npos) << trace.errors;
  StartDaemon();
  EXPECT_EQ(Ctl({"ls", "--limit", "-1"}).exit_code, 2);
  EXPECT_EQ(Ctl({"top", "--count", "-1"}).exit_code, 2);
}

TEST_F(KvtierctlTest, ErrorsOfUseNameTheProgram) {
  const std::vector<std::vector<std::string>> uses = {{},
                                                      {"frobnicate"},
                                                      {"status", "--nonsense"},
                                                      {"ls", "--limit", "abc"},
                                                      {"bench", "--plot", "x"},
                                                      {"bench", "--spawn", "--plot", "/no/x.svg"},
                                                      {"bench", "--spawn", "--drives", "/no"}};
  for (std::vector<std::string> use : uses) {
    use.insert(use.begin(), KvtierctlPath());
    const ProgramResult result = RunProgram(use);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(result.errors.starts_with("kvtierctl: ")) << result.errors;
    use.emplace_back("--json");
    const ProgramResult document = RunProgram(use);
    EXPECT_EQ(document.exit_code, 2);
    EXPECT_EQ(Schema(Json(document)), "kvtier.error/1");
  }
}

TEST_F(KvtierctlTest, SilentDaemonIsATimeout) {
  StartDaemon();
  ASSERT_EQ(::kill(daemon().pid(), SIGSTOP), 0);
  const ProgramResult silent = Ctl({"--timeout", "1", "status"});
  EXPECT_EQ(silent.exit_code, 6);
  EXPECT_NE(silent.errors.find("--timeout SECONDS"), std::string::npos) << silent.errors;
  ASSERT_EQ(::kill(daemon().pid(), SIGCONT), 0);
  EXPECT_EQ(Ctl({"status"}).exit_code, 0);
}

TEST_F(KvtierctlTest, DoctorAsRootIsRightAboutAServiceWhoseTenantsAreOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root administers the service of another user";
  const std::string config = directory() + "/tenants.toml";
  const auto serve_user = [&](uint32_t uid) {
    std::ofstream(config) << "[[tenant]]\nname = \"engines\"\nuids = [" << uid << "]\n";
  };
  // The start is awaited as a client of it, and so as one of its tenant's users.
  serve_user(0);
  StartDaemon({}, {}, config);
  serve_user(12345);
  ASSERT_EQ(::kill(daemon().pid(), SIGHUP), 0);
  for (std::string users; users != "[12345]";) {
    const boost::json::value shown = Admin("config");
    users = boost::json::serialize(shown.at("tenant").at(0).at("uids"));
  }
  const ProgramResult doctor = Ctl({"doctor", "--directory", directory(), "--json"});
  const boost::json::value report = Json(doctor);
  EXPECT_EQ(JsonView(&report)["failed"].Count(), 0u) << doctor.output;
  EXPECT_EQ(Log().find("server.client_refused"), std::string::npos) << "it did not ask as a client";
}

TEST_F(KvtierctlTest, WhatCannotBeWrittenIsAFailure) {
  StartDaemon();
  for (const std::string command :
       {"status", "status --json", "ls --json", "config", "--version"}) {
    const ProgramResult result = RunProgram(
        {"/bin/sh", "-c",
         KvtierctlPath() + " --socket " + daemon().socket() + " " + command + " > /dev/full"});
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_NE(result.errors.find("No space left"), std::string::npos) << result.errors;
  }
}

TEST_F(KvtierctlTest, OtherUsersMayNotAdminister) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  StartDaemon();
  std::filesystem::permissions(directory(), std::filesystem::perms::all);
  const ProgramResult denied =
      RunProgram({KvtierctlPath(), "--socket", daemon().socket(), "status"}, kNobody);
  EXPECT_EQ(denied.exit_code, 7) << denied.errors;
}

TEST_F(KvtierctlTest, ErrorsInJsonNameCodeAndReason) {
  const ProgramResult result =
      RunProgram({KvtierctlPath(), "--socket", directory() + "/absent.sock", "status", "--json"});
  const boost::json::value error = Json(result);
  EXPECT_EQ(Schema(error), "kvtier.error/1");
  EXPECT_EQ(JsonView(&error)["code"].Text(), "unavailable");
  EXPECT_FALSE(JsonView(&error)["reason"].Text().empty());
}

}  // namespace
}  // namespace kvtier
