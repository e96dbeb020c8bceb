#include "staleness_task.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

namespace bench {
namespace {

constexpr std::int64_t kNumInputs = 20;
constexpr std::int64_t kNumClasses = 10;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kNumHeldOut = 4096;
constexpr double kNoise = 0.1;
// Streams of random numbers beside those of the batches, which count from 0.
constexpr std::uint64_t kLabelStream = 1'000'000'000;
constexpr std::uint64_t kModelStream = kLabelStream + 1;
constexpr std::uint64_t kHeldOutStream = kLabelStream + 2;

at::Generator generator(std::uint64_t seed, std::uint64_t stream) {
  return at::make_generator<at::CPUGeneratorImpl>(seed * 7'919'000'000'003U + stream);
}

}  // namespace

Task::Task(std::uint64_t seed) : seed_(seed) {
  auto random = generator(seed_, kLabelStream);
  first_ = at::randn({kNumInputs, kWidth}, random) / std::sqrt(static_cast<double>(kNumInputs));
  second_ = at::randn({kWidth, kNumClasses}, random);
  held_out_ = draw(kHeldOutStream, kNumHeldOut);
}

torch::nn::Sequential Task::make_model() const {
  torch::nn::Sequential model(torch::nn::Linear(kNumInputs, kWidth), torch::nn::Tanh(),
                              torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                              torch::nn::Linear(kWidth, kNumClasses));
  auto random = generator(seed_, kModelStream);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    const double fan_in = parameter.dim() > 1 ? static_cast<double>(parameter.size(1)) : 1.0;
    parameter.copy_(parameter.dim() > 1 ? at::randn(parameter.sizes(), random) / std::sqrt(fan_in)
                                        : at::zeros(parameter.sizes()));
  }
  return model;
}

Batch Task::draw(std::uint64_t stream, std::int64_t num_points) const {
  auto random = generator(seed_, stream);
  Batch batch;
  batch.inputs = at::randn({num_points, kNumInputs}, random);
  const at::Tensor clean = at::matmul(at::tanh(2 * at::matmul(batch.inputs, first_)), second_).argmax(1);
  const at::Tensor noise = at::randint(kNumClasses, {num_points}, random, at::kLong);
  batch.labels = at::where(at::rand({num_points}, random) < kNoise, noise, clean);
  return batch;
}

Batch Task::batch(std::int64_t number) const { return draw(static_cast<std::uint64_t>(number), kBatchSize); }

double Task::held_out_loss(torch::nn::Sequential& model) const {
  const torch::NoGradGuard no_grad;
  return torch::nn::functional::cross_entropy(model->forward(held_out_.inputs), held_out_.labels).item<double>();
}

SharedCounter::SharedCounter(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(*number_), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("the counter " + path + " cannot be opened");
  number_ = static_cast<std::int64_t*>(memory);
}

SharedCounter::~SharedCounter() { munmap(number_, sizeof(*number_)); }

std::int64_t SharedCounter::take() { return std::atomic_ref(*number_).fetch_add(1); }

std::int64_t SharedCounter::num_taken() const { return std::atomic_ref(*number_).load(); }

}  // namespace bench
