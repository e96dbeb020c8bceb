// The contest in stepping 100 M parameters: bench_adamw. It makes what a line of its input asks for:
//   KIND STEPS      KIND: ours, libtorch, memcpy; a step of memcpy copies as many bytes as the parameters have
// and answers with a line of JSON. Between lines it sleeps. A process takes one kind.
#include <tessera/core/error.h>
#include <tessera/optim/adamw.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kWidth = 768;
constexpr int kLayers = 12;
constexpr std::int64_t kRows = 19461;  // of the embedding; all together 100,000,512 parameters

/// Those of a GPT-2 with a small vocabulary. bench/peers/adamw.py has the same.
std::vector<std::vector<std::int64_t>> shapes() {
  std::vector<std::vector<std::int64_t>> all{{kRows, kWidth}};
  for (int layer = 0; layer < kLayers; ++layer) {
    all.insert(all.end(), {{3 * kWidth, kWidth}, {3 * kWidth}, {kWidth, kWidth}, {kWidth}, {4 * kWidth, kWidth}});
    all.insert(all.end(), {{4 * kWidth}, {kWidth, 4 * kWidth}, {kWidth}, {kWidth}, {kWidth}, {kWidth}, {kWidth}});
  }
  return all;
}

/// With gradients that stay: the optimizers do not change them.
std::vector<at::Tensor> make_parameters() {
  torch::manual_seed(0);
  std::vector<at::Tensor> parameters;
  for (const auto& shape : shapes()) {
    parameters.push_back(at::empty(shape).normal_(0, 0.02).set_requires_grad(true));
    parameters.back().mutable_grad() = at::empty(shape).normal_(0, 1e-3);
  }
  return parameters;
}

/// Sees every element, and no two of them cancel.
double sum_of_sizes(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const at::Tensor& parameter : parameters) sum += parameter.abs().sum(at::kDouble).item<double>();
  return sum;
}

struct Contestant {
  std::function<void()> step;
  std::function<double()> result = [] { return 0.0; };
};

template <class Optimizer>
Contestant optimizer_contestant() {
  auto parameters = std::make_shared<std::vector<at::Tensor>>(make_parameters());
  auto optimizer = std::make_shared<Optimizer>(*parameters, torch::optim::AdamWOptions(3e-4));
  return {[optimizer] { optimizer->step(); }, [parameters] { return sum_of_sizes(*parameters); }};
}

Contestant memcpy_contestant() {
  std::int64_t count = 0;
  for (const auto& shape : shapes()) count += c10::multiply_integers(shape);
  const at::Tensor from = at::ones({count});
  const at::Tensor into = at::zeros({count});
  return {[from, into] { std::memcpy(into.data_ptr(), from.data_ptr(), from.nbytes()); }};
}

Contestant make(const std::string& kind) {
  if (kind == "ours") return optimizer_contestant<tessera::optim::AdamW>();
  if (kind == "libtorch") return optimizer_contestant<torch::optim::AdamW>();
  if (kind == "memcpy") return memcpy_contestant();
  throw tessera::ConfigError("expected ours, libtorch or memcpy, found \"" + kind + "\"");
}

void run() {
  at::set_num_threads(1);
  std::string made;
  Contestant contestant;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string kind;
    int num_steps = 0;
    if (!(words >> kind >> num_steps)) throw tessera::ConfigError("expected KIND STEPS, found \"" + line + "\"");
    if (made.empty()) contestant = make(kind);
    if (!made.empty() && made != kind) throw tessera::ConfigError("this process is for " + made + ", not for " + kind);
    made = kind;
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < num_steps; ++i) contestant.step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    std::printf("{\"variant\": \"%s\", \"seconds\": %.6f, \"weights\": %.17g}\n", kind.c_str(), seconds.count(),
                contestant.result());
    std::fflush(stdout);
  }
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
