// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/cold_keys.h"

#include "base/units.h"

namespace kvtier {
namespace {

using FieldOf = ConfigField (*)(Config&);

constexpr double kMaxPathBytes = 4095;
constexpr double kMaxNameBytes = 255;
constexpr double kMaxBytesInFlight = 0x1p40;
constexpr double kMaxDeadlineMs = 60'000;

template <auto kMember>
ConfigField Cold(Config& config) {
  return &(config.cold.*kMember);
}
template <auto kMember>
ConfigField Cache(Config& config) {
  return &(config.cache.*kMember);
}

ConfigKey Key(ConfigType type, std::string_view name, FieldOf field, double min, double max,
              std::string_view help) {
  return {.section = "cold",
          .name = name,
          .type = type,
          .field = field,
          .min = min,
          .max = max,
          .help = help};
}

ConfigField Kind(Config& config) {
  ColdKind* const kind = &config.cold.kind;
  return ChoiceField{[kind] { return static_cast<size_t>(*kind); },
                     [kind](size_t value) { *kind = static_cast<ColdKind>(value); }};
}

ConfigKey KindKey() {
  ConfigKey key = Key(ConfigType::kChoice, "kind", &Kind, 0, 0,
                      "`resp`: a server that speaks RESP, as Valkey and Redis do; needs the "
                      "library `kvtier-cold-resp.so`. `none`: no cold tier. "
                      "With `disk.encryption` objects are encrypted, too, by keys derived from "
                      "`disk.root_key`: hosts that are to share them need the same one, and "
                      "`disk.keys` has to be `persist`. Otherwise they are plain bytes.");
  key.choices = {"none", "resp"};
  return key;
}

}  // namespace

std::vector<ConfigKey> ColdKeys() {
  using enum ConfigType;
  return {
      KindKey(),
      Key(kText, "endpoint", &Cold<&ColdConfig::endpoint>, 0, kMaxPathBytes,
          "Where the store is: `HOST:PORT`, or the absolute path of a socket."),
      Key(kText, "user", &Cold<&ColdConfig::user>, 0, kMaxNameBytes,
          "Who the daemon is to the store. Empty: the store's default user."),
      Key(kPath, "password_file", &Cold<&ColdConfig::password_file>, 0, kMaxPathBytes,
          "A file whose first line is the password. Empty: none is sent."),
      Key(kDuration, "after", &Cache<&CacheOptions::cold_after_ms>, 0, 366.0 * kDayMs,
          "An `extended` block that has been idle this long is written to the store; earlier if "
          "the disk is about to evict it for space."),
      Key(kSize, "write_bytes_per_s", &Cache<&CacheOptions::cold_write_bytes_per_s>, 0,
          kMaxBytesInFlight,
          "The most that is written to the store in a second; `0B`: nothing, so that this host "
          "only "
          "reads what others wrote."),
      Key(kMilliseconds, "lookup_deadline_ms", &Cache<&CacheOptions::cold_lookup_deadline_ms>, 1,
          kMaxDeadlineMs,
          "How long an acquire or a lookup waits at most to hear which of the blocks that this "
          "host "
          "misses the store has."),
      Key(kMilliseconds, "read_deadline_ms", &Cache<&CacheOptions::cold_read_deadline_ms>, 1,
          kMaxDeadlineMs, "How long a load waits at most for one block of the store."),
  };
}

}  // namespace kvtier
