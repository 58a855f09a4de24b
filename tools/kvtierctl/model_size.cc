// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/model_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "tiers/storage/slot_header.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

// No model comes near it; products of them stay far from overflow.
constexpr uint64_t kMostOfAnything = 1'000'000;

tl::unexpected<Error> BadModel(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_model_config", std::move(context));
}

// The first of the names that the config has as a number above 0. Families of models name the same
// thing differently.
uint64_t FirstOf(JsonView config, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const uint64_t number = config[name].Count(); number > 0) {
      return std::min(number, kMostOfAnything);
    }
  }
  return 0;
}

struct Dtype {
  std::string_view name;
  std::string_view shown;
  uint64_t bytes;
};
constexpr std::array<Dtype, 11> kDtypes = {{{"bfloat16", "bf16", 2},
                                            {"bf16", "bf16", 2},
                                            {"float16", "f16", 2},
                                            {"half", "f16", 2},
                                            {"f16", "f16", 2},
                                            {"fp16", "f16", 2},
                                            {"float32", "f32", 4},
                                            {"f32", "f32", 4},
                                            {"float8_e4m3fn", "fp8", 1},
                                            {"float8_e5m2", "fp8", 1},
                                            {"fp8", "fp8", 1}}};

Status TakeDtype(JsonView config, std::string_view wanted, ModelSize* size) {
  std::string name(wanted);
  if (name.empty()) name = config["torch_dtype"].Text();
  if (name.empty()) name = config["dtype"].Text();
  if (name.empty()) {
    name = "bf16";
    size->notes.emplace_back("the config names no dtype: bf16 assumed");
  }
  if (name.starts_with("torch.")) name.erase(0, std::string_view("torch.").size());
  const auto known = std::ranges::find(kDtypes, name, &Dtype::name);
  if (known == kDtypes.end()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_dtype",
                     fmt::format("\"{}\" is not one of bf16, f16, f32, fp8", name));
  }
  size->dtype = known->shown;
  size->element_bytes = known->bytes;
  return {};
}

// Configs that list no layers' kinds name the window alone. Some name one that is switched off.
bool NamesAWindow(JsonView config) {
  return config["sliding_window"].Count() > 0 &&
         (!config["use_sliding_window"].present() || config["use_sliding_window"].IsTrue());
}

// Layers that keep K and V of every token; others keep a state of fixed size, or nothing.
uint64_t AttentionLayers(JsonView config, ModelSize* size) {
  uint64_t keeping = 0;
  uint64_t sliding = 0;
  config["layer_types"].ForEach([&](JsonView layer) {
    const std::string kind = layer.Text();
    keeping += kind.find("attention") != std::string::npos && !kind.starts_with("linear");
    sliding += kind.starts_with("sliding") || kind.starts_with("chunked");
  });
  if (keeping == 0 && NamesAWindow(config)) {
    size->notes.emplace_back("some or all layers look at a window only; counted in full");
  }
  const uint64_t every = FirstOf(config, {"full_attention_interval", "attn_layer_period"});
  if (keeping == 0 && every > 0) keeping = size->all_layers / every;
  if (keeping == 0) return size->all_layers;
  if (keeping < size->all_layers) {
    size->notes.push_back(
        fmt::format("{} of {} layers keep a state instead of K and V; its copies, without which "
                    "there are no hits, are not counted",
                    size->all_layers - keeping, size->all_layers));
  }
  if (sliding > 0) {
    size->notes.push_back(fmt::format("{} layers look at a window only; counted in full", sliding));
  }
  return keeping;
}

Status TakeHeads(JsonView config, ModelSize* size) {
  const uint64_t heads = FirstOf(config, {"num_attention_heads", "n_head", "n_heads", "num_heads"});
  const uint64_t hidden = FirstOf(config, {"hidden_size", "n_embd", "d_model"});
  if (const uint64_t rank = FirstOf(config, {"kv_lora_rank"}); rank > 0) {
    size->latent = true;
    size->kv_heads = 1;
    size->head_dim = rank + FirstOf(config, {"qk_rope_head_dim"});
    return {};
  }
  size->kv_heads = FirstOf(
      config, {"num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"});
  if (size->kv_heads == 0) size->kv_heads = FirstOf(config["attn_config"], {"kv_n_heads"});
  const bool one_for_all =
      config["multi_query"].IsTrue() && !config["new_decoder_architecture"].IsTrue();
  if (one_for_all) size->kv_heads = 1;
  if (size->kv_heads == 0) size->kv_heads = heads;
  size->head_dim = FirstOf(config, {"head_dim", "kv_channels", "attention_head_dim"});
  if (size->head_dim == 0 && heads > 0) size->head_dim = hidden / heads;
  if (size->kv_heads == 0) return BadModel("no num_attention_heads or num_key_value_heads");
  if (size->head_dim == 0) return BadModel("no head_dim, nor hidden_size to tell it from");
  return {};
}

Status Divide(uint64_t tensor_parallel, ModelSize* size) {
  if (tensor_parallel == 1 || size->latent) return {};
  if (size->kv_heads >= tensor_parallel && size->kv_heads % tensor_parallel != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_tensor_parallel",
                     fmt::format("{} KV heads cannot be shared out to {} ranks", size->kv_heads,
                                 tensor_parallel));
  }
  if (size->kv_heads < tensor_parallel) {
    size->notes.push_back(fmt::format("{} K and V heads for {} ranks: several keep the same one",
                                      size->kv_heads, tensor_parallel));
  }
  size->kv_heads = std::max<uint64_t>(1, size->kv_heads / tensor_parallel);
  return {};
}

}  // namespace

Result<ModelSize> MeasureModel(std::string_view config_json, std::string_view dtype,
                               uint64_t tensor_parallel) {
  boost::json::error_code error;
  const boost::json::value document = boost::json::parse(config_json, error);
  if (error) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_json",
                     error.message() + ": is this a model's config.json?");
  }
  const JsonView whole(&document);
  // Models of text and more keep what concerns the text in a section of its own.
  const JsonView config = whole["text_config"].object() != nullptr ? whole["text_config"] : whole;
  ModelSize size;
  whole["architectures"].ForEach([&size](JsonView name) {
    if (size.architecture.empty()) size.architecture = name.Text();
  });
  if (size.architecture.empty()) size.architecture = whole["model_type"].Text();
  size.all_layers = FirstOf(config, {"num_hidden_layers", "n_layer", "n_layers", "num_layers"});
  if (size.all_layers == 0) return BadModel("no num_hidden_layers: is this a model's config.json?");
  size.layers = AttentionLayers(config, &size);
  KVT_RETURN_IF_ERROR(TakeHeads(config, &size));
  const bool own_dtype = config["torch_dtype"].present() || config["dtype"].present();
  KVT_RETURN_IF_ERROR(TakeDtype(own_dtype ? config : whole, dtype, &size));
  KVT_RETURN_IF_ERROR(Divide(tensor_parallel, &size));
  return size;
}

uint64_t SlotsIn(uint64_t tier_bytes, uint64_t block_bytes, uint64_t slab_bytes,
                 uint64_t slab_header_bytes) {
  if (slab_bytes <= slab_header_bytes) return 0;
  return tier_bytes / slab_bytes * ((slab_bytes - slab_header_bytes) / SlotBytes(block_bytes));
}

}  // namespace kvtier
