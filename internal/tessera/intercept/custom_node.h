#pragma once

// For modules that define their own autograd nodes. This is the only header outside `intercept` that exposes nodes.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera::intercept {

/// While one lives, the hooks that programs have put on these leaves are not called.
class HooksAside {
 public:
  explicit HooksAside(const std::vector<at::Tensor>& leaves);
  ~HooksAside();
  HooksAside(const HooksAside&) = delete;
  HooksAside& operator=(const HooksAside&) = delete;

 private:
  struct Aside;
  std::vector<std::unique_ptr<Aside>> aside_;
};

}  // namespace tessera::intercept
