// SPDX-License-Identifier: Apache-2.0
// A session's work for memory that outlives its client.

#include <optional>
#include <utility>

#include "daemon/session/kept_memories.h"
#include "daemon/session/session.h"

namespace kvtier {

Status Session::OnKeepMemory(const Call& call, const wire::KeepMemory& request) {
  std::optional<UniqueFd> memory = connection_.TakeDescriptor();
  std::optional<UniqueFd> table = connection_.TakeDescriptor();
  if (!table) {
    if (memory) services_.network->closer.Close(*std::move(memory), tenant_);
    return MakeError(ErrorCode::kInvalidArgument, "no_descriptor",
                     "two are wanted, of the memory and of its table");
  }
  KVT_RETURN_IF_ERROR(services_.kept_memories->Keep({id_, peer_, tenant_}, request,
                                                    *std::move(memory), *std::move(table)));
  Reply(call, wire::KeepMemoryReply{});
  return {};
}

Status Session::OnTakeMemory(const Call& call, const wire::TakeMemory& request) {
  KVT_ASSIGN_OR_RETURN(const KeptMemories::Taken taken,
                       services_.kept_memories->Take({id_, peer_, tenant_}, request));
  if (!taken.descriptors) {
    Reply(call, taken.reply);
    return {};
  }
  std::vector<int> descriptors;
  if (!request.table_only) descriptors.push_back(taken.descriptors->memory.get());
  descriptors.push_back(taken.descriptors->table.get());
  connection_.SendWithDescriptors(call.request_id, taken.reply, std::move(descriptors),
                                  taken.descriptors);
  return {};
}

Status Session::OnReleaseMemory(const Call& call, const wire::ReleaseMemory& request) {
  KVT_ASSIGN_OR_RETURN(const wire::ReleaseMemoryReply reply,
                       services_.kept_memories->Release({id_, peer_, tenant_}, request));
  Reply(call, reply);
  return {};
}

}  // namespace kvtier
