// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "daemon/config/config_check.h"
#include "daemon/config/config_loader.h"

namespace kvtier {
namespace {

TEST(StartError, AllMistakesOfAFileAreToldAtOnce) {
  const auto told = [](const std::string& text) {
    const Result<Config> config = ParseConfig(text, "test.toml", {});
    return config ? "" : config.error().context;
  };
  const std::string values = told(
      "[pool]\nbytes = \"16 elephants\"\nbites = 3\n[hots]\nbytes = \"1GiB\"\n[disk]\nbytes = 0\n");
  for (const char* const place : {"test.toml:2:9: pool.bytes", "test.toml:3:1: ", "test.toml:4:2: ",
                                  "test.toml:7:9: disk.bytes"}) {
    EXPECT_NE(values.find(place), std::string::npos) << place << " in:\n" << values;
  }
  EXPECT_EQ(std::ranges::count(values, '\n'), 3);
  const std::string conflicts = told(
      "[server]\nadmin_socket = \"/run/kvtier/kvtier.sock\"\n[host]\nbytes = \"1MiB\"\n"
      "[disk]\nroot_key = \"/etc/key\"\n");
  EXPECT_EQ(std::ranges::count(conflicts, '\n'), 2) << conflicts;
}

TEST(StartError, NamesPlaceKeyAndRemedy) {
  const Result<Config> config =
      ParseConfig("[disk]\ndirectory = \"/srv/kv\"\nbytes = \"1GiB\"\n", "test.toml", {});
  ASSERT_TRUE(config);
  const Error error = AnnotateWithKey(
      *config, "disk.directory",
      Error{ErrorCode::kPermissionDenied, "directory_owner", "/srv/kv belongs to uid 5"});
  EXPECT_EQ(error.context,
            "test.toml:2:13: disk.directory: /srv/kv belongs to uid 5; give the directory to the "
            "daemon's user (chown -R), or name another");
  EXPECT_EQ(error.reason, "directory_owner");
}

TEST(StartError, ReasonDecidesWhichKeyIsToBlame) {
  const Result<Config> config =
      ParseConfig("[disk]\ndirectory = \"/srv/kv\"\nbytes = \"1GiB\"\n", "test.toml", {});
  ASSERT_TRUE(config);
  const Error error = AnnotateWithKey(*config, "disk.directory",
                                      Error{ErrorCode::kResourceExhausted, "disk_full", "full"});
  EXPECT_EQ(error.context.substr(0, 33), "test.toml:3:9: disk.bytes: full; ");
}

TEST(StartError, ARootKeyThatCannotBeUsedIsItsOwnKeysFault) {
  const auto told = [](const char* reason) {
    const Error error{ErrorCode::kPermissionDenied, reason, "it"};
    return AnnotateWithKey(Config{}, "disk.directory", error).context;
  };
  for (const char* const reason : {"no_credentials", "root_key_size", "wrong_root_key"}) {
    EXPECT_EQ(told(reason).find("(default): disk.root_key: it; "), 0) << told(reason);
  }
  EXPECT_EQ(told("previous_root_key").find("(default): disk.previous_root_key: it; "), 0);
}

TEST(StartError, KeyLeftToItsDefaultIsNamedToo) {
  const Error error = AnnotateWithKey(Config{}, "server.socket",
                                      Error{ErrorCode::kIoError, "EROFS", "bind /run/kvtier"});
  EXPECT_EQ(error.context.substr(0, 43), "(default): server.socket: bind /run/kvtier;");
}

TEST(StartError, WhoMayNotMakeTheServicesSocketsIsToldOfADaemonForOneself) {
  const auto told = [](const Config& config) {
    return AnnotateWithKey(config, "server.admin_socket",
                           Error{ErrorCode::kIoError, "EACCES", "bind"})
        .context;
  };
  EXPECT_TRUE(told(Config{}).ends_with("; a daemon for yourself: kvtierd --dev"));
  const Result<Config> own = ParseConfig("[server]\nadmin_socket = \"/a\"\n", "test.toml", {});
  ASSERT_TRUE(own);
  EXPECT_EQ(told(*own).find("--dev"), std::string::npos) << "it was not left to its default";
}

TEST(StartError, APortThatAnotherProcessHasIsAnsweredWithWhatToDo) {
  const Error error = AnnotateWithKey(Config{}, "metrics.listen",
                                      Error{ErrorCode::kIoError, "EADDRINUSE", "listening"});
  EXPECT_NE(error.context.find("name another port"), std::string::npos) << error.context;
  EXPECT_FALSE(IsConfigurationError(error)) << "the process may end by itself";
}

TEST(StartError, OnlyWhatTheFileDecidesIsAConfigurationError) {
  EXPECT_TRUE(IsConfigurationError({ErrorCode::kInvalidArgument, "bad_disk_options", ""}));
  EXPECT_TRUE(IsConfigurationError({ErrorCode::kWrongState, "files_changed", ""}));
  // Each of these may be over in a minute.
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kIoError, "EACCES", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kAlreadyExists, "directory_locked", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kResourceExhausted, "disk_full", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kUnsupported, "no_cuda", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kPermissionDenied, "directory_owner", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kInvalidArgument, "config_unknown_user", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kIoError, "EIO", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kIoError, "ENOSPC", ""}));
  EXPECT_FALSE(IsConfigurationError({ErrorCode::kInternal, "EACCES", ""}));
}

}  // namespace
}  // namespace kvtier
