#include <ATen/ATen.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;
using Sizes = std::vector<std::int64_t>;

std::int64_t product(const Sizes& sizes, std::size_t begin, std::size_t end) {
  return std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(begin),
                         sizes.begin() + static_cast<std::ptrdiff_t>(end), std::int64_t{1}, std::multiplies<>());
}

/// Note [Views of a cut]
/// In memory order a cut tensor is blocks of one length, of each of which a rank has a chunk. A view keeps the blocks
/// and the chunks, if one of its dimensions can say them: so many blocks in it and before it, and chunks of whole
/// indices. A head's columns become an index of a dimension of heads that way, and back. Null: no dimension can.
CutDataPtr viewed_cut(const Operand& input, const Sizes& to) {
  const Sizes from = input.sizes();
  const Placement& cut = input.cut->cut();
  const auto dim = static_cast<std::size_t>(cut.dim());
  const std::int64_t num_blocks = product(from, 0, dim) * cut.blocks();
  const std::int64_t chunk = cut.granule() * product(from, dim + 1, from.size());
  if (num_blocks == 0 || chunk == 0 || product(from, 0, from.size()) != product(to, 0, to.size())) return {};
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::int64_t before = product(to, 0, i);
    const std::int64_t after = product(to, i + 1, to.size());
    if (before == 0 || after == 0 || num_blocks % before != 0 || chunk % after != 0) continue;
    const std::int64_t blocks = num_blocks / before;
    if (to[i] % blocks != 0) continue;
    return moved_cut(input.cut, static_cast<std::int64_t>(i), blocks, chunk / after, to[i]);
  }
  return {};
}

/// With the size that -1 stands for; empty: there is none.
Sizes inferred(Sizes sizes, std::int64_t num_elements) {
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  for (std::int64_t& size : sizes) {
    if (size == -1) {
      if (open) return {};
      open = &size;
    } else {
      known *= size;
    }
  }
  if (open && known == 0) return {};
  if (open) *open = num_elements / known;
  return sizes;
}

/// The same operator on the local tensor, whose results are views with these strides of the whole.
void run_view(OperatorCall& call, const Operand& input, const CutDataPtr& cut, const Sizes& strides) {
  call.argument(0) = c10::IValue(input.local);
  call.run();
  call.for_each_result([&](std::size_t, const at::Tensor& local) { return wrap(local, cut, strides); });
}

/// Gives `input` the shape `to` of the whole. `copies`: as reshape(), a copy where no view is possible.
void return_view(OperatorCall& call, const Operand& input, const Sizes& to, bool copies) {
  const CutDataPtr cut = to.empty() ? CutDataPtr() : viewed_cut(input, to);
  const at::Tensor source = call.tensor(0);
  // One process decides by the strides of the whole, which all ranks know.
  const auto strides = to.empty() ? std::nullopt : at::detail::computeStride(source.sizes(), source.strides(), to);
  TORCH_CHECK(
      strides || copies || to.empty(),
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  if (!cut) return without_rule(call);
  Sizes local_sizes = to;
  local_sizes[static_cast<std::size_t>(cut->dim())] = cut->local_size();
  if (strides) return call.return_value(wrap(input.local.view(local_sizes), cut, *strides));
  const at::Tensor copy = input.local.reshape(local_sizes);
  call.return_value(wrap(copy.is_alias_of(input.local) ? copy.clone() : copy, cut));
}

void view(OperatorCall& call) {
  if (!call.argument(1).isIntList()) return without_rule(call);  // another type
  const Operand input = read(call.tensor(0));
  return_view(call, input, inferred(call.argument(1).toIntVector(), input.numel()), call.name() != "aten::view");
}

/// A whole tensor beside a cut one that only gives the shape.
bool returned_whole(OperatorCall& call) {
  if (cut_of(call.tensor(0))) return false;
  const at::Tensor tensor = call.tensor(0);
  const at::IntArrayRef sizes = call.tensor(1).sizes();
  call.return_value(call.name() == "aten::expand_as"    ? tensor.expand(sizes)
                    : call.name() == "aten::reshape_as" ? tensor.reshape(sizes)
                                                        : tensor.view(sizes));
  return true;
}

void view_as(OperatorCall& call) {
  if (returned_whole(call)) return;
  return_view(call, read(call.tensor(0)), call.tensor(1).sizes().vec(), call.name() == "aten::reshape_as");
}

void flatten(OperatorCall& call) {
  if (call.num_arguments() != 3 || !call.argument(1).isInt()) return without_rule(call);
  const Operand input = read(call.tensor(0));
  const Sizes from = input.sizes();
  if (from.empty()) return without_rule(call);
  const auto first = static_cast<std::size_t>(from_front(call.argument(1).toInt(), input.dim()));
  const auto last = static_cast<std::size_t>(from_front(call.argument(2).toInt(), input.dim()));
  if (first > last || last >= from.size()) return without_rule(call);
  Sizes to(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(first));
  to.push_back(product(from, first, last + 1));
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(last) + 1, from.end());
  return_view(call, input, to, true);
}

void unflatten(OperatorCall& call) {
  if (!call.argument(1).isInt()) return without_rule(call);
  const Operand input = read(call.tensor(0));
  const Sizes from = input.sizes();
  const auto dim = static_cast<std::size_t>(from_front(call.argument(1).toInt(), input.dim()));
  if (dim >= from.size()) return without_rule(call);
  const Sizes parts = inferred(call.argument(2).toIntVector(), from[dim]);
  if (product(parts, 0, parts.size()) != from[dim]) return without_rule(call);
  Sizes to(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(dim));
  to.insert(to.end(), parts.begin(), parts.end());
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(dim) + 1, from.end());
  return_view(call, input, to, false);
}

void transpose(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  std::int64_t a = 0;
  std::int64_t b = 1;
  if (call.num_arguments() == 3) {
    if (!call.argument(1).isInt() || input.dim() == 0) return without_rule(call);
    a = from_front(call.argument(1).toInt(), input.dim());
    b = from_front(call.argument(2).toInt(), input.dim());
  } else if (input.dim() < 2) {
    return run_view(call, input, input.cut, call.tensor(0).strides().vec());  // t() of a vector
  } else if (input.dim() > 2) {
    a = input.dim() - 2;  // mT
    b = input.dim() - 1;
    if (call.name() == "aten::t") return without_rule(call);
  }
  const std::int64_t dim = input.cut->dim();
  Sizes strides = call.tensor(0).strides().vec();
  std::swap(strides[static_cast<std::size_t>(a)], strides[static_cast<std::size_t>(b)]);
  run_view(call, input, moved_cut(input.cut, dim == a ? b : dim == b ? a : dim), strides);
}

void permute(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const auto dims = call.argument(1).toIntVector();
  CutDataPtr cut;
  Sizes strides;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::int64_t dim = from_front(dims[i], input.dim());
    if (dim < 0 || dim >= input.dim()) return without_rule(call);
    strides.push_back(call.tensor(0).stride(dim));
    if (dim == input.cut->dim()) cut = moved_cut(input.cut, static_cast<std::int64_t>(i));
  }
  if (!cut || std::ssize(dims) != input.dim()) return without_rule(call);
  run_view(call, input, cut, strides);
}

void unsqueeze(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const std::int64_t dim = from_front(call.argument(1).toInt(), input.dim() + 1);
  if (dim < 0 || dim > input.dim()) return without_rule(call);
  const at::Tensor source = call.tensor(0);
  Sizes strides = source.strides().vec();
  strides.insert(strides.begin() + dim, dim < input.dim() ? source.size(dim) * source.stride(dim) : 1);
  run_view(call, input, moved_cut(input.cut, input.cut->dim() + (dim <= input.cut->dim() ? 1 : 0)), strides);
}

/// LibTorch's own formulas call it, as that of a GroupNorm's second gradients does.
void unsqueeze_in_place(OperatorCall& call) {
  const at::Tensor tensor = call.tensor(0);
  if (!intercept::is_wrapper(tensor) || (tensor.is_leaf() && tensor.requires_grad())) return without_rule(call);
  intercept::become(tensor, tensor.unsqueeze(call.argument(1).toInt()));
  call.return_value(tensor);
}

/// Which dimensions vanish depends on the sizes of the whole, not of the part.
void squeeze(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  std::vector<std::int64_t> named;
  if (call.num_arguments() == 1) {
    named.resize(static_cast<std::size_t>(input.dim()));
    std::iota(named.begin(), named.end(), 0);
  } else if (call.argument(1).isInt()) {
    named = {call.argument(1).toInt()};
  } else if (call.argument(1).isIntList()) {
    named = call.argument(1).toIntVector();
  } else {
    return without_rule(call);
  }
  std::vector<std::int64_t> gone;
  for (const std::int64_t name : named) {
    const std::int64_t dim = from_front(name, input.dim());
    if (dim < 0 || dim >= input.dim()) return without_rule(call);
    if (input.size(dim) == 1) gone.push_back(dim);
  }
  if (std::ranges::find(gone, input.cut->dim()) != gone.end()) return without_rule(call);
  const auto num_before = std::ranges::count_if(gone, [&](std::int64_t dim) { return dim < input.cut->dim(); });
  Sizes strides;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    if (std::ranges::find(gone, dim) == gone.end()) strides.push_back(call.tensor(0).stride(dim));
  }
  call.return_value(wrap(input.local.squeeze(gone), moved_cut(input.cut, input.cut->dim() - num_before), strides));
}

void expand(OperatorCall& call) {
  if (call.name() == "aten::expand_as" && returned_whole(call)) return;
  const Operand input = read(call.tensor(0));
  Sizes to = call.name() == "aten::expand_as" ? call.tensor(1).sizes().vec() : call.argument(1).toIntVector();
  const auto added = static_cast<std::int64_t>(to.size()) - input.dim();
  if (added < 0) return without_rule(call);
  const auto dim = static_cast<std::size_t>(input.cut->dim() + added);
  if (to[dim] != -1 && to[dim] != input.cut->size()) return without_rule(call);
  to[dim] = input.cut->local_size();
  const at::Tensor local = input.local.expand(to);
  Sizes strides(to.size(), 0);
  for (std::size_t i = static_cast<std::size_t>(added); i < to.size(); ++i) {
    const auto of_source = static_cast<std::int64_t>(i) - added;
    const bool is_expanded = call.tensor(0).size(of_source) == 1 && local.size(static_cast<std::int64_t>(i)) != 1;
    if (!is_expanded) strides[i] = call.tensor(0).stride(of_source);
  }
  call.return_value(wrap(local, moved_cut(input.cut, static_cast<std::int64_t>(dim)), strides));
}

void select(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const std::int64_t dim = from_front(call.argument(1).toInt(), input.dim());
  if (dim == input.cut->dim() || dim < 0 || dim >= input.dim()) return without_rule(call);
  Sizes strides = call.tensor(0).strides().vec();
  strides.erase(strides.begin() + dim);
  run_view(call, input, moved_cut(input.cut, input.cut->dim() - (dim < input.cut->dim() ? 1 : 0)), strides);
}

/// A range of the indices of the dimension that is cut: whole blocks, or the beginning of a single one. The range of
/// local indices, and the cut of the result; a null cut: it is neither.
struct LocalRange {
  Range range;
  CutDataPtr cut;
};

LocalRange local_range(const Operand& input, Range wanted) {
  const CutData& cut = *input.cut;
  const Placement& placement = cut.cut();
  const std::int64_t dim = cut.dim();
  if (wanted.start == 0 && wanted.size == cut.size()) return {{0, cut.local_size()}, input.cut};
  const std::int64_t block = cut.size() / placement.blocks();
  if (block > 0 && wanted.size > 0 && wanted.start % block == 0 && wanted.size % block == 0) {
    const std::int64_t local_block = cut.local_size() / placement.blocks();
    return {{wanted.start / block * local_block, wanted.size / block * local_block},
            moved_cut(input.cut, dim, wanted.size / block, placement.granule(), wanted.size)};
  }
  if (placement.blocks() == 1 && wanted.start == 0 && wanted.size > 0) {
    CutDataPtr shorter = moved_cut(input.cut, dim, 1, placement.granule(), wanted.size);
    return {{0, shorter->local_size()}, shorter};
  }
  return {};
}

void slice(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  if (!call.argument(1).isInt() || input.dim() == 0) return without_rule(call);
  const std::int64_t dim = from_front(call.argument(1).toInt(), input.dim());
  const at::Tensor source = call.tensor(0);
  Sizes strides = source.strides().vec();
  if (dim != input.cut->dim()) {
    if (dim >= 0 && dim < input.dim()) strides[static_cast<std::size_t>(dim)] *= call.argument(4).toInt();
    return run_view(call, input, input.cut, strides);
  }
  if (call.argument(4).toInt() != 1) return without_rule(call);
  const std::int64_t size = input.cut->size();
  const auto bound = [&](const c10::IValue& value, std::int64_t otherwise) {
    const std::int64_t given = value.isNone() ? otherwise : value.toInt();
    return std::clamp<std::int64_t>(given < 0 ? given + size : given, 0, size);
  };
  const std::int64_t start = bound(call.argument(2), 0);
  const std::int64_t end = std::max(start, bound(call.argument(3), size));
  const LocalRange local = local_range(input, {start, end - start});
  if (!local.cut) return without_rule(call);
  call.return_value(wrap(input.local.narrow(dim, local.range.start, local.range.size), local.cut, strides));
}

void narrow(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  if (!call.argument(2).isInt() || input.dim() == 0) return without_rule(call);
  const std::int64_t dim = from_front(call.argument(1).toInt(), input.dim());
  const Sizes strides = call.tensor(0).strides().vec();
  if (dim != input.cut->dim()) return run_view(call, input, input.cut, strides);
  const std::int64_t start = from_front(call.argument(2).toInt(), input.cut->size());
  const LocalRange local = local_range(input, {start, call.argument(3).toInt()});
  if (!local.cut || start < 0 || start + call.argument(3).toInt() > input.cut->size()) return without_rule(call);
  call.return_value(wrap(input.local.narrow(dim, local.range.start, local.range.size), local.cut, strides));
}

/// Splits the dimension that is cut into these sizes, if each is whole blocks.
void return_split(OperatorCall& call, const Operand& input, const Sizes& sizes) {
  const std::int64_t block = input.cut->size() / input.cut->cut().blocks();
  std::vector<at::Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    if (block == 0 || size == 0 || start % block != 0 || size % block != 0) return without_rule(call);
    const LocalRange local = local_range(input, {start, size});
    parts.push_back(wrap(input.local.narrow(input.cut->dim(), local.range.start, local.range.size), local.cut,
                         call.tensor(0).strides()));
    start += size;
  }
  if (start != input.cut->size()) return without_rule(call);
  call.return_value(parts);
}

void chunk(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const std::int64_t dim = from_front(call.argument(2).toInt(), input.dim());
  if (dim != input.cut->dim()) return run_view(call, input, input.cut, call.tensor(0).strides().vec());
  const std::int64_t wanted = call.argument(1).toInt();
  if (wanted < 1 || input.cut->size() == 0) return without_rule(call);
  const std::int64_t each = (input.cut->size() + wanted - 1) / wanted;
  Sizes sizes;
  for (std::int64_t rest = input.cut->size(); rest > 0; rest -= each) sizes.push_back(std::min(rest, each));
  return_split(call, input, sizes);
}

void split(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const std::int64_t dim = from_front(call.argument(2).toInt(), input.dim());
  if (dim != input.cut->dim()) return run_view(call, input, input.cut, call.tensor(0).strides().vec());
  if (!call.argument(1).isInt()) return return_split(call, input, call.argument(1).toIntVector());
  const std::int64_t each = call.argument(1).toInt();
  if (each < 1) return without_rule(call);
  Sizes sizes;
  for (std::int64_t rest = input.cut->size(); rest > 0; rest -= each) sizes.push_back(std::min(rest, each));
  return_split(call, input, sizes);
}

void unbind(OperatorCall& call) {
  if (!call.argument(1).isInt()) return without_rule(call);
  select(call);
}

}  // namespace

void add_view_rules(intercept::RuleTable& table) {
  table.add({"aten::view", "aten::reshape", "aten::_unsafe_view"}, view);
  table.add({"aten::view_as", "aten::reshape_as"}, view_as);
  table.add({"aten::flatten"}, flatten);
  table.add({"aten::unflatten"}, unflatten);
  table.add({"aten::t", "aten::transpose", "aten::swapaxes", "aten::swapdims", "aten::mT"}, transpose);
  table.add({"aten::permute"}, permute);
  table.add({"aten::unsqueeze"}, unsqueeze);
  table.add({"aten::unsqueeze_"}, unsqueeze_in_place);
  table.add({"aten::squeeze"}, squeeze);
  table.add({"aten::expand", "aten::expand_as"}, expand);
  table.add({"aten::select"}, select);
  table.add({"aten::unbind"}, unbind);
  table.add({"aten::slice"}, slice);
  table.add({"aten::narrow"}, narrow);
  table.add({"aten::chunk"}, chunk);
  table.add({"aten::split", "aten::split_with_sizes"}, split);
}

}  // namespace tessera::tp
