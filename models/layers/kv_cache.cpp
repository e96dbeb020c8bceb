#include "layers/kv_cache.h"

#include <tessera/core/error.h>

#include <ATen/ops/empty.h>

#include <string>

namespace tessera::models {

KvCache::KvCache(std::int64_t num_layers, std::int64_t batch, std::int64_t num_heads, std::int64_t context,
                 std::int64_t head_width, const at::Tensor& like)
    : context_(context) {
  for (std::int64_t i = 0; i < num_layers; ++i) {
    const auto room = [&] {
      return at::empty({batch, num_heads, context, head_width}, like.options().requires_grad(false));
    };
    layers_.emplace_back(room(), room());
  }
}

std::pair<at::Tensor, at::Tensor> KvCache::append(std::int64_t layer, const at::Tensor& keys,
                                                  const at::Tensor& values) {
  const std::int64_t num_tokens = keys.size(2);
  if (length_ + num_tokens > context_) {
    throw ConfigError("the model sees at most " + std::to_string(context_) + " tokens; its cache holds " +
                      std::to_string(length_) + " and was given " + std::to_string(num_tokens) + " more");
  }
  auto& [all_keys, all_values] = layers_.at(static_cast<std::size_t>(layer));
  all_keys.narrow(2, length_, num_tokens).copy_(keys);
  all_values.narrow(2, length_, num_tokens).copy_(values);
  return {all_keys.narrow(2, 0, length_ + num_tokens), all_values.narrow(2, 0, length_ + num_tokens)};
}

}  // namespace tessera::models
