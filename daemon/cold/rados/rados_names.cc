// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_names.h"

#include <algorithm>
#include <charconv>

namespace kvtier {
namespace {

constexpr std::string_view kRoot = "kvtier/1/";
constexpr size_t kPeriodDigits = 8;

std::string Digits(RadosPeriod period) {
  std::string digits = std::to_string(period);
  return std::string(kPeriodDigits - std::min(kPeriodDigits, digits.size()), '0') + digits;
}

std::string NamespaceOf(std::string_view tenant, RadosPeriod period) {
  return std::string(kRoot) + std::string(tenant) + "/" + Digits(period);
}

}  // namespace

std::optional<RadosName> RadosName::Parse(std::string_view name) {
  if (!name.starts_with(kRoot)) return std::nullopt;
  name.remove_prefix(kRoot.size());
  const size_t first = name.find('/');
  const size_t second = first == name.npos ? name.npos : name.find('/', first + 1);
  if (second == name.npos || name.find('/', second + 1) != name.npos) return std::nullopt;
  RadosName parts;
  parts.model.tenant = name.substr(0, first);
  parts.model.model = name.substr(first + 1, second - first - 1);
  parts.hash = name.substr(second + 1);
  if (parts.model.tenant.empty() || parts.model.model.empty() || parts.hash.empty()) {
    return std::nullopt;
  }
  return parts;
}

std::optional<std::string> RadosTenantOf(std::string_view prefix) {
  if (!prefix.starts_with(kRoot) || !prefix.ends_with('/')) return std::nullopt;
  prefix.remove_prefix(kRoot.size());
  if (prefix.find('/') + 1 != prefix.size() || prefix.size() < 2) return std::nullopt;
  return std::string(prefix.substr(0, prefix.size() - 1));
}

std::optional<RadosEndpoint> RadosEndpoint::Parse(std::string_view text) {
  RadosEndpoint endpoint;
  const size_t at = text.find('@');
  endpoint.pool = text.substr(0, at);
  if (endpoint.pool.empty() || endpoint.pool.find('/') != std::string::npos) return std::nullopt;
  if (at == text.npos) return endpoint;
  endpoint.configuration = text.substr(at + 1);
  if (!endpoint.configuration.starts_with('/')) return std::nullopt;
  return endpoint;
}

RadosPlace RadosObject(const RadosName& name, RadosPeriod period) {
  return {NamespaceOf(name.model.tenant, period), name.model.model + "/" + name.hash};
}

RadosPlace RadosIndex(const RadosModel& model, RadosPeriod period) {
  return {NamespaceOf(model.tenant, period), "index/" + model.model};
}

RadosPlace RadosPeriods(std::string_view tenant) {
  return {std::string(kRoot) + std::string(tenant) + "/", "periods"};
}

std::string RadosPeriodKey::Text() const { return Digits(period) + "/" + model; }

std::optional<RadosPeriodKey> RadosPeriodKey::Parse(std::string_view text) {
  RadosPeriodKey key;
  if (text.size() < kPeriodDigits + 2 || text[kPeriodDigits] != '/') return std::nullopt;
  const char* const end = text.data() + kPeriodDigits;
  const auto [stop, error] = std::from_chars(text.data(), end, key.period);
  if (error != std::errc() || stop != end) return std::nullopt;
  key.model = text.substr(kPeriodDigits + 1);
  return key;
}

}  // namespace kvtier
