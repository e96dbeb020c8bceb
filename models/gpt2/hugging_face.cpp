#include "gpt2/hugging_face.h"

#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <fstream>
#include <set>
#include <sstream>

namespace tessera::models {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kTokenEmbedding = "wte.weight";

bool is_mask(const std::string& name) { return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"); }

std::string shape_text(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

/// The faults that a message lists, one a line, up to a limit.
class Faults {
 public:
  void add(const std::string& fault) {
    if (++count_ <= kMost) text_ += "\n  " + fault;
  }
  void throw_if_any(const std::string& where) const {
    if (count_ == 0) return;
    const std::string rest = count_ > kMost ? "\n  and " + std::to_string(count_ - kMost) + " more" : "";
    throw ConfigError(where + " does not hold the weights of this GPT-2:" + text_ + rest);
  }

 private:
  static constexpr int kMost = 10;
  int count_ = 0;
  std::string text_;
};

void check_weight(const StoredTensor& stored, const at::Tensor& parameter, Faults& faults) {
  const bool floating = stored.dtype == StoredDtype::kF64 || stored.dtype == StoredDtype::kF32 ||
                        stored.dtype == StoredDtype::kF16 || stored.dtype == StoredDtype::kBF16;
  if (!floating) {
    faults.add(stored.name + " is of " + std::string(dtype_name(stored.dtype)) + ", expected F64, F32, F16 or BF16");
  }
  if (parameter.sizes() == stored.shape) return;
  faults.add(stored.name + " has the shape " + shape_text(stored.shape) + ", expected " +
             shape_text(parameter.sizes()));
}

void check_head(const SafetensorsFolder& weights, const std::string& embedding, Faults& faults) {
  const std::string head(kHead);
  if (!weights.contains(head) || !weights.contains(embedding)) return;
  if (!at::equal(weights.read(head), weights.read(embedding))) {
    faults.add(head + " is not " + embedding + ": this model has one matrix for both");
  }
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw StorageError(path.string() + " cannot be read; expected the configuration of the model");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void load_hugging_face(Gpt2& model, const SafetensorsFolder& weights) {
  const std::string embedding(kTokenEmbedding);
  const std::string prefix = weights.contains(std::string(kPrefix) + embedding) ? std::string(kPrefix) : "";
  std::set<std::string> unused;
  for (const std::string& name : weights.names()) {
    if (name != kHead && !is_mask(name)) unused.insert(name);
  }
  Faults faults;
  for (const auto& item : model->named_parameters()) {
    const std::string stored_name = prefix + item.key();
    unused.erase(stored_name);
    if (weights.contains(stored_name)) {
      check_weight(weights.at(stored_name), item.value(), faults);
    } else {
      faults.add(stored_name + " is missing");
    }
  }
  for (const std::string& name : unused) faults.add(name + " is there, and belongs to nothing in the model");
  check_head(weights, prefix + embedding, faults);
  faults.throw_if_any(weights.path().string());

  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) item.value().copy_(weights.read(prefix + item.key()));
}

TensorsByName to_hugging_face(const Gpt2& model) {
  TensorsByName tensors;
  for (const auto& item : model->named_parameters()) {
    tensors.emplace(std::string(kPrefix) + item.key(), item.value().detach().clone(at::MemoryFormat::Contiguous));
  }
  return tensors;
}

Gpt2 load_gpt2(const std::filesystem::path& folder) {
  const std::filesystem::path config = folder / "config.json";
  Gpt2 model(parse_hugging_face_config(read_text(config), config.string()));
  load_hugging_face(model, SafetensorsFolder(folder));
  return model;
}

void save_gpt2(const Gpt2& model, const std::filesystem::path& folder) {
  // `transformers` reads from this note which framework wrote the tensors.
  save_safetensors_folder(folder, to_hugging_face(model), {{"format", "pt"}});
  write_file_atomically(folder / "config.json", to_hugging_face_config(model->config()));
}

}  // namespace tessera::models
