// SPDX-License-Identifier: Apache-2.0
// kvtier-generate: continues a text with a small language model on the CPU; attention is on the GPU
// if kvtierd's pool is there. What of the text's beginning is in the pool is not computed again.

#include <boost/json.hpp>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "client/examples/command_line.h"
#include "client/examples/generator.h"
#include "client/examples/model.h"
#include "client/examples/pooled_kv.h"
#include "client/examples/weights.h"

namespace kvtier::generate {
namespace {

std::string ToUtf8(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xC0 | byte >> 6));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3F)));
    }
  }
  return text;
}

// One object of schema "kvtier.generate/1". Bytes of the text above 127 appear as the code points
// of the same number, so that any text is valid JSON and none is lost.
std::string ToJson(const Generation& generation) {
  const boost::json::object report{
      {"schema", "kvtier.generate/1"},
      {"text", ToUtf8(generation.text)},
      {"prompt_tokens", generation.prompt_tokens},
      {"cached_tokens", generation.cached.total()},
      {"prefilled_tokens", generation.prefilled_tokens},
      {"tiers",
       {{"pool", generation.cached.pool},
        {"host", generation.cached.host},
        {"disk", generation.cached.disk}}},
      {"ttft_ms", generation.first_token_ms.count()},
      {"total_ms", generation.total_ms.count()},
  };
  return boost::json::serialize(report);
}

void Complain(const std::string& what) { std::cerr << "kvtier-generate: " << what << "\n"; }

// Nothing, and a complaint, if the daemon cannot be used.
std::optional<SharedPool> AttachIfPossible(const CommandLine& line, const Model& model) {
  Result<SharedPool> pool = SharedPool::Attach(*line.socket_path, model,
                                               line.on_gpu ? PoolDevice::kCuda : PoolDevice::kHost);
  if (pool) return *std::move(pool);
  Complain("computing without the cache: " + pool.error().ToString());
  return std::nullopt;
}

Generation Generate(const CommandLine& line, const Model& model, const KvLayout& layout) {
  std::optional<SharedPool> pool;
  if (line.socket_path) pool = AttachIfPossible(line, model);
  Generator::OpenStore open_store;
  if (pool) {
    open_store = [&](std::span<const Token> prompt) {
      return pool->Open(prompt, static_cast<uint32_t>(line.count), line.retention);
    };
  }
  Generator generator(model, layout, open_store);
  // A byte is a token.
  const std::vector<Token> prompt(
      reinterpret_cast<const unsigned char*>(line.prompt.data()),
      reinterpret_cast<const unsigned char*>(line.prompt.data()) + line.prompt.size());
  return generator.Run(prompt, line.count, [&](Token token) {
    if (!line.json) std::cout.put(static_cast<char>(token)).flush();
  });
}

Result<int> Run(const CommandLine& line) {
  KVT_ASSIGN_OR_RETURN(Weights weights, LoadWeights(line.weights_path));
  const Model model(std::move(weights), line.threads);
  if (line.prompt.empty() || line.count > model.shape().max_positions ||
      line.prompt.size() + line.count > model.shape().max_positions) {
    Complain("the prompt must not be empty, and with --tokens be at most " +
             std::to_string(model.shape().max_positions) + " bytes");
    return kExitUsage;
  }
  KVT_ASSIGN_OR_RETURN(const KvLayout layout, LayoutOf(model));
  const Generation generation = Generate(line, model, layout);
  if (generation.cache_error) {
    Complain("the text is complete, but the cache failed: " + generation.cache_error->ToString());
  }
  std::cout << (line.json ? ToJson(generation) : "") << "\n" << std::flush;
  return std::cout ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace kvtier::generate

int main(int argc, char** argv) {
  using namespace kvtier::generate;
  int exit_code = kExitOk;
  const std::optional<CommandLine> line = ParseCommandLine(argc, argv, &exit_code);
  if (!line) return exit_code;
  const kvtier::Result<int> result = Run(*line);
  if (!result) {
    Complain(result.error().ToString());
    return kExitFailed;
  }
  return *result;
}
