#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

namespace bench {

inline constexpr std::int64_t kBatchSize = 32;

struct Batch {
  at::Tensor inputs;
  at::Tensor labels;
};

/// Points with the classes that a fixed random network gives them, one label in ten replaced by a random one. A batch
/// follows from the seed and its number alone: whichever rank takes it, it is the same.
class Task {
 public:
  explicit Task(std::uint64_t seed);

  torch::nn::Sequential make_model() const;  ///< the same at every call
  Batch batch(std::int64_t number) const;
  /// On points that are in no batch.
  double held_out_loss(torch::nn::Sequential& model) const;

 private:
  Batch draw(std::uint64_t stream, std::int64_t num_points) const;

  std::uint64_t seed_;
  at::Tensor first_;  // the layers of the network that labels
  at::Tensor second_;
  Batch held_out_;
};

/// Numbers 0, 1, 2, ..., each given out once to all processes that open the same file. It holds 8 zero bytes at first.
class SharedCounter {
 public:
  explicit SharedCounter(const std::string& path);
  ~SharedCounter();
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;

  std::int64_t take();
  std::int64_t num_taken() const;

 private:
  std::int64_t* number_;
};

}  // namespace bench
