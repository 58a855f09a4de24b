// SPDX-License-Identifier: Apache-2.0
#include "protocol/extra_keys.h"

namespace kvtier {

ExtraKeys PromptIdentity::KeysOf(uint64_t first_token, uint64_t end_token) const {
  ExtraKeys keys;
  if (!lora_name.empty()) keys.push_back(ExtraKey::Text(lora_name));
  for (const MediaItem& item : media) {
    if (item.first_token >= end_token || item.first_token + item.tokens <= first_token) continue;
    const auto offset = static_cast<int64_t>(item.first_token - first_token);
    keys.push_back(ExtraKey::Tuple({ExtraKey::Text(item.content_hash), ExtraKey::Integer(offset)}));
  }
  if (first_token == 0 && !cache_salt.empty()) keys.push_back(ExtraKey::Text(cache_salt));
  return keys;
}

}  // namespace kvtier
