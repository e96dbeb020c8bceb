#pragma once

#include <tessera/intercept/operator_call.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::pp {

/// What is known of a tensor without its bytes.
struct Shape {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::kFloat;
  at::Device device{at::kCPU};
  bool requires_grad = false;
};
Shape shape_of(const at::Tensor& tensor);

/// What an operator returns: for each result, a tensor or a list of tensors.
struct ResultShapes {
  struct One {
    Shape shape;
    /// The argument that it shares memory with, counted among the tensors that the operator takes.
    std::optional<std::size_t> argument;
    bool is_argument = false;  ///< it is that argument
  };
  struct Result {
    bool is_list = false;
    bool is_tensor = false;
    std::vector<One> tensors;  ///< one, if it is no list; none for an undefined tensor
    c10::IValue other;         ///< of a result that is no tensor
  };
  std::vector<Result> results;
  std::vector<Shape> written;  ///< what becomes of the arguments that it writes to, in their order
  bool draws = false;          ///< random numbers
};

/// Note [Shapes without bytes]
/// What an operator would return is found by running it: on LibTorch's meta tensors where it has such a kernel, else on
/// zeros. That is remembered by all that it can depend on.
///
/// Thread-safety: none.
class GhostShapes {
 public:
  /// Arguments may be ghosts. An operator that draws random numbers draws as many as it would. Throws ConfigError where
  /// the shape of the result depends on values of ghosts.
  const ResultShapes& of(intercept::OperatorCall& call);

  /// A tensor of this shape without bytes and without a history: reading it throws.
  at::Tensor hollow(const Shape& shape);

  /// Operators that were run to find their shapes, and those that were remembered.
  std::int64_t num_tried() const { return num_tried_; }
  std::int64_t num_remembered() const { return num_remembered_; }

 private:
  std::unordered_map<std::string, ResultShapes> known_;
  ResultShapes last_;  // of an operator that cannot be remembered
  std::string key_;
  c10::Storage nothing_;
  std::int64_t num_tried_ = 0;
  std::int64_t num_remembered_ = 0;
};

}  // namespace tessera::pp
