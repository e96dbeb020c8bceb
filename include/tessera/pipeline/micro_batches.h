#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera {

namespace pp {
/// Views of nearly equal size along the first dimension; the first ones are larger. Throws ConfigError when there are
/// fewer samples than micro-batches.
std::vector<at::Tensor> split_tensor(const at::Tensor& tensor, int num_micro_batches);
}  // namespace pp

/// How a batch is divided, and which tensors it consists of. There is one for a tensor, for pairs, tuples, vectors and
/// maps of batches, and for types with members `data` and `target`, as torch::data::Example. Specialise it for a type
/// of your own.
template <class Batch>
struct MicroBatches {
  static std::vector<Batch> split(const Batch& batch, int num_micro_batches)
    requires requires { Batch(batch.data, batch.target); }
  {
    auto data = MicroBatches<std::decay_t<decltype(batch.data)>>::split(batch.data, num_micro_batches);
    auto target = MicroBatches<std::decay_t<decltype(batch.target)>>::split(batch.target, num_micro_batches);
    std::vector<Batch> micros;
    for (std::size_t i = 0; i < data.size(); ++i) micros.emplace_back(std::move(data[i]), std::move(target[i]));
    return micros;
  }
  static std::vector<at::Tensor> tensors(const Batch& batch)
    requires requires { Batch(batch.data, batch.target); }
  {
    auto found = MicroBatches<std::decay_t<decltype(batch.data)>>::tensors(batch.data);
    auto target = MicroBatches<std::decay_t<decltype(batch.target)>>::tensors(batch.target);
    found.insert(found.end(), target.begin(), target.end());
    return found;
  }
};

template <>
struct MicroBatches<at::Tensor> {
  static std::vector<at::Tensor> split(const at::Tensor& batch, int num_micro_batches) {
    return pp::split_tensor(batch, num_micro_batches);
  }
  static std::vector<at::Tensor> tensors(const at::Tensor& batch) { return {batch}; }
};

template <class Part>
struct MicroBatches<std::vector<Part>> {
  using Batch = std::vector<Part>;
  static std::vector<Batch> split(const Batch& batch, int num_micro_batches) {
    std::vector<Batch> micros(static_cast<std::size_t>(num_micro_batches));
    for (const Part& part : batch) {
      auto parts = MicroBatches<Part>::split(part, num_micro_batches);
      for (std::size_t i = 0; i < micros.size(); ++i) micros[i].push_back(std::move(parts[i]));
    }
    return micros;
  }
  static std::vector<at::Tensor> tensors(const Batch& batch) {
    std::vector<at::Tensor> found;
    for (const Part& part : batch) {
      auto of_part = MicroBatches<Part>::tensors(part);
      std::move(of_part.begin(), of_part.end(), std::back_inserter(found));
    }
    return found;
  }
};

template <class Name, class Part>
struct MicroBatches<std::map<Name, Part>> {
  using Batch = std::map<Name, Part>;
  static std::vector<Batch> split(const Batch& batch, int num_micro_batches) {
    std::vector<Batch> micros(static_cast<std::size_t>(num_micro_batches));
    for (const auto& [name, part] : batch) {
      auto parts = MicroBatches<Part>::split(part, num_micro_batches);
      for (std::size_t i = 0; i < micros.size(); ++i) micros[i].emplace(name, std::move(parts[i]));
    }
    return micros;
  }
  static std::vector<at::Tensor> tensors(const Batch& batch) {
    std::vector<at::Tensor> found;
    for (const auto& [name, part] : batch) {
      auto of_part = MicroBatches<Part>::tensors(part);
      std::move(of_part.begin(), of_part.end(), std::back_inserter(found));
    }
    return found;
  }
};

template <class... Parts>
struct MicroBatches<std::tuple<Parts...>> {
  using Batch = std::tuple<Parts...>;
  static std::vector<Batch> split(const Batch& batch, int num_micro_batches) {
    return std::apply(
        [&](const Parts&... parts) {
          auto divided = std::make_tuple(MicroBatches<Parts>::split(parts, num_micro_batches)...);
          std::vector<Batch> micros;
          for (std::size_t i = 0; i < static_cast<std::size_t>(num_micro_batches); ++i) {
            std::apply([&](auto&... lists) { micros.emplace_back(std::move(lists[i])...); }, divided);
          }
          return micros;
        },
        batch);
  }
  static std::vector<at::Tensor> tensors(const Batch& batch) {
    std::vector<at::Tensor> found;
    const auto add = [&found](const auto& part) {
      auto of_part = MicroBatches<std::decay_t<decltype(part)>>::tensors(part);
      std::move(of_part.begin(), of_part.end(), std::back_inserter(found));
    };
    std::apply([&](const Parts&... parts) { (add(parts), ...); }, batch);
    return found;
  }
};

template <class First, class Second>
struct MicroBatches<std::pair<First, Second>> {
  using Batch = std::pair<First, Second>;
  static std::vector<Batch> split(const Batch& batch, int num_micro_batches) {
    auto firsts = MicroBatches<First>::split(batch.first, num_micro_batches);
    auto seconds = MicroBatches<Second>::split(batch.second, num_micro_batches);
    std::vector<Batch> micros;
    for (std::size_t i = 0; i < firsts.size(); ++i) micros.emplace_back(std::move(firsts[i]), std::move(seconds[i]));
    return micros;
  }
  static std::vector<at::Tensor> tensors(const Batch& batch) {
    return MicroBatches<std::tuple<First, Second>>::tensors({batch.first, batch.second});
  }
};

}  // namespace tessera
