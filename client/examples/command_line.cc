// SPDX-License-Identifier: Apache-2.0
#include "client/examples/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include "client/examples/weights.h"

namespace kvtier::generate {
namespace {

constexpr size_t kMaxPromptBytes = 1 << 20;
constexpr size_t kMaxThreads = 64;
constexpr size_t kMaxCount = 1 << 20;

// Beside the program: ../share/kvtier, in the build tree as after installation.
std::string DefaultWeightsPath() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "share/kvtier" / KVT_WEIGHTS_NAME).string();
}

size_t DefaultThreads() {
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
}

}  // namespace

std::optional<CommandLine> ParseCommandLine(int argc, char** argv, int* exit_code) {
  CommandLine line;
  line.weights_path = DefaultWeightsPath();
  line.threads = DefaultThreads();
  std::string prompt_path;
  std::string retention = "extended";
  std::string device = "host";
  bool no_cache = false;

  CLI::App app("Continues a text with a small language model whose KV cache is kvtierd's pool.");
  app.add_option("--socket", line.socket_path, "kvtierd's socket");
  app.add_flag("--no-cache", no_cache, "keep keys and values in private memory");
  auto* source = app.add_option_group("prompt", "The text to continue");
  source->add_option("--prompt", line.prompt, "the text itself");
  source->add_option("--prompt-file", prompt_path, "a file with the text");
  source->require_option(1);
  app.add_option("--tokens", line.count, "how many bytes to generate")
      ->required()
      ->check(CLI::Range(size_t{1}, kMaxCount));
  app.add_option("--weights", line.weights_path, "the model's file")->capture_default_str();
  app.add_option("--threads", line.threads, "threads to compute on")
      ->check(CLI::Range(size_t{1}, kMaxThreads))
      ->capture_default_str();
  app.add_option("--retention", retention, "memory: its blocks never touch the disk")
      ->check(CLI::IsMember({"extended", "memory"}))
      ->capture_default_str();
  app.add_option("--device", device,
                 "where the daemon's pool is: on a GPU, keys, values and attention stay there")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  app.add_flag("--json", line.json, "print one JSON object instead of the text");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? kExitOk : kExitUsage;
    return std::nullopt;
  }
  *exit_code = kExitUsage;
  if (!line.socket_path && !no_cache) {
    std::cerr << "kvtier-generate: --socket or --no-cache is needed\n";
    return std::nullopt;
  }
  line.on_gpu = device == "cuda";
  if (line.on_gpu && no_cache) {
    std::cerr << "kvtier-generate: --device cuda computes in kvtierd's pool: --socket is needed\n";
    return std::nullopt;
  }
  if (no_cache) line.socket_path.reset();
  if (retention == "memory") line.retention = KVT_RETENTION_MEMORY;
  if (!prompt_path.empty()) {
    Result<std::string> text = ReadFile(prompt_path, kMaxPromptBytes);
    if (!text) {
      std::cerr << "kvtier-generate: " << text.error().ToString() << "\n";
      return std::nullopt;
    }
    line.prompt = *std::move(text);
  }
  return line;
}

}  // namespace kvtier::generate
