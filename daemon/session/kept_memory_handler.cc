// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/kept_memory_handler.h"

#include <optional>
#include <utility>
#include <vector>

namespace kvtier {

Status KeptMemoryHandler::OnKeepMemory(const Call& call, const wire::KeepMemory& request) {
  std::optional<UniqueFd> memory = replies_.connection().TakeDescriptor();
  std::optional<UniqueFd> table = replies_.connection().TakeDescriptor();
  if (!table) {
    if (memory) closer_.Close(*std::move(memory), client_.tenant);
    return MakeError(ErrorCode::kInvalidArgument, "no_descriptor",
                     "two are wanted, of the memory and of its table");
  }
  KVT_RETURN_IF_ERROR(memories_.Keep(Asking(), request, *std::move(memory), *std::move(table)));
  replies_.Send(call, wire::KeepMemoryReply{});
  return {};
}

Status KeptMemoryHandler::OnTakeMemory(const Call& call, const wire::TakeMemory& request) {
  KVT_ASSIGN_OR_RETURN(const KeptMemories::Taken taken, memories_.Take(Asking(), request));
  if (!taken.descriptors) {
    replies_.Send(call, taken.reply);
    return {};
  }
  std::vector<int> descriptors;
  if (!request.table_only) descriptors.push_back(taken.descriptors->memory.get());
  descriptors.push_back(taken.descriptors->table.get());
  replies_.connection().SendWithDescriptors(call.request_id, taken.reply, std::move(descriptors),
                                            taken.descriptors);
  return {};
}

Status KeptMemoryHandler::OnReleaseMemory(const Call& call, const wire::ReleaseMemory& request) {
  KVT_ASSIGN_OR_RETURN(const wire::ReleaseMemoryReply reply, memories_.Release(Asking(), request));
  replies_.Send(call, reply);
  return {};
}

}  // namespace kvtier
