#include "pipeline/ghost_shapes.h"

#include <tessera/core/error.h>
#include <tessera/intercept/random_state.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "pipeline/stage_model.h"

namespace tessera::pp {
namespace {

using intercept::OperatorCall;

bool is_ghost(const at::Tensor& tensor) { return static_cast<bool>(stage_data(tensor)); }

/// Appends all that the shape of an operator's results can depend on. False: it cannot be written down.
class Key {
 public:
  explicit Key(std::string& text) : text_(text) { text_.clear(); }

  bool add_call(OperatorCall& call, at::Device device) {
    put(&call.op().schema());
    put(at::GradMode::is_enabled());
    const bool casts = at::autocast::is_autocast_enabled(device.type());
    put(casts);
    if (casts) put(at::autocast::get_autocast_dtype(device.type()));
    put(c10::get_default_dtype_as_scalartype());
    for (std::size_t i = 0; i < call.num_arguments(); ++i) {
      if (!add(call.argument(i))) return false;
    }
    return true;
  }

 private:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <class List>
  void put_all(const List& values) {
    put(values.size());
    for (const auto& value : values) put(value);
  }
  void tag(char kind) { text_.push_back(kind); }

  void add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return tag('u');
    tag(tensor.requires_grad() ? 'g' : 't');
    put(tensor.scalar_type());
    put(tensor.device());
    put(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    put_all(tensor.sizes());
    put_all(tensor.strides());
  }

  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isNone()) {
      tag('n');
    } else if (value.isInt()) {
      tag('i');
      put(value.toInt());
    } else if (value.isDouble()) {
      tag('d');
      put(value.toDouble());
    } else if (value.isBool()) {
      tag(value.toBool() ? 'y' : 'f');
    } else if (value.isString()) {
      tag('s');
      put(value.toStringRef().size());
      text_ += value.toStringRef();
    } else if (value.isDevice()) {
      tag('v');
      put(value.toDevice());
    } else if (value.isComplexDouble()) {
      tag('c');
      put(value.toComplexDouble());
    } else if (value.isList()) {
      tag('l');
      const auto elements = value.toListRef();
      put(elements.size());
      return std::ranges::all_of(elements, [this](const c10::IValue& element) { return add(element); });
    } else {
      return false;  // a generator, say
    }
    return true;
  }

  std::string& text_;
};

/// Boolean indices: how many elements they choose depends on their values.
bool has_mask(OperatorCall& call, bool of_ghosts) {
  bool found = false;
  if (call.name() != "aten::index" && call.name() != "aten::_unsafe_index") return false;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    const bool is_mask = tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
    found = found || (index == 1 && is_mask && is_ghost(tensor) == of_ghosts);
    return {};
  });
  return found;
}

/// Whether the shape depends on values of arguments that have bytes. Throws ConfigError if on others.
bool depends_on_values(OperatorCall& call) {
  const bool by_tag =
      call.op().hasTag(at::Tag::dynamic_output_shape) || call.op().hasTag(at::Tag::data_dependent_output);
  static const std::set<std::string, std::less<>> kReadValues{
      "aten::item",     "aten::_local_scalar_dense", "aten::equal",    "aten::is_nonzero",
      "aten::allclose", "aten::nonzero_numpy",       "aten::argwhere", "aten::tensor_split"};
  // Their values decide, in these places; that of the other tensor does not.
  static const std::map<std::string, std::size_t, std::less<>> kDeciding{{"aten::masked_select", 1},
                                                                         {"aten::repeat_interleave", 1}};
  const bool masks = has_mask(call, /*of_ghosts=*/true);
  const bool plain_masks = has_mask(call, /*of_ghosts=*/false);
  bool splits_by_tensor = false;
  if (call.name() == "aten::tensor_split") splits_by_tensor = call.argument(1).isTensor();
  const bool reads = kReadValues.contains(call.name()) && (call.name() != "aten::tensor_split" || splits_by_tensor);
  const bool is_index = call.name() == "aten::index" || call.name() == "aten::_unsafe_index";
  if (is_index && !masks && !plain_masks) return false;  // by numbers
  if (!by_tag && !masks && !plain_masks && !reads) return false;
  const auto deciding = kDeciding.find(call.name());
  if (deciding != kDeciding.end()) {
    const c10::IValue& decides = call.argument(deciding->second);
    if (!decides.isTensor() || !is_ghost(decides.toTensor())) return true;
  }
  if (!masks && plain_masks) return true;
  throw ConfigError(call.name() +
                    " reads values that a stage of the pipeline computes, and the other ranks have only their shape: "
                    "the forward cannot depend on them. Compute it without reading, as with torch::where(), or from "
                    "the batch");
}

bool names_a_device(OperatorCall& call) {
  for (std::size_t i = 0; i < call.num_arguments(); ++i) {
    if (call.argument(i).isDevice()) return true;
  }
  return false;
}

at::Tensor as_meta(const at::Tensor& tensor, bool is_written) {
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                      at::TensorOptions().dtype(tensor.scalar_type()).device(at::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (!tensor.requires_grad()) return meta;
  meta.requires_grad_(true);
  return is_written && at::GradMode::is_enabled() ? meta.clone() : meta;
}

at::Tensor as_zeros(const at::Tensor& tensor, bool is_written) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(tensor.device());
  at::Tensor zeros;
  {
    const at::NoGradGuard no_grad;
    if (is_written || is_ghost(tensor)) {
      // In the order of its memory: results have the order of their arguments.
      zeros = at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
    } else {
      zeros = tensor.detach();
    }
  }
  if (!tensor.requires_grad()) return zeros;
  zeros = zeros.detach().requires_grad_(true);
  return is_written && at::GradMode::is_enabled() ? zeros.clone() : zeros;
}

/// A run of the operator on other tensors.
class Trial {
 public:
  using Stand = at::Tensor (*)(const at::Tensor& tensor, bool is_written);

  Trial(OperatorCall& call, Stand stand) : call_(call) {
    for (std::size_t i = 0; i < call.num_arguments(); ++i) stack_.push_back(call.argument(i));
    OperatorCall copy(call.op(), stack_);
    copy.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) {
      const bool is_written = call.writes(index);
      at::Tensor other = stand(tensor, is_written);
      if (is_written) written_.push_back(other);
      taken_.push_back(other);
      return other;
    });
  }
  void run() { call_.op().callBoxed(&stack_); }
  const torch::jit::Stack& results() const { return stack_; }
  const std::vector<at::Tensor>& written() const { return written_; }
  const std::vector<at::Tensor>& taken() const { return taken_; }

 private:
  OperatorCall& call_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> written_;
  std::vector<at::Tensor> taken_;
};

Shape on_device(Shape shape, at::Device device) {
  if (shape.device.is_meta()) shape.device = device;
  return shape;
}

ResultShapes::One one_of(const at::Tensor& tensor, const Trial& trial, at::Device device) {
  ResultShapes::One one{on_device(shape_of(tensor), device), std::nullopt, false};
  for (std::size_t i = 0; i < trial.taken().size() && !one.argument; ++i) {
    const at::Tensor& taken = trial.taken()[i];
    one.is_argument = taken.is_same(tensor);
    const bool may_share = taken.has_storage() && tensor.has_storage();
    if (one.is_argument || (may_share && taken.is_alias_of(tensor))) one.argument = i;
  }
  return one;
}

ResultShapes shapes_of(const Trial& trial, at::Device device) {
  ResultShapes found;
  for (const c10::IValue& value : trial.results()) {
    ResultShapes::Result result;
    if (value.isTensor()) {
      result.is_tensor = true;
      if (value.toTensor().defined()) result.tensors.push_back(one_of(value.toTensor(), trial, device));
    } else if (value.isTensorList()) {
      result.is_list = true;
      for (const at::Tensor& tensor : value.toTensorVector()) result.tensors.push_back(one_of(tensor, trial, device));
    } else {
      result.other = value;
    }
    found.results.push_back(std::move(result));
  }
  for (const at::Tensor& tensor : trial.written()) found.written.push_back(on_device(shape_of(tensor), device));
  return found;
}

/// Of the ghosts.
at::Device device_of(OperatorCall& call) {
  std::optional<at::Device> device;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    if (!device && is_ghost(tensor)) device = tensor.device();
    return {};
  });
  return device.value_or(at::Device(at::kCPU));
}

ResultShapes tried(OperatorCall& call, at::Device device) {
  const bool may_draw = call.op().hasTag(at::Tag::nondeterministic_seeded);
  const bool casts = at::autocast::is_autocast_enabled(device.type());
  if (!may_draw && !casts && !names_a_device(call) && !has_mask(call, false)) {
    try {
      Trial trial(call, as_meta);
      trial.run();
      return shapes_of(trial, device);
    } catch (const c10::Error&) {
      // There is no such kernel, or the operator is refused: then so it is below, with the error that it would give.
    }
  }
  const auto before = may_draw ? std::optional(intercept::RandomState::now(device)) : std::nullopt;
  Trial trial(call, as_zeros);
  trial.run();
  ResultShapes found = shapes_of(trial, device);
  found.draws = before && !(*before == intercept::RandomState::now(device));
  return found;
}

/// Draws what the operator draws.
void draw(OperatorCall& call) {
  const at::NoGradGuard no_grad;
  Trial(call, as_zeros).run();
}

}  // namespace

Shape shape_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), tensor.device(), tensor.requires_grad()};
}

at::Tensor GhostShapes::hollow(const Shape& shape) {
  if (!nothing_ || nothing_.device() != shape.device) {
    nothing_ = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                                  c10::DataPtr(nullptr, shape.device), nullptr, false));
    nothing_.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_("ghost without bytes");
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(nothing_), c10::DispatchKeySet(c10::computeDispatchKey(shape.dtype, c10::kStrided, shape.device)),
      c10::scalarTypeToTypeMeta(shape.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
  return tensor;
}

const ResultShapes& GhostShapes::of(OperatorCall& call) {
  const at::Device device = device_of(call);
  const bool is_remembered = !depends_on_values(call) && Key(key_).add_call(call, device);
  if (!is_remembered) {
    ++num_tried_;
    last_ = tried(call, device);
    return last_;
  }
  if (const auto known = known_.find(key_); known != known_.end()) {
    ++num_remembered_;
    if (known->second.draws) draw(call);
    return known->second;
  }
  ++num_tried_;
  const std::string key = key_;  // the operator may come back here
  return known_.insert_or_assign(key, tried(call, device)).first->second;
}

}  // namespace tessera::pp
