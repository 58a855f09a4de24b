// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/units.h"
#include "daemon/config/config_check.h"
#include "daemon/config/config_loader.h"
#include "daemon/config/config_schema.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

Result<Config> Parse(const std::string& text) { return ParseConfig(text, "test.toml", {}); }

// The complaint about `text`; empty if there is none.
std::string ContextOf(const std::string& text) {
  const Result<Config> config = Parse(text);
  return config ? "" : config.error().context;
}

std::string ReasonOf(const std::string& text) {
  const Result<Config> config = Parse(text);
  return config ? "" : config.error().reason;
}

TEST(Config, EmptyFileGivesTheDefaults) {
  const Result<Config> config = Parse("");
  ASSERT_TRUE(config);
  EXPECT_EQ(FormatConfig(*config), FormatConfig(Config{}));
}

TEST(Config, EveryDefaultIsWithinItsOwnBounds) {
  const std::string text = FormatConfig(Config{});
  const Result<Config> config = Parse(text);
  ASSERT_TRUE(config) << config.error().context;
  EXPECT_EQ(FormatConfig(*config), text);
}

TEST(Config, SizesComeBackInTheUnitsInWhichTheyWereGiven) {
  for (const std::string size : {"0B", "4097B", "96KiB", "192MiB", "15625000KiB", "16GB", "16GiB",
                                 "500MB", "2TB", "1000GiB"}) {
    const auto bytes = ParseByteSize(size);
    ASSERT_TRUE(bytes) << size;
    EXPECT_EQ(FormatExactByteSize(*bytes), size == "15625000KiB" ? "16GB" : size);
  }
}

TEST(Config, FormattedConfigReadsBackTheSame) {
  const Result<Config> config = Parse(R"(
[server]
socket = "/tmp/with \"quotes\".sock"
max_clients = 7
[[tenant]]
name = "a"
uids = [1, 2]
[[tenant]]
name = "b"
gids = [3]
[pool]
device = "host"
bytes = "192MiB"
[disk]
bytes = "1.5GiB"
directories = ["/mnt/a", "/mnt/b"]
[retention]
extended_ttl = "7d"
persist_after = "500ms"
[cache]
pool_clean_fraction = 0.25
max_wait_ms = 17
[log]
format = "json"
)");
  ASSERT_TRUE(config) << config.error().context;
  EXPECT_EQ(config->server.socket, "/tmp/with \"quotes\".sock");
  EXPECT_EQ(config->server.max_clients, 7u);
  ASSERT_EQ(config->tenants.size(), 2u);
  EXPECT_EQ(config->tenants[0].uids, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(config->tenants[1].gids, (std::vector<uint32_t>{3}));
  EXPECT_EQ(config->pool.devices, std::vector{DeviceChoice::kHost});
  EXPECT_EQ(config->cache.pool_bytes, 192 * kMiB);
  EXPECT_EQ(config->disk.bytes, 1536 * kMiB);
  EXPECT_EQ(config->disk.directories, (std::vector<std::string>{"/mnt/a", "/mnt/b"}));
  EXPECT_EQ(config->disk.Places().size(), 2u);
  EXPECT_EQ(config->cache.extended_ttl_ms, 7 * 24 * 3600 * 1000);
  EXPECT_EQ(config->cache.persist_after_ms, 500);
  EXPECT_EQ(config->cache.pool_clean_fraction, 0.25);
  EXPECT_EQ(config->cache.max_wait_ms, 17);
  EXPECT_EQ(config->log.format, LogFormat::kJson);

  const std::string text = FormatConfig(*config);
  const Result<Config> again = Parse(text);
  ASSERT_TRUE(again) << again.error().context;
  EXPECT_EQ(FormatConfig(*again), text);
}

TEST(Config, DevicesAreNamedAndNumbered) {
  EXPECT_EQ(Parse("[pool]\ndevice = \"all\"\n")->pool.devices.front(), DeviceChoice::kAll);
  EXPECT_EQ(Parse("[pool]\ndevice = \"cuda:0\"\n")->pool.devices.front(), DeviceChoice::kCuda);
  const Result<Config> fourth = Parse("[pool]\ndevice = \"cuda:3\"\nbytes = \"50%\"\n");
  ASSERT_TRUE(fourth) << fourth.error().context;
  EXPECT_EQ(static_cast<int>(fourth->pool.devices.front()),
            static_cast<int>(DeviceChoice::kCuda) + 3);
  EXPECT_EQ(fourth->pool.free_fraction, 0.5);
  EXPECT_EQ(ReasonOf("[pool]\ndevice = \"cuda:16\"\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[pool]\ndevice = \"gpu\"\n"), "config_out_of_range");
}

TEST(Config, PoolEvictionIsOneOfTwo) {
  EXPECT_EQ(Parse("")->cache.pool_eviction, PoolEviction::kCls);
  EXPECT_EQ(Parse("[pool]\neviction = \"cls\"\n")->cache.pool_eviction, PoolEviction::kCls);
  EXPECT_EQ(Parse("[pool]\neviction = \"lru\"\n")->cache.pool_eviction, PoolEviction::kLru);
  EXPECT_EQ(ReasonOf("[pool]\neviction = \"fifo\"\n"), "config_out_of_range");
}

TEST(Config, SeveralDevicesAreAListEachWithItsSize) {
  const Result<Config> two =
      Parse("[pool]\ndevice = [\"cuda:0\", \"cuda:3\"]\nbytes = [\"16GiB\", \"8GiB\"]\n");
  ASSERT_TRUE(two) << two.error().context;
  const auto fourth = static_cast<DeviceChoice>(static_cast<int>(DeviceChoice::kCuda) + 3);
  EXPECT_EQ(two->pool.devices, (std::vector{DeviceChoice::kCuda, fourth}));
  EXPECT_EQ(two->pool.device_bytes, (std::vector<uint64_t>{16 * kGiB, 8 * kGiB}));
  // The printed text can be read again.
  const Result<Config> again = Parse(FormatConfig(*two));
  ASSERT_TRUE(again) << again.error().context;
  EXPECT_EQ(again->pool.devices, two->pool.devices);
  EXPECT_EQ(again->pool.device_bytes, two->pool.device_bytes);
  EXPECT_TRUE(Parse("[pool]\ndevice = [\"host\", \"host\"]\n"));
}

TEST(Config, SizesInAConflictAreToldWithUnits) {
  EXPECT_THAT(
      ContextOf("[host]\nbytes = \"33MiB\"\n"),
      testing::HasSubstr("host.bytes 33MiB is less than one slab (cache.slab_bytes 64MiB)"));
}

TEST(Config, DevicesThatContradictEachOtherAreRefused) {
  EXPECT_EQ(ReasonOf("[pool]\ndevice = []\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[pool]\ndevice = [\"cuda:0\", 1]\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[pool]\ndevice = [\"cuda:0\", \"cuda:0\"]\n"), "config_conflict");
  EXPECT_EQ(ReasonOf("[pool]\ndevice = [\"all\", \"host\"]\n"), "config_conflict");
  EXPECT_EQ(ReasonOf("[pool]\ndevice = \"all\"\nbytes = [\"1GiB\", \"1GiB\"]\n"),
            "config_conflict");
  EXPECT_EQ(ReasonOf("[pool]\ndevice = \"host\"\nbytes = [\"1GiB\", \"1GiB\"]\n"),
            "config_conflict");
  EXPECT_EQ(ReasonOf("[pool]\nbytes = [\"1B\"]\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[pool]\nbytes = []\n"), "config_out_of_range");
}

TEST(Config, APoolMayTakeAShareOfWhatIsFree) {
  const Result<Config> share = Parse("[pool]\nbytes = \"12.5%\"\n");
  ASSERT_TRUE(share) << share.error().context;
  EXPECT_EQ(share->pool.free_fraction, 0.125);
  const Result<Config> again = Parse(FormatConfig(*share));
  ASSERT_TRUE(again) << again.error().context;
  EXPECT_EQ(again->pool.free_fraction, 0.125);
  const Result<Config> replaced =
      ParseConfig("[pool]\nbytes = \"20%\"\n", "t", {"pool.bytes=1MiB"});
  ASSERT_TRUE(replaced) << replaced.error().context;
  EXPECT_EQ(replaced->pool.free_fraction, 0) << "the last value counts alone";
  EXPECT_EQ(replaced->cache.pool_bytes, 1 * kMiB);
  for (const char* text : {"\"100%\"", "\"0%\"", "\"-5%\"", "\"%\"", "\"half%\"", "[\"50%\"]"}) {
    EXPECT_EQ(ReasonOf(fmt::format("[pool]\nbytes = {}\n", text)), "config_out_of_range") << text;
  }
}

TEST(Config, UnknownKeyNamesPlaceAndNearestKey) {
  EXPECT_EQ(ContextOf("[pool]\nbytes = \"1GiB\"\n  evicton = \"lru\"\n"),
            "test.toml:3:3: there is no key \"evicton\" in [pool]; the nearest is \"eviction\"");
  EXPECT_EQ(ReasonOf("[pool]\nevicton = \"lru\"\n"), "config_unknown_key");
}

TEST(Config, KeyInTheWrongSectionNamesTheRightOne) {
  EXPECT_EQ(ContextOf("[pool]\nmax_clients = 2\n"),
            "test.toml:2:1: there is no key \"max_clients\" in [pool]; it belongs in [server]");
  EXPECT_EQ(ContextOf("[pool]\nuids = [1]\n"),
            "test.toml:2:1: there is no key \"uids\" in [pool]; it belongs in [[tenant]]");
  EXPECT_EQ(ContextOf("uids = [1]\n"),
            "test.toml:1:1: \"uids\" stands in no section; write [[tenant]] above it");
  EXPECT_EQ(ContextOf("[[tenants]]\nuids = [1]\n"),
            "test.toml:1:3: there is no section [tenants]; the nearest is [[tenant]]");
}

TEST(Config, UnknownSectionNamesTheNearest) {
  EXPECT_EQ(ContextOf("[sever]\n"),
            "test.toml:1:2: there is no section [sever]; the nearest is [server]");
}

TEST(Config, FirstMistakeInTheFileIsTold) {
  EXPECT_EQ(ContextOf("[server]\nzzz = 1\naaa = 1\n").substr(0, 14), "test.toml:2:1:");
}

TEST(Config, SizeWithoutUnitIsRefused) {
  EXPECT_EQ(
      ContextOf("[pool]\nbytes = 1073741824\n"),
      "test.toml:2:9: pool.bytes must be a size with a unit, \"64KiB\" to \"1024TiB\", a list of "
      "sizes, or a share up to \"99%\", not an integer");
  EXPECT_EQ(ReasonOf("[pool]\nbytes = 1073741824\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[pool]\nbytes = \"1073741824\"\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[pool]\nbytes = \"12 parsecs\"\n"), "config_out_of_range");
}

TEST(Config, DurationWithoutUnitIsRefused) {
  EXPECT_EQ(ReasonOf("[retention]\nmemory_ttl = 600\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[retention]\nmemory_ttl = \"600\"\n"), "config_out_of_range");
}

TEST(Config, WrongTypesAreRefused) {
  EXPECT_EQ(ReasonOf("[server]\nsocket = 3\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[server]\nmax_clients = \"3\"\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[server]\nmax_clients = 3.5\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[kernels]\nenabled = 1\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[cache]\npool_clean_fraction = \"half\"\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[log]\nlevel = 1979-05-27\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("pool = 3\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[tenant]\nname = \"a\"\n"), "config_wrong_type");
  EXPECT_EQ(ReasonOf("[[tenant]]\nname = \"a\"\nuids = [\"root\"]\n"), "config_wrong_type");
}

TEST(Config, ValuesOutOfRangeSayWhatIsAllowed) {
  EXPECT_EQ(ContextOf("[server]\nmax_clients = 0\n"),
            "test.toml:2:15: server.max_clients 0 is not allowed; must be an integer, 1 to 65536");
  EXPECT_EQ(ReasonOf("[server]\nmax_clients = -1\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[server]\nmax_clients = 9223372036854775807\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[cache]\npool_clean_fraction = 1.5\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[cache]\npool_clean_fraction = nan\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[retention]\nextended_ttl = \"0s\"\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[pool]\nbytes = \"1B\"\n"), "config_out_of_range");
  EXPECT_EQ(ReasonOf("[[tenant]]\nname = \"a\"\nuids = [4294967295]\n"), "config_out_of_range");
  EXPECT_EQ(
      ContextOf("[pool]\neviction = \"fifo\"\n"),
      "test.toml:2:12: pool.eviction \"fifo\" is not allowed; must be one of \"cls\", \"lru\"");
}

TEST(Config, TruncatedFileIsASyntaxErrorWithItsPlace) {
  const std::string text = "[server]\nsocket = \"/run/kv";
  EXPECT_EQ(ReasonOf(text), "config_syntax");
  EXPECT_EQ(ContextOf(text).substr(0, 12), "test.toml:2:");
  EXPECT_EQ(ReasonOf("[serv"), "config_syntax");
  EXPECT_EQ(ReasonOf("[server]\nmax_clients =\n"), "config_syntax");
}

TEST(Config, KeyGivenTwiceIsASyntaxError) {
  EXPECT_EQ(ReasonOf("[server]\nmax_clients = 1\nmax_clients = 2\n"), "config_syntax");
}

TEST(Config, TenantsThatContradictEachOtherAreRefused) {
  const std::string a = "[[tenant]]\nname = \"a\"\nuids = [1]\n";
  EXPECT_EQ(ReasonOf(a + "[[tenant]]\nname = \"a\"\nuids = [2]\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(a + "[[tenant]]\nname = \"b\"\nuids = [1]\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(a + "[[tenant]]\nname = \"b\"\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(a + "[[tenant]]\nuids = [2]\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(a + "[[tenant]]\nname = \"b/c\"\nuids = [2]\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(a + "[[tenant]]\nname = \"b\"\ngids = [1]\n"), "");
  const std::string g = "[[tenant]]\nname = \"g\"\ngids = [100, 100]\n";
  EXPECT_EQ(ReasonOf(g), "") << "twice in one tenant contradicts nothing";
  EXPECT_EQ(ReasonOf(g + "[[tenant]]\nname = \"b\"\ngids = [100]\n"), "config_conflict");
}

TEST(Config, TiersSmallerThanASlabAreRefused) {
  EXPECT_EQ(ReasonOf("[host]\nbytes = \"32MiB\"\n"), "config_conflict");
  EXPECT_EQ(ReasonOf("[disk]\nbytes = \"64MiB\"\n"), "config_conflict");
  EXPECT_EQ(ReasonOf("[disk]\nbytes = \"130MiB\"\ndirectories = [\"/a\", \"/b\"]\n"), "");
}

TEST(Config, ConflictsNameThePlaceTheKeysAndTheWayOut) {
  EXPECT_EQ(ContextOf("[server]\nsocket = \"/tmp/a\"\nadmin_socket = \"/tmp/./a\"\n"),
            "test.toml:3:16: server.socket and server.admin_socket are one address; give one of "
            "them another");
  EXPECT_EQ(ContextOf("[host]\nbytes = \"32MiB\"\n").substr(0, 26), "test.toml:2:9: host.bytes ");
  // The one that was given is the one to change.
  EXPECT_EQ(
      ContextOf("[cache]\nslab_bytes = \"1GiB\"\n[host]\n[disk]\nbytes = \"1GiB\"\n").substr(0, 14),
      "test.toml:5:9:");
  EXPECT_EQ(ContextOf("\n[[tenant]]\nname = \"a\"\n").substr(0, 12), "test.toml:2:");
}

TEST(Config, PathsThatOverlapAreRefused) {
  const std::string disk = "[disk]\nbytes = \"1GiB\"\ndirectory = \"/srv/kv\"\n";
  EXPECT_EQ(ContextOf(disk + "[server]\nsocket = \"/srv/kv/kvtier.sock\"\n"),
            "test.toml:5:10: server.socket \"/srv/kv/kvtier.sock\" and disk.directory \"/srv/kv\" "
            "overlap; that directory is the disk tier's alone, put the socket elsewhere");
  EXPECT_EQ(ReasonOf(disk + "[server]\nadmin_socket = \"/srv/x/../kv/a.sock\"\n"),
            "config_conflict");
  EXPECT_EQ(ReasonOf(disk + "[server]\nadmin_socket = \"/srv/kv\"\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(disk + "[events]\nendpoint = \"ipc:///srv/kv/e\"\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(disk + "[server]\nadmin_socket = \"/srv/kv2/a.sock\"\n"), "");
}

TEST(Config, SocketPathTooLongForTheKernelIsRefused) {
  const std::string longest(107, 'x');
  EXPECT_EQ(ReasonOf("[server]\nsocket = \"" + longest + "\"\n"), "");
  EXPECT_EQ(ContextOf("[server]\nsocket = \"" + longest + "x\"\n"),
            "test.toml:2:10: server.socket a string of 108 bytes is not allowed; must be a string "
            "of 1 to 107 bytes");
}

TEST(Config, AWrongNameOfATenantIsShownWhereItStands) {
  const auto context_of = [](const std::string& name) {
    const std::string text =
        "[[tenant]]\nname = \"a\"\nuids = [1]\n[[tenant]]\nuids = [2]\nname = ";
    return ParseConfig(text + name + "\n", "test.toml", {}).error().context;
  };
  EXPECT_EQ(context_of("\"b/c\""),
            "test.toml:6:8: tenant.name \"b/c\" must be letters, digits, '.', '_' and '-'");
  EXPECT_EQ(context_of("\"a\""), "test.toml:6:8: tenant.name \"a\" is given twice; rename one");
}

TEST(Config, OverridesReplaceTheFile) {
  const Result<Config> config = ParseConfig("[pool]\nbytes = \"1GiB\"\n", "test.toml",
                                            {"pool.bytes=256MiB", "server.max_clients=3",
                                             "kernels.enabled=false", "disk.directory=/x/y"});
  ASSERT_TRUE(config) << config.error().context;
  EXPECT_EQ(config->cache.pool_bytes, 256 * kMiB);
  EXPECT_EQ(config->server.max_clients, 3u);
  EXPECT_FALSE(config->kernels.enabled);
  EXPECT_EQ(config->disk.directory, "/x/y");
}

TEST(Config, BadOverridesAreNamed) {
  const auto context_of = [](const std::string& override_text) {
    const Result<Config> config = ParseConfig("", "test.toml", {override_text});
    return config ? "" : config.error().context;
  };
  EXPECT_EQ(context_of("pool"), "--set pool: must be section.key=value");
  EXPECT_EQ(context_of("pool.byts=1GiB"),
            "--set pool.byts=1GiB: there is no key \"byts\" in [pool]; the nearest is \"bytes\"");
  EXPECT_NE(context_of("tenant.name=a"), "");
  EXPECT_NE(context_of("pool.bytes=1"), "");
}

TEST(Config, UnreadableFileIsNamed) {
  const TestDirectory directory;
  const Result<Config> config = LoadConfig(directory.path() / "none.toml", {});
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().reason, "config_unreadable");
  EXPECT_NE(config.error().context.find("none.toml"), std::string::npos);
  EXPECT_FALSE(LoadConfig(directory.path(), {}));
}

TEST(Config, EndlessFileIsRefused) {
  const TestDirectory directory;
  const std::string path = directory.path() / "long.toml";
  std::ofstream(path) << std::string(kMaxConfigFileBytes + 1, '\n');
  const Result<Config> config = LoadConfig(path, {});
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().reason, "config_too_long");
}

TEST(Config, MetricsAndEventsAreForThisMachineUnlessOthersAreLetIn) {
  EXPECT_TRUE(LoadConfig("", {"metrics.listen=127.0.0.1:9400"}));
  EXPECT_TRUE(LoadConfig("", {"events.endpoint=tcp://127.0.0.1:5557"}));
  EXPECT_FALSE(LoadConfig("", {"events.endpoint=tcp://0.0.0.0:5557"}));
  EXPECT_FALSE(LoadConfig("", {"events.replay_endpoint=tcp://127.0.0.1:5558"}));
  EXPECT_TRUE(LoadConfig("", {}));
  EXPECT_TRUE(LoadConfig("", {"metrics.listen=0.0.0.0:9400", "events.endpoint=tcp://0.0.0.0:5557",
                              "server.listen_beyond_loopback=true"}));
  const Result<Config> open = LoadConfig("", {"metrics.listen=0.0.0.0:9400"});
  ASSERT_FALSE(open);
  EXPECT_NE(open.error().context.find("metrics.listen \"0.0.0.0:9400\""), std::string::npos)
      << open.error().context;
}

TEST(Config, TokenIdsAreOfTenantsThatEventsTellOf) {
  const auto load = [](const std::string& tenants, const std::string& token_ids) {
    return LoadConfig("", {"events.endpoint=tcp://127.0.0.1:5557", "events.tenants=" + tenants,
                           "events.token_ids=" + token_ids});
  };
  EXPECT_TRUE(LoadConfig("", {}).value().events.token_ids.empty());
  EXPECT_TRUE(load("[]", R"(["default"])"));
  EXPECT_TRUE(load(R"(["research"])", R"(["research"])"));
  const Result<Config> untold = load(R"(["research"])", R"(["default", "other"])");
  ASSERT_FALSE(untold);
  EXPECT_NE(untold.error().context.find("the tenant other"), std::string::npos)
      << untold.error().context;
  EXPECT_FALSE(LoadConfig("", {R"(events.token_ids=["default"])"})) << "nothing tells them";
}

TEST(Config, EveryKeyIsExplained) {
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_FALSE(key.help.empty()) << key.section << "." << key.name;
    EXPECT_EQ(key.help.back(), '.') << key.section << "." << key.name;
  }
}

// The example with every "#key = value" line, and the headers of lists, put in force.
std::string Uncommented(const std::string& example) {
  std::istringstream lines(example);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const bool in_force = line.starts_with("#") && !line.starts_with("# ");
    text += (in_force ? line.substr(1) : line) + "\n";
  }
  return text;
}

constexpr const char* kTenantA = "[[tenant]]\nname = \"a\"\nuids = [1]\n";
constexpr const char* kTenantB = "[[tenant]]\nname = \"b\"\nuids = [2]\n";

TEST(Config, QuotasOfTenantsAreRead) {
  const Result<Config> config =
      Parse(std::string(kTenantA) +
            "pool_max_bytes = \"512MiB\"\npool_reserved_bytes = \"1MiB\"\n"
            "host_max_bytes = \"256MiB\"\nextended_ttl = \"2h\"\n" +
            kTenantB);
  ASSERT_TRUE(config) << config.error().context;
  ASSERT_EQ(config->cache.tenants.size(), 1u) << "b has none";
  const TenantQuota& quota = config->cache.tenants[0];
  EXPECT_EQ(quota.name, "a");
  EXPECT_EQ(quota.tiers[0].max_bytes, 512 * kMiB);
  EXPECT_EQ(quota.tiers[0].reserved_bytes, 1 * kMiB);
  EXPECT_EQ(quota.tiers[1].max_bytes, 256 * kMiB);
  EXPECT_EQ(quota.extended_ttl_ms, 2 * 3600 * 1000);
  EXPECT_EQ(quota.memory_ttl_ms, 0);
}

TEST(Config, EveryKeyOfATenantThatIsAQuotaCounts) {
  int quotas = 0;
  for (const ConfigKey& key : ConfigKeys()) {
    const bool is_size = key.type == ConfigType::kSize;
    if (key.section != kTenantSection || (!is_size && key.type != ConfigType::kDuration)) continue;
    const std::string text = fmt::format("[disk]\nbytes = \"1GiB\"\n{}{} = \"{}\"\n", kTenantA,
                                         key.name, is_size ? "64MiB" : "1h");
    const Result<Config> config = Parse(text);
    ASSERT_TRUE(config) << config.error().context;
    EXPECT_EQ(config->cache.tenants.size(), 1u) << key.name;
    ++quotas;
  }
  EXPECT_EQ(quotas, 9);
}

TEST(Config, UsersAreLookedUpByName) {
  const Result<Config> config = Parse("[[tenant]]\nname = \"a\"\nusers = [\"root\"]\n");
  ASSERT_TRUE(config) << config.error().context;
  EXPECT_EQ(config->tenants[0].user_uids, (std::vector<uint32_t>{0}));
  const std::string unknown = "[[tenant]]\nname = \"a\"\nusers = [\"no-such-user\"]\n";
  EXPECT_EQ(ReasonOf(unknown), "config_unknown_user");
  EXPECT_EQ(ContextOf(unknown).substr(0, 14), "test.toml:3:9:");
  EXPECT_NE(ContextOf(unknown).find("no-such-user"), std::string::npos);
  const std::string twice = "[[tenant]]\nname = \"b\"\nuids = [0]\n";
  EXPECT_EQ(ReasonOf("[[tenant]]\nname = \"a\"\nusers = [\"root\"]\n" + twice), "config_conflict");
}

// Each names the key, its line and a remedy.
TEST(Config, QuotasThatCannotBeKeptAreRefused) {
  const auto context_of = [](const std::string& keys) {
    const std::string text = kTenantA + keys;
    EXPECT_EQ(ReasonOf(text), "config_conflict") << keys;
    return ContextOf(text);
  };
  std::string told = context_of("host_max_bytes = \"128MiB\"\nhost_reserved_bytes = \"1GiB\"\n");
  EXPECT_EQ(told.substr(0, 14), "test.toml:5:23") << told;
  EXPECT_NE(told.find("tenant.host_reserved_bytes of \"a\" is 1GiB"), std::string::npos) << told;
  EXPECT_NE(told.find("lower the one or raise the other"), std::string::npos) << told;
  told = context_of("host_max_bytes = \"1MiB\"\n");
  EXPECT_NE(told.find("less than one slab (cache.slab_bytes 64MiB)"), std::string::npos) << told;
  told = context_of("disk_reserved_bytes = \"1MiB\"\n");
  EXPECT_NE(told.find("there is no disk tier"), std::string::npos) << told;
  told = context_of("pool_reserved_bytes = \"2GiB\"\n");
  EXPECT_NE(told.find("more than pool.bytes 1GiB"), std::string::npos) << told;
  // By whole slabs, of which one is left to all: 16 of 64 MiB make the default.
  told = context_of("host_reserved_bytes = \"961MiB\"\n");
  EXPECT_NE(told.find("makes 16 slabs of 64MiB"), std::string::npos) << told;
  EXPECT_EQ(ReasonOf(std::string(kTenantA) + "host_reserved_bytes = \"960MiB\"\n"), "");
}

TEST(Config, ReservesOfAllTenantsTogetherMustFitTheTier) {
  const std::string half = "host_reserved_bytes = \"512MiB\"\n";
  const std::string text = kTenantA + half + kTenantB + half;
  EXPECT_EQ(ReasonOf(text), "config_conflict");
  EXPECT_EQ(ContextOf(text).substr(0, 14), "test.toml:8:23");
  const std::string disk = "[disk]\nbytes = \"1GiB\"\n";
  EXPECT_EQ(ReasonOf(disk + kTenantA + "disk_reserved_bytes = \"1GiB\"\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(disk + kTenantA + "disk_reserved_bytes = \"512MiB\"\n"), "");
}

TEST(Config, ExampleAsInstalledIsTheDefaults) {
  const Result<Config> config = Parse(ConfigExampleToml());
  ASSERT_TRUE(config) << config.error().context;
  EXPECT_EQ(FormatConfig(*config), FormatConfig(Config{}));
  EXPECT_TRUE(config->places.empty());
}

TEST(Config, SectionsCanBeAppendedToTheExample) {
  for (const ConfigSection& section : ConfigSections()) {
    if (section.repeated) continue;
    const std::string text = ConfigExampleToml() + "[" + std::string(section.name) + "]\n";
    EXPECT_EQ(ReasonOf(text), "") << section.name;
  }
}

TEST(Config, AKeyOfTheExampleWithoutItsSectionIsToldWhereItBelongs) {
  EXPECT_EQ(ContextOf("slab_bytes = \"1MiB\"\n"),
            "test.toml:1:1: \"slab_bytes\" stands in no section; write [cache] above it");
}

TEST(Config, UnitsAreNamedWhereAValueCannotBeRead) {
  EXPECT_EQ(ContextOf("[pool]\nbytes = \"16G\"\n"),
            "test.toml:2:9: pool.bytes \"16G\" is not allowed; must be a size with a unit, "
            "\"64KiB\" to \"1024TiB\", a list of sizes, or a share up to \"99%\"; units are B, "
            "KiB, MiB, GiB, TiB, kB, MB, GB, TB");
  EXPECT_TRUE(ContextOf("[drain]\ndeadline = \"10m\"\n").ends_with("; units are ms, s, min, h, d"));
}

TEST(Config, NamesThatCountUpAreToldByTheFirstAndTheLast) {
  EXPECT_THAT(
      ContextOf("[pool]\ndevice = \"gpu\"\n"),
      testing::HasSubstr("must be one of \"all\", \"host\", \"cuda:0\" to \"cuda:15\", or"));
}

TEST(Config, MistakesThatAreMadeOftenAreAnsweredWithWhatToDo) {
  EXPECT_THAT(Parse("[host]\nbytes = 16GiB\n").error().context,
              testing::HasSubstr("sizes and durations stand in quotes: \"16GiB\""));
  const std::string twice =
      "# [host]\n[pool]\n[host]\nbytes = \"1GiB\"\n\n[pool]\nbytes = \"1GiB\"\n";
  EXPECT_THAT(Parse(twice).error().context, testing::HasSubstr("it begins in line 2"));
}

TEST(Config, ExampleHasEveryKeyWithItsDefault) {
  const Result<Config> config = Parse(Uncommented(ConfigExampleToml()));
  ASSERT_TRUE(config) << config.error().context;
  Config expected;
  expected.tenants.push_back({.name = "inference", .uids = {1000}});
  EXPECT_EQ(FormatConfig(*config), FormatConfig(expected));
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section == kTenantSection) continue;
    EXPECT_TRUE(config->places.contains(std::string(key.section) + "." + std::string(key.name)))
        << key.section << "." << key.name;
  }
}

TEST(Config, ExampleFitsIntoAHundredColumns) {
  std::istringstream lines(ConfigExampleToml());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(Config, ReferenceInTheDocumentationIsUpToDate) {
  std::ifstream file(KVTIER_SOURCE_DIR "/docs/CONFIGURATION.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  EXPECT_EQ(page.substr(page.find("\n## ")), ConfigReferenceMarkdown())
      << "`kvtierd --print-config-reference` prints the page from its first section on";
}

TEST(Config, ARootKeyIsOfUseOnlyWithEncryption) {
  const std::string encrypted = "[disk]\nencryption = \"aes-256-gcm\"\n";
  EXPECT_EQ(ReasonOf(encrypted), "");
  EXPECT_EQ(ReasonOf(encrypted + "root_key = \"kvtier.root\"\n"), "");
  EXPECT_EQ(ReasonOf("[disk]\nroot_key = \"kvtier.root\"\n"), "config_conflict");
  EXPECT_EQ(ReasonOf(encrypted + "previous_root_key = \"kvtier.root\"\n"), "config_conflict");
}

TEST(Config, AColdTierNeedsAnEndpointAndKeysThatOtherHostsHave) {
  const std::string cold = "[cold]\nendpoint = \"resp://127.0.0.1:6379\"\n";
  EXPECT_EQ(ReasonOf(cold), "");
  const std::string encrypted = cold + "[disk]\nencryption = \"aes-256-gcm\"\n";
  EXPECT_EQ(ReasonOf(encrypted), "config_conflict") << "no other host could read them";
  EXPECT_EQ(ReasonOf(encrypted + "root_key = \"/etc/kvtier/root.key\"\n"), "");
  EXPECT_EQ(ReasonOf("[cold]\nendpoint = \"127.0.0.1:6379\"\n"), "config_conflict");
  for (const char* endpoint : {"tape://9", "resp://localhost", "resp://host:0", "resp://run/x.sock",
                               "s3://b?endpoint=ftp://a", "s3://b?regoin=x", "s3://"}) {
    EXPECT_EQ(ReasonOf(fmt::format("[cold]\nendpoint = \"{}\"\n", endpoint)), "config_conflict")
        << endpoint;
  }
}

}  // namespace
}  // namespace kvtier
