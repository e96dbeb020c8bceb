#include "tensor_parallel/plans.h"

#include "support/require.h"

namespace tessera::testing {
namespace {

/// Of LibTorch's own layers, below this name.
void add_encoder_layers(TensorPlan& plan, const std::string& name, std::int64_t num_heads) {
  plan.add(name + ".*_attn", split_heads(num_heads).packed(3));
  plan.add(name + ".*_attn.out_proj", split_rows().heads(num_heads));
  plan.add(name + ".linear1", split_columns());
  plan.add(name + ".linear2", split_rows());
}

}  // namespace

TensorPlan plan_for(const std::string& full_name) {
  const std::string name = full_name.substr(0, full_name.find(" with dropout"));
  TensorPlan plan;
  if (name == "gpt" || name == "recomputed gpt") {
    return {{"*.attention", split_heads(2).packed(3)},
            {"*.attention.out_proj", split_rows().heads(2)},
            {"*.up", split_columns()},
            {"*.down", split_rows()},
            {"tokens", split_vocabulary()}};
  }
  if (name == "gpt2") {
    return {{"gpt2.h.*.attn.c_attn", split_heads(2).packed(3).transposed()},
            {"gpt2.h.*.attn.c_proj", split_rows().heads(2).transposed()},
            {"gpt2.h.*.mlp.c_fc", split_columns().transposed()},
            {"gpt2.h.*.mlp.c_proj", split_rows().transposed()},
            {"gpt2.wte", split_vocabulary()}};
  }
  if (name == "transformer") add_encoder_layers(plan, "layers.*.layers.*", 2);
  if (name == "bert") {
    plan = {{"tokens", split_vocabulary()},
            {"segments", split_columns()},
            {"pooler", split_columns()},
            {"head", split_rows()}};
    add_encoder_layers(plan, "layers.layers.*", 4);
  }
  if (name == "vit") {
    plan = {{"patches", split_columns()}, {"head", split_columns()}};
    add_encoder_layers(plan, "layers.layers.*", 3);
  }
  if (name == "conv") {
    return {{"first", split_columns()},
            {"first_norm", split_columns()},
            {"second", split_rows()},
            {"head", split_columns()}};
  }
  if (name == "resnet") {
    return {{"stem", split_columns()},
            {"blocks.*.first", split_columns()},
            {"blocks.*.first_norm", split_columns()},
            {"blocks.*.second", split_rows()},
            {"head", split_rows()}};
  }
  if (name == "unet") {
    return {{"down.*.first", split_columns()},
            {"down.*.second", split_rows()},
            {"middle", split_columns()},
            {"up.*.first", split_columns()},
            {"up.*.second", split_rows()}};
  }
  if (name == "lstm") return {{"cells", split_columns()}, {"head", split_rows()}};
  if (name == "sequential") {
    return {{"layers.0", split_columns()}, {"layers.3", split_columns()}, {"layers.5", split_rows()}};
  }
  if (name == "function") return {{"first", split_columns()}, {"second", split_columns()}};
  require(!plan.entries().empty(), "there is no plan for " + name);
  return plan;
}

}  // namespace tessera::testing
