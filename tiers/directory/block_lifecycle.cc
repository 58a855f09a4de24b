// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/block_lifecycle.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace kvtier {
namespace {

using Names = std::span<const std::string_view>;

std::string NamesOf(uint32_t bits, Names names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if ((bits >> i & 1) == 0) continue;
    if (!text.empty()) text += ", ";
    text += names[i];
  }
  return text;
}

std::string_view GuardText(TransitionGuard guard) {
  switch (guard) {
    case TransitionGuard::kNone:
      return "";
    case TransitionGuard::kUnpinned:
      return "no copy or I/O uses its bytes";
    case TransitionGuard::kPinned:
      return "a copy or I/O uses its bytes";
    case TransitionGuard::kUnused:
      return "no copy uses its bytes, no reference is held";
    case TransitionGuard::kReferenced:
      return "a reference is held";
    case TransitionGuard::kInNoPool:
      return "in no pool, no copy or I/O uses its bytes";
  }
  return "";
}

std::string EffectText(const Transition& row, Names names) {
  std::string text;
  const auto add = [&text](std::string_view part) {
    if (!text.empty()) text += "; ";
    text += part;
  };
  if (row.sets != 0) add("+ " + NamesOf(row.sets, names));
  if (row.clears != 0) add("- " + NamesOf(row.clears, names));
  if (row.pins != 0) add(row.pins > 0 ? "one more pin" : "one pin less");
  if (row.references != 0) add(row.references > 0 ? "one more reference" : "one reference less");
  return text;
}

std::string ConditionText(const Transition& row, Names names) {
  std::string text = NamesOf(row.from, names);
  const auto add = [&text](std::string_view part) {
    if (!text.empty()) text += "; ";
    text += part;
  };
  if (row.unless != 0) add("not " + NamesOf(row.unless, names));
  if (row.guard != TransitionGuard::kNone) add(GuardText(row.guard));
  return text.empty() ? "always" : text;
}

void AppendTable(std::span<const Transition> rows, Names names, std::string* out) {
  *out += "| event | allowed when | effect |\n|---|---|---|\n";
  for (const Transition& row : rows) {
    *out += fmt::format("| `{}` | {} | {} |\n", row.name, ConditionText(row, names),
                        EffectText(row, names));
  }
}

[[noreturn]] void Fail(std::string_view event, uint32_t bits, Names names) {
  const std::string states = NamesOf(bits, names);
  std::fprintf(stderr, "check failed: a block cannot %.*s: it is %s\n",
               static_cast<int>(event.size()), event.data(),
               states.empty() ? "in no tier" : states.c_str());
  std::abort();
}

}  // namespace

void FailPoolTransition(PoolEvent event, uint32_t bits) {
  Fail(kPoolTransitions[static_cast<size_t>(event)].name, bits, PoolBits::kNames);
}

void FailBlockTransition(BlockEvent event, uint32_t bits) {
  Fail(kBlockTransitions[static_cast<size_t>(event)].name, bits, EntryBits::kNames);
}

std::string LifecycleMarkdown() {
  std::string text =
      "A block of a pool (exactly one of free, private, quarantined, committed and "
      "orphaned):\n\n";
  AppendTable(kPoolTransitions, PoolBits::kNames, &text);
  text += "\nA block of the directory (any number of states at once):\n\n";
  AppendTable(kBlockTransitions, EntryBits::kNames, &text);
  return text;
}

}  // namespace kvtier
